// SPDX-License-Identifier: Apache-2.0
// inspect --activations: the lines of its file, and the command on a directory that holds only a
// config.json (dummy weights).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/app/commands/activation_texts.h"
#include "server/app/commands/commands.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ActivationLimits kLimits = {.vocab_size = 96, .max_tokens = 8};

TEST(ActivationTextsTest, LineHoldsTokensAndWhereTheAnswerIs) {
  const Result<ActivationText> text = ParseActivationText(
      R"({"tokens": [0, 95, 3, 4, 5], "spans": {"answer": [[0, 1], [1, 3]], "query_from": 3}})",
      kLimits);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_THAT(text->tokens, ElementsAre(0, 95, 3, 4, 5));
  ASSERT_EQ(text->spans.answer.size(), 2u);
  EXPECT_EQ(text->spans.answer[1].begin, 1);
  EXPECT_EQ(text->spans.answer[1].end, 3);
  EXPECT_EQ(text->spans.query_from, 3);
  EXPECT_TRUE(ParseActivationText(R"({"tokens": [1]})", kLimits)->spans.answer.empty());
}

TEST(ActivationTextsTest, WrongLineIsRefusedWithTheAllowedValues) {
  const auto message = [](const std::string& line) {
    return ParseActivationText(line, kLimits).status().message();
  };
  const auto with_spans = [&](const std::string& spans) {
    return message(R"({"tokens": [1, 2, 3, 4, 5], "spans": )" + spans + "}");
  };
  EXPECT_THAT(message("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[1]"), HasSubstr("allowed: an object"));
  EXPECT_EQ(message("{}"), "text and tokens are missing; allowed: one of them");
  EXPECT_EQ(message(R"({"text": "a", "tokens": [1]})"),
            "text and tokens are set; allowed: one of them");
  EXPECT_EQ(message(R"({"text": "a"})"),
            "text is set with dummy weights, which have no tokenizer; allowed: tokens");
  EXPECT_THAT(message(R"({"text": 5})"), HasSubstr("text is 5; allowed: a string"));
  EXPECT_EQ(message(R"({"tokens": [1], "token": [2]})"),
            "\"token\" is not known; allowed: text, tokens, spans");
  EXPECT_EQ(message(R"({"tokens": [1, 96]})"), "tokens: token 1 is 96; allowed: 0 to 95");
  EXPECT_THAT(message(R"({"tokens": [1, -1]})"), HasSubstr("tokens is a JSON array; allowed:"));
  EXPECT_EQ(message(R"({"tokens": []})"), "the line has 0 tokens; allowed: 1 to 8");
  EXPECT_EQ(message(R"({"tokens": [1,2,3,4,5,6,7,8,9]})"),
            "the line has 9 tokens; allowed: 1 to 8");
  EXPECT_THAT(with_spans("[1]"), HasSubstr("spans is a JSON array; allowed: an object"));
  EXPECT_EQ(with_spans(R"({"needle": [[0, 1]], "query_from": 3})"),
            "\"needle\" is not known in spans; allowed: answer, query_from");
  EXPECT_EQ(with_spans(R"({"answer": [[0, 1]]})"),
            "spans needs both \"answer\", not empty, and \"query_from\"");
  EXPECT_EQ(with_spans(R"({"answer": [], "query_from": 3})"),
            "spans needs both \"answer\", not empty, and \"query_from\"");
  for (const char* answer : {"5", "[5]", "[[1]]", "[[1, 2, 3]]", "[[1, \"2\"]]", "[[-1, 2]]"}) {
    EXPECT_THAT(with_spans(R"({"query_from": 3, "answer": )" + std::string(answer) + "}"),
                HasSubstr("allowed: a list of pairs of integers from 0 to 2147483647"))
        << answer;
  }
  EXPECT_EQ(with_spans(R"({"answer": [[0, 1]], "query_from": 5})"),
            "spans.query_from is 5; allowed: 0 to 4, a token of the line");
  EXPECT_EQ(
      with_spans(R"({"answer": [[0, 1], [3, 5]], "query_from": 4})"),
      "spans.answer has [3, 5]; allowed: begin < end within 1 to 4, after the previous range and "
      "not after query_from");
  EXPECT_THAT(with_spans(R"({"answer": [[1, 3], [2, 4]], "query_from": 4})"),
              HasSubstr("has [2, 4]; allowed: begin < end within 3 to 4"));
  EXPECT_THAT(with_spans(R"({"answer": [[2, 2]], "query_from": 4})"), HasSubstr("has [2, 2]"));
}

constexpr char kConfig[] =
    R"({"model_type": "diffllama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";

class ActivationsTest : public ::testing::Test {
 protected:
  void SetUp() override { directory_.Write("config.json", kConfig); }

