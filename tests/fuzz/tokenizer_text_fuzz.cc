// SPDX-License-Identifier: Apache-2.0
// Any text through each kind of tokenizer: there and back. The first byte chooses the tokenizer,
// the second a limit of tokens; the rest is the text, and then, two bytes each, ids to decode.
#include <cstdint>
#include <iterator>
#include <memory>

#include "tests/fuzz/tokenizer_checks.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

constexpr const char* kTokenizers[] = {"tests/text/data/byte_bpe",  "tests/text/data/sentencepiece",
                                       "tests/text/data/metaspace", "tests/text/data/wordpiece",
                                       "models/demo/diff",          "tests/text/data/suffix_bpe"};

const Tokenizer& Loaded(size_t index) {
  static std::unique_ptr<Tokenizer> loaded[std::size(kTokenizers)];
  if (loaded[index] == nullptr) {
    loaded[index] = Tokenizer::Load(SourceDirectory() + "/" + kTokenizers[index]).value();
  }
  return *loaded[index];
}

// Byte-level BPE without normaliser loses nothing; the others change or drop some characters.
bool IsLossless(size_t index) { return index == 0 || index == 4; }

void TakeText(size_t index, std::string_view text, size_t limit) {
  const Tokenizer& tokenizer = Loaded(index);
  const std::vector<int32_t> ids = testing::CheckedIds(tokenizer, text, limit);
  const Result<std::string> back = tokenizer.Decode(ids, false);
  DS_CHECK(back.ok(), "what was encoded can be decoded");
  if (IsLossless(index) && !ids.empty()) DS_CHECK(*back == text, "decoding gives the text back");
}

// Ids in any order, which no text may have.
void TakeIds(size_t index, std::string_view bytes) {
  const Tokenizer& tokenizer = Loaded(index);
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int number = static_cast<unsigned char>(bytes[i]) * 256 +
                       static_cast<unsigned char>(bytes[i + 1]);
    ids.push_back(number % tokenizer.vocab_size());
  }
  for (const bool skip : {false, true}) testing::CheckDecoding(tokenizer, ids, skip);
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t index = data[0] % std::size(diffserve::kTokenizers);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  diffserve::TakeText(index, rest, 1 + data[1]);
  diffserve::TakeIds(index, rest);
  return 0;
}
