// SPDX-License-Identifier: Apache-2.0
// A client's grammars: the first byte says the kind, the rest is the text. It is refused by one
// line, or masks are made of it within their limits, always with a token in them, until the text
// ends, the work limit is met or some tokens were drawn. A copy goes ahead through what it forces.
#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/text/grammar.h"
#include "kernels/process/check.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

constexpr int kMaxTokens = 24;
constexpr int kMaxForced = 4;
constexpr int kNumKinds = 7;

void Draw(TokenConstraint& constraint, int vocab_size, uint64_t seed) {
  std::vector<uint32_t> mask(MaskWords(vocab_size)), ahead(MaskWords(vocab_size));
  for (int i = 0; i < kMaxTokens; ++i) {
    if (!constraint.Fill(mask).ok()) return;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < static_cast<int32_t>(mask.size() * 32); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    DS_CHECK(!allowed.empty(), "a mask allows a token");
    DS_CHECK(allowed.back() < vocab_size, "a mask knows the vocabulary");
    const std::unique_ptr<TokenConstraint> copy = constraint.Clone();
    for (const int32_t token : constraint.Forced(kMaxForced)) {
      if (!copy->Accept(token).ok() || !copy->Fill(ahead).ok()) break;
    }
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    if (!constraint.Accept(allowed[(seed >> 33) % allowed.size()]).ok()) return;
  }
}

constexpr std::string_view kPanicked = "grammar: the text library failed";

void Take(GrammarSpec::Kind kind, std::string_view text) {
  static const auto tokenizer =
      Tokenizer::Load(SourceDirectory() + "/tests/text/data/byte_bpe").value();
  static const int vocab_size = tokenizer->vocab_size() + 3;
  GrammarLimits limits;
  limits.max_cache_bytes = 8 << 20;  // hardly an input comes twice
  static const auto compiler = GrammarCompiler::Make(*tokenizer, vocab_size, {0}, limits).value();
  const auto made = compiler->Compile({kind, std::string(text), "grammar"});
  if (!made.ok()) {
    const std::string& message = made.status().message();
    DS_CHECK(made.status().code() == StatusCode::kInvalidArgument, message);
    DS_CHECK(!message.empty() && message.find('\n') == std::string::npos, "an error is one line");
    DS_CHECK(!message.starts_with(kPanicked), message);  // it may quote the text further on
    return;
  }
  Draw(**made, vocab_size, text.size());
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = static_cast<diffserve::GrammarSpec::Kind>(data[0] % diffserve::kNumKinds);
  diffserve::Take(kind, std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
