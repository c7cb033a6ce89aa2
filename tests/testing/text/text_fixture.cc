// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/text/text_fixture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

namespace diffserve {

std::vector<std::string> TokenizerFixtures() {
  return {"byte_bpe", "sentencepiece", "metaspace", "wordpiece", "suffix_bpe"};
}

std::unique_ptr<Tokenizer> LoadTokenizerFixture(const std::string& name) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(TextDataDir() + "/" + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::unique_ptr<Tokenizer> EditedTokenizerFixture(const std::string& name,
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

namespace {

nlohmann::ordered_json PartOf(const std::string& name, const std::string& part) {
  std::ifstream file(TextDataDir() + "/" + name);
  nlohmann::ordered_json found = nlohmann::ordered_json::parse(file).at(part);
  EXPECT_FALSE(found.empty()) << name << ": " << part;
  return found;
}

}  // namespace

nlohmann::ordered_json TextGolden(const std::string& part) { return PartOf("golden.json", part); }

nlohmann::ordered_json Continuations(const std::string& part) {
  return PartOf("continuations.json", part);
}

std::map<std::string, std::unique_ptr<Tokenizer>> TokenizerForms() {
  std::map<std::string, std::unique_ptr<Tokenizer>> forms;
  const nlohmann::ordered_json all = Continuations("forms");
  for (const auto& [name, form] : all.items()) {
    forms[name] = EditedTokenizerFixture(form["fixture"], [&form](auto& tokenizer) {
      if (!form["decoder"].is_null()) tokenizer["decoder"] = form["decoder"];
    });
  }
  return forms;
}

bool IsValidUtf8(std::string_view text) {
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
