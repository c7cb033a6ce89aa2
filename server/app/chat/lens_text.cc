// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/lens_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "kernels/base/terminal_text.h"

namespace diffserve {
namespace {

constexpr size_t kMaxLines = 8;
constexpr float kMinKept = 0.0005f;  // less is printed as 0.000
constexpr int kBarCells = 10, kPartsPerCell = 8;

// A number in 0..1 as a bar, padded with blanks.
std::string Bar(double share) {
  const int parts = static_cast<int>(
      std::lround(std::clamp(share, 0.0, 1.0) * kBarCells * kPartsPerCell));
  std::string bar;
  for (int cell = 0; cell < kBarCells; ++cell) {
    const int filled = std::clamp(parts - cell * kPartsPerCell, 0, kPartsPerCell);
    // U+2588 is a whole cell, U+258F an eighth.
    bar += filled == 0 ? std::string(" ")
                       : std::string{'\xE2', '\x96', static_cast<char>(0x90 - filled)};
  }
  return bar;
}

std::string Column(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), " %6.3f ", share);
  return text + Bar(share);
}

std::string HeadLine(const LensAnswer& answer, const LensHead& head, int number) {
  char where[200];
  std::snprintf(where, sizeof(where), "layer %d, head %d (of %d and %d)", head.layer, head.head,
                answer.num_layers, answer.num_heads);
  const std::string line = "token " + std::to_string(number) + " of the answer, \"" +
                           QuotedOnTerminal(answer.token_texts.back()) +
                           "\", as it was written: " + where;
  if (answer.num_maps == 1) return line + ", which looks at the fewest tokens\n";
  char figures[100];
  std::snprintf(figures, sizeof(figures), ", which cancels most: %.0f %% of A1; lambda %.3f\n",
                double{head.cancelled} * 100, double{head.lambda});
  return line + figures;
}

const LensHead& HeadToShow(const LensAnswer& answer) {
  if (answer.num_maps == 1) return *std::ranges::min_element(answer.heads, {}, &LensHead::entropy1);
  return *std::ranges::max_element(answer.heads, {}, &LensHead::cancelled);
}

}  // namespace

Result<std::string> LensText(const LensAnswer& answer, int number) {
  if (answer.heads.empty() || answer.token_texts.empty())
    return Status(StatusCode::kUnavailable, "the answer of /v1/attention has no heads or tokens");
  const LensHead& head = HeadToShow(answer);
  std::vector<LensSlot> kept = head.slots;
  std::erase_if(kept, [](const LensSlot& slot) { return !(slot.difference >= kMinKept); });
  std::ranges::stable_sort(kept, std::ranges::greater(), &LensSlot::difference);
  if (kept.size() > kMaxLines) kept.resize(kMaxLines);
  const bool two = answer.num_maps == 2;
  std::string text = HeadLine(answer, head, number);
  text += two ? "     A1                lambda A2         A1 - lambda A2\n" : "     A1\n";
  for (const LensSlot& slot : kept) {
    if (slot.slot < 0 || static_cast<size_t>(slot.slot) >= answer.token_texts.size()) {
      return Status(StatusCode::kUnavailable, "the answer of /v1/attention has slot " +
                                                  std::to_string(slot.slot) + " and no such token");
    }
    text += Column(slot.map1);
    if (two) text += Column(double{head.lambda} * slot.map2) + Column(slot.difference);
    text += " \"" + QuotedOnTerminal(answer.token_texts[static_cast<size_t>(slot.slot)]) + "\"\n";
  }
  return text;
}

}  // namespace diffserve
