// SPDX-License-Identifier: Apache-2.0
// The small tokenizers of tests/text/data, and what Hugging Face's code makes with them
// (golden.json).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tests/testing/temporary_directory.h"

namespace diffserve {

inline std::string TextDataDir() { return std::string(DIFFSERVE_SOURCE_DIR) + "/tests/text/data"; }

inline std::vector<std::string> TokenizerFixtures() {
  return {"byte_bpe", "sentencepiece", "metaspace", "wordpiece", "suffix_bpe"};
}

inline std::unique_ptr<Tokenizer> LoadTokenizerFixture(const std::string& name) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(TextDataDir() + "/" + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

using TokenizerEdit = std::function<void(nlohmann::ordered_json& tokenizer)>;

// A fixture with one part replaced.
inline std::unique_ptr<Tokenizer> EditedTokenizerFixture(const std::string& name,
                                                         const TokenizerEdit& edit) {
  auto parsed = nlohmann::ordered_json::parse(
      FileBytes(TextDataDir() + "/" + name + "/tokenizer.json"));
  edit(parsed);
  TemporaryDirectory dir;
  dir.Write("tokenizer.json", parsed.dump());
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

// "encode", "decode" or "template" of golden.json, with keys in the order of the file: templates
// show it.
inline nlohmann::ordered_json TextGolden(const std::string& part) {
  std::ifstream file(TextDataDir() + "/golden.json");
  return nlohmann::ordered_json::parse(file).at(part);
}

// "forms" of decoders or "cases" of what follows a prompt, of continuations.json.
inline nlohmann::ordered_json Continuations(const std::string& part) {
  std::ifstream file(TextDataDir() + "/continuations.json");
  return nlohmann::ordered_json::parse(file).at(part);
}

// A tokenizer of each form of decoder, by the form's name.
inline std::map<std::string, std::unique_ptr<Tokenizer>> TokenizerForms() {
  std::map<std::string, std::unique_ptr<Tokenizer>> forms;
  const nlohmann::ordered_json all = Continuations("forms");
  for (const auto& [name, form] : all.items()) {
    forms[name] = EditedTokenizerFixture(form["fixture"], [&form](auto& tokenizer) {
      if (!form["decoder"].is_null()) tokenizer["decoder"] = form["decoder"];
    });
  }
  return forms;
}

// True if `text` has no broken character (by the definition of UTF-8, independent of the code under
// test).
inline bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    int tail = lead < 0x80 ? 0 : -1;
    if (lead >= 0xC2 && lead <= 0xDF) tail = 1;
    if (lead >= 0xE0 && lead <= 0xEF) tail = 2;
    if (lead >= 0xF0 && lead <= 0xF4) tail = 3;
    if (tail < 0 || i + static_cast<size_t>(tail) >= text.size()) return false;
    uint32_t code = tail == 0 ? lead : lead & (0x3F >> tail);
    for (int k = 1; k <= tail; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if ((byte & 0xC0) != 0x80) return false;
      code = code << 6 | (byte & 0x3F);
    }
    const bool too_long = (tail == 2 && code < 0x800) || (tail == 3 && code < 0x10000);
    if (too_long || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return false;
    i += static_cast<size_t>(tail) + 1;
  }
  return true;
}

}  // namespace diffserve
