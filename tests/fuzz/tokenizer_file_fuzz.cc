// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and, behind a NUL byte, tokenizer_config.json: refused by one line, or a tokenizer
// that keeps its promises for a few texts.
#include <cstdint>

#include "tests/fuzz/model_file.h"
#include "tests/fuzz/tokenizer_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const diffserve::testing::FuzzedModelDirectory directory;
  const auto [json,
              config] = diffserve::testing::TwoFiles({reinterpret_cast<const char*>(data), size});
  directory.Put("tokenizer.json", json);
  directory.Put("tokenizer_config.json", config);
  const auto tokenizer = diffserve::Tokenizer::Load(directory.path());
  if (!tokenizer.ok()) {
    directory.CheckError(tokenizer.status());
    return 0;
  }
  for (const char* text : {"", "a", "The <s>cat</s> sat on it's 1,024th mat.\r\n\n  \t",
                           "Stra\xC3\x9F"
                           "e \xF0\x9F\x98\x80\xE2\x96\x81\xCC\x88 \xE4\xB8\xAD"})
    diffserve::testing::CheckedIds(**tokenizer, text, 3);
  return 0;
}