  Status Run(const std::string& lines, const std::vector<std::string>& flags = {}) {
    directory_.Write("lines", lines);
    std::vector<std::string> args = {"inspect", dir_, "--load-format", "dummy", "--threads", "2"};
    args.insert(args.end(), {"--cpu-isa", std::string(NameOf(testing::EightLanes()))});
    args.insert(args.end(), {"--activations", path_});
    args.insert(args.end(), flags.begin(), flags.end());
    const Result<Options> options = ParseOptions(args);
    if (!options.ok()) return options.status();
    ::testing::internal::CaptureStdout();
    const Status status = RunCommand(*options);
    output_ = ::testing::internal::GetCapturedStdout();
    return status;
  }

  const TemporaryDirectory directory_;
  const std::string dir_ = directory_.path(), path_ = dir_ + "/lines";
  std::string output_;
};

// 40 tokens, and 20 of which the last 5 look for 2 slots.
std::string TwoLines() {
  std::string tokens;
  for (int i = 0; i < 20; ++i) tokens += (i > 0 ? ", " : "") + std::to_string(i * 37 % 96);
  return R"({"tokens": [)" + tokens + ", " + tokens + "]}\n\n" + R"({"tokens": [)" + tokens +
         R"(], "spans": {"answer": [[4, 6]], "query_from": 15}})" + "\n";
}

TEST_F(ActivationsTest, FiguresCoverEveryTokenLayerAndHead) {
  const Status status = Run(TwoLines(), {"--json", "--max-num-batched-tokens", "16"});
  ASSERT_TRUE(status.ok()) << status.message();
  const auto object = nlohmann::json::parse(output_, nullptr, false);
  ASSERT_TRUE(object.is_object()) << output_;
  EXPECT_EQ(object["texts"], 2);
  EXPECT_EQ(object["tokens"], 60);
  ASSERT_EQ(object["layers"].size(), 2u);
  constexpr int kSeen = 40 * 41 / 2 + 20 * 21 / 2;
  for (const auto& layer : object["layers"]) {
    EXPECT_EQ(layer["logits_1"]["count"], 2 * kSeen);
    EXPECT_EQ(layer["logits_2"]["count"], 2 * kSeen);
    EXPECT_EQ(layer["logits"]["count"], 4 * kSeen);
    EXPECT_EQ(layer["hidden"]["count"], 60 * 64);
    ASSERT_EQ(layer["heads"].size(), 2u);
    for (const auto& head : layer["heads"]) {
      EXPECT_EQ(head["answer"]["queries"], 5);
      for (const char* name : {"w", "p1", "p2"}) {
        EXPECT_GT(head["answer"][name], 0.0);
        EXPECT_LT(head["answer"][name], 1.0);
      }
      EXPECT_GT(head["kappa"], 1.0);
    }
  }
  EXPECT_EQ(object["all"]["logits"]["count"], 2 * 4 * kSeen);
  const auto& hidden = object["all"]["hidden"];
  EXPECT_GE(hidden["top_1"], hidden["top_2"]);
  EXPECT_GT(hidden["top_100"], hidden["median"]);
}

TEST_F(ActivationsTest, TableHasARowForEachLayerAndHead) {
  const Status status = Run(TwoLines());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(output_, HasSubstr("texts                2, 60 tokens, "));
  for (const char* row : {"\nall logits  ", "\nlayer 1   map 2  ", "\nlayer 1 hidden  ",
                          "\n  head 1  ", " answer: w        p1        p2\n"})
    EXPECT_THAT(output_, HasSubstr(row));
  ASSERT_TRUE(Run(R"({"tokens": [1, 2]})").ok());
  EXPECT_THAT(output_, ::testing::Not(HasSubstr("answer")));
  EXPECT_THAT(output_, HasSubstr("         -")) << "there are not 100 of each";
}

TEST_F(ActivationsTest, RefusalNamesFileAndLine) {
  const auto refusal = [&](const std::string& lines, const std::vector<std::string>& flags = {}) {
    const Status status = Run(lines, flags);
    EXPECT_TRUE(status.param().starts_with("--")) << status.message();
    return status.message();
  };
  const std::string good = "{\"tokens\": [1, 2]}\n";
  EXPECT_EQ(refusal(good + "\n{\"tokens\": [1, 96]}\n"),
            "--activations " + path_ + ":3: tokens: token 1 is 96; allowed: 0 to 95");
  EXPECT_EQ(refusal(good + good, {"--max-model-len", "1"}),
            "--activations " + path_ + ":1: the line has 2 tokens; allowed: 1 to 1");
  EXPECT_EQ(refusal("\n \n"), "--activations " + path_ + ": has no line");
  EXPECT_EQ(refusal(good, {"--activations", "/nonexistent/lines"}),
            "--activations /nonexistent/lines: no such file");
  EXPECT_EQ(refusal(good, {"--attention-logit-bits", "6"}),
            "--attention-logit-bits is 6 with --activations; allowed: none");
}

}  // namespace
}  // namespace diffserve
