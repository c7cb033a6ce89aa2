// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/nearest_name.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kLettersPerEdit = 3;
constexpr size_t kMaxLetters = 64;  // longer than any name

std::string_view WithoutDashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return name;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between prefixes of a and b: of the letter before the last of
  // a's prefix, of the last, and of the next.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string_view> NearestName(std::string_view written,
                                            std::span<const std::string_view> names) {
  const std::string_view letters = WithoutDashes(written);
  if (letters.size() > kMaxLetters) return std::nullopt;
  int least = static_cast<int>(letters.size() / kLettersPerEdit) + 1;
  std::optional<std::string_view> nearest;
  for (const std::string_view name : names) {
    const int distance = EditDistance(letters, WithoutDashes(name));
    if (distance >= least) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace diffserve
