// SPDX-License-Identifier: Apache-2.0
// Reads a line of JSON for each schema, {"schema": TEXT, "instances": [TEXT, ...]}, and writes one
// back: {"refused": REASON}, or {"milliseconds": TIME, "accepted": [BOOL, ...]}, where an instance
// is accepted if every token of its text may be drawn and the text may end there. tests/schema/
// run.py feeds it the cases of JSON Schema's own test suite.
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/grammar.h"
#include "kernels/process/check.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

class SchemaSuite {
 public:
  SchemaSuite() {
    while (!tokenizer_->IsSpecial(eos_)) ++eos_;
    compiler_ = GrammarCompiler::Make(*tokenizer_, tokenizer_->vocab_size(), {eos_}).value();
  }

  nlohmann::json Outcome(const nlohmann::json& line) {
    const auto begin = std::chrono::steady_clock::now();
    auto made = compiler_->Compile({GrammarSpec::Kind::kJsonSchema, line.at("schema"), "schema"});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (!made.ok()) {
      DS_CHECK(made.status().code() == StatusCode::kInvalidArgument, made.status().message());
      return {{"refused", made.status().message()}, {"milliseconds", took.count()}};
    }
    std::vector<bool> accepted;
    for (const std::string text : line.at("instances")) accepted.push_back(Accepts(**made, text));
    return {{"accepted", accepted}, {"milliseconds", took.count()}};
  }

 private:
  // The mask is what a draw sees.
  bool Accepts(const TokenConstraint& compiled, const std::string& text) const {
    std::vector<int32_t> tokens = tokenizer_->Encode(text, false).value();
    std::string fed;
    for (const int32_t token : tokens) fed += tokenizer_->TokenBytes(token);
    DS_CHECK(fed == text, "the tokens are those of " + text);
    tokens.push_back(eos_);
    const std::unique_ptr<TokenConstraint> constraint = compiled.Clone();
    std::vector<uint32_t> mask(MaskWords(tokenizer_->vocab_size()));
    for (const int32_t token : tokens) {
      if (const Status status = constraint->Fill(mask); !status.ok()) return false;
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) return false;
      DS_CHECK(constraint->Accept(token).ok(), "what a mask allows is accepted");
    }
    return true;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ =
      Tokenizer::Load(SourceDirectory() + "/models/demo/diff").value();
  int32_t eos_ = 0;
  std::unique_ptr<GrammarCompiler> compiler_;
};

}  // namespace
}  // namespace diffserve

int main() {
  diffserve::SchemaSuite suite;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << suite.Outcome(nlohmann::json::parse(line)).dump() << std::endl;
}
