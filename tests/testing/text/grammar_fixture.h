// SPDX-License-Identifier: Apache-2.0
// Walks through grammars over the bundled model's tokens that draw any token of a mask alike, which
// is what a model does at a high temperature.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/grammar.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {

inline constexpr int kWalks = 30;
inline constexpr int kMaxWalk = 400;  // tokens

inline constexpr char kPerson[] =
    R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":12},)"
    R"("age":{"type":"integer","minimum":0,"maximum":150},"kind":{"enum":["a","b",3,null]}},)"
    R"("required":["name","age"],"additionalProperties":false})";

class GrammarFixture : public ::testing::Test {
 public:
  using Kind = GrammarSpec::Kind;

 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  static Result<std::unique_ptr<TokenConstraint>> Compile(Kind kind, std::string text);
  static std::unique_ptr<TokenConstraint> Make(Kind kind, std::string text);
  static std::string Refusal(Kind kind, std::string text);
  static std::string SchemaRefusal(const std::string& schema);
  static std::vector<uint32_t> MaskOf(TokenConstraint& constraint);
  static std::vector<int32_t> Allowed(TokenConstraint& constraint);

  struct Walk {
    std::string text;
    std::vector<int32_t> tokens;
    bool ended = false;  // by the token that ends a text
  };
  // Ends the text where it may end once `hurry` tokens are drawn; then it prefers what closes.
  static Walk WalkOf(TokenConstraint& constraint, uint64_t seed);
  static bool Accepts(TokenConstraint& constraint, const std::string& text);
  static bool Accepts(Kind kind, const std::string& grammar, const std::string& text);
  // Every walk that ends gives a text of the form; some do.
  static void ExpectWalks(Kind kind, const std::string& grammar,
                          const std::function<bool(const std::string&)>& is_right);

  static inline std::unique_ptr<Tokenizer> tokenizer_;
  static inline std::unique_ptr<GrammarCompiler> compiler_;
  static inline int32_t eos_ = 0;
  static inline int vocab_size_ = 0;
};

}  // namespace diffserve
