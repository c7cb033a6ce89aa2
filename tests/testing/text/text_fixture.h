// SPDX-License-Identifier: Apache-2.0
// The small tokenizers of tests/text/data, and what Hugging Face's code makes with them
// (golden.json).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {

inline std::string TextDataDir() { return SourceDirectory() + "/tests/text/data"; }

std::vector<std::string> TokenizerFixtures();
std::unique_ptr<Tokenizer> LoadTokenizerFixture(const std::string& name);

using TokenizerEdit = std::function<void(nlohmann::ordered_json& tokenizer)>;

// A fixture with one part replaced.
std::unique_ptr<Tokenizer> EditedTokenizerFixture(const std::string& name,
                                                  const TokenizerEdit& edit);

// "encode", "decode" or "template" of golden.json, with keys in the order of the file: templates
// show it.
nlohmann::ordered_json TextGolden(const std::string& part);

// "forms" of decoders or "cases" of what follows a prompt, of continuations.json.
nlohmann::ordered_json Continuations(const std::string& part);

// A tokenizer of each form of decoder, by the form's name.
std::map<std::string, std::unique_ptr<Tokenizer>> TokenizerForms();

// True if `text` has no broken character (by the definition of UTF-8, independent of the code under
// test).
bool IsValidUtf8(std::string_view text);

}  // namespace diffserve
