// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/text/grammar_fixture.h"

#include <algorithm>
#include <random>
#include <utility>

#include "tests/testing/kernels/source_directory.h"

namespace diffserve {

void GrammarFixture::SetUpTestSuite() {
  tokenizer_ = Tokenizer::Load(SourceDirectory() + "/models/demo/diff").value();
  eos_ = -1;
  for (int32_t id = 0; id < tokenizer_->vocab_size() && eos_ < 0; ++id) {
    if (tokenizer_->IsSpecial(id)) eos_ = id;
  }
  vocab_size_ = tokenizer_->vocab_size() + 40;  // rows that pad the model's embedding
  compiler_ = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
}

void GrammarFixture::TearDownTestSuite() {
  compiler_.reset();
  tokenizer_.reset();
}

Result<std::unique_ptr<TokenConstraint>> GrammarFixture::Compile(Kind kind, std::string text) {
  return compiler_->Compile({kind, std::move(text), "response_format"});
}

std::unique_ptr<TokenConstraint> GrammarFixture::Make(Kind kind, std::string text) {
  Result<std::unique_ptr<TokenConstraint>> made = Compile(kind, std::move(text));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : nullptr;
}

std::string GrammarFixture::Refusal(Kind kind, std::string text) {
  const auto made = Compile(kind, std::move(text));
  if (made.ok()) return "compiled";
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(made.status().param(), "response_format");
  return made.status().message();
}

std::string GrammarFixture::SchemaRefusal(const std::string& schema) {
  return Refusal(Kind::kJsonSchema, schema);
}

std::vector<uint32_t> GrammarFixture::MaskOf(TokenConstraint& constraint) {
  std::vector<uint32_t> mask(MaskWords(vocab_size_), ~0u);
  const Status status = constraint.Fill(mask);
  EXPECT_TRUE(status.ok()) << status.message();
  return mask;
}

std::vector<int32_t> GrammarFixture::Allowed(TokenConstraint& constraint) {
  const std::vector<uint32_t> mask = MaskOf(constraint);
  std::vector<int32_t> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(mask.size() * 32); ++id) {
    if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) tokens.push_back(id);
  }
  return tokens;
}

GrammarFixture::Walk GrammarFixture::WalkOf(TokenConstraint& constraint, uint64_t seed) {
  std::mt19937_64 random(seed);
  Walk walk;
  while (walk.tokens.size() < kMaxWalk) {
    const std::vector<int32_t> allowed = Allowed(constraint);
    EXPECT_FALSE(allowed.empty());
    if (allowed.empty()) return walk;
    int32_t token = allowed[random() % allowed.size()];
    if (std::ranges::find(allowed, eos_) != allowed.end() && random() % 4 == 0) token = eos_;
    const Status status = constraint.Accept(token);
    EXPECT_TRUE(status.ok()) << status.message();
    if (token == eos_) {
      walk.ended = true;
      return walk;
    }
    EXPECT_FALSE(tokenizer_->IsSpecial(token));
    EXPECT_LT(token, tokenizer_->vocab_size());
    walk.tokens.push_back(token);
    walk.text += tokenizer_->TokenBytes(token);
  }
  return walk;
}

bool GrammarFixture::Accepts(TokenConstraint& constraint, const std::string& text) {
  const auto tokens = tokenizer_->Encode(text, false).value();
  for (const int32_t token : tokens) {
    if (!constraint.Accept(token).ok()) return false;
  }
  const std::vector<int32_t> allowed = Allowed(constraint);
  return std::ranges::find(allowed, eos_) != allowed.end();
}

bool GrammarFixture::Accepts(Kind kind, const std::string& grammar, const std::string& text) {
  const std::unique_ptr<TokenConstraint> constraint = Make(kind, grammar);
  return constraint != nullptr && Accepts(*constraint, text);
}

void GrammarFixture::ExpectWalks(Kind kind, const std::string& grammar,
                                 const std::function<bool(const std::string&)>& is_right) {
  const std::unique_ptr<TokenConstraint> constraint = Make(kind, grammar);
  ASSERT_NE(constraint, nullptr);
  int ended = 0;
  for (int i = 0; i < kWalks; ++i) {
    const Walk walk = WalkOf(*constraint->Clone(), static_cast<uint64_t>(i) + 1);
    if (!walk.ended) continue;
    ++ended;
    EXPECT_TRUE(is_right(walk.text)) << walk.text;
  }
  EXPECT_GT(ended, 0) << grammar;
}

}  // namespace diffserve
