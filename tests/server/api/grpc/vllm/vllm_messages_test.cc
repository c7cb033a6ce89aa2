// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/grpc/vllm/messages.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using GrammarKind = GrammarSpec::Kind;
using Messages = std::deque<vllm_v1::GenerateResponse>;

vllm_v1::GenerateRequest IdsOf(const std::vector<uint32_t>& ids) {
  vllm_v1::GenerateRequest message;
  message.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
  return message;
}

SamplingSpec Defaults() {
  SamplingSpec defaults;
  defaults.temperature = 0.3f;
  defaults.top_p = 0.4f;
  defaults.seed = 77;
  return defaults;
}

Result<VllmRequest> Read(const vllm_v1::GenerateRequest& message) {
  return FromProto(message, Defaults());
}

TEST(VllmMessagesTest, UnsetParametersHaveVllmsDefaults) {
  const Result<VllmRequest> read = Read(IdsOf({5, 6}));
  ASSERT_TRUE(read.ok()) << read.status().message();
  const GenerateRequest& generate = read->generate;
  EXPECT_THAT(std::get<std::vector<int32_t>>(generate.prompts.at(0)), ElementsAre(5, 6));
  EXPECT_EQ(generate.sampling.temperature, 1);
  EXPECT_EQ(generate.sampling.top_p, 1);
  EXPECT_EQ(generate.sampling.top_k, 0);
  EXPECT_EQ(generate.sampling.repetition_penalty, 1);
  EXPECT_EQ(generate.sampling.seed, 77u) << "the server's own";
  EXPECT_EQ(generate.max_tokens, std::nullopt);
  EXPECT_EQ(generate.n, 1);
  EXPECT_EQ(generate.sampling.num_logprobs, -1);
  EXPECT_EQ(generate.sampling.prompt_logprobs, -1);
  EXPECT_FALSE(generate.skip_special_tokens || read->stream || generate.grammar);
}

TEST(VllmMessagesTest, EveryParameterIsRead) {
  vllm_v1::GenerateRequest message;
  message.set_text("hello");
  message.set_request_id("mine");
  message.set_stream(true);
  vllm_v1::SamplingParams& params = *message.mutable_sampling_params();
  params.set_temperature(0);
  params.set_top_p(0.5f);
  params.set_top_k(7);
  params.set_min_p(0.1f);
  params.set_frequency_penalty(0.2f);
  params.set_presence_penalty(0.3f);
  params.set_repetition_penalty(1.5f);
  params.set_max_tokens(0);
  params.set_min_tokens(2);
  params.add_stop("x");
  params.add_stop_token_ids(9);
  params.set_skip_special_tokens(true);
  params.set_ignore_eos(true);
  params.set_n(3);
  params.set_logprobs(2);
  params.set_prompt_logprobs(0);
  params.set_seed(-1);
  params.set_include_stop_str_in_output(true);
  (*params.mutable_logit_bias())[4] = 1.5f;
  params.set_truncate_prompt_tokens(-1);
  const Result<VllmRequest> read = Read(message);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const GenerateRequest& generate = read->generate;
  EXPECT_EQ(std::get<std::string>(generate.prompts.at(0)), "hello");
  EXPECT_EQ(generate.request_id, "mine");
  EXPECT_TRUE(read->stream);
  EXPECT_EQ(generate.sampling.temperature, 0);
  EXPECT_EQ(generate.sampling.top_p, 0.5f);
  EXPECT_EQ(generate.sampling.top_k, 7);
  EXPECT_EQ(generate.sampling.min_p, 0.1f);
  EXPECT_EQ(generate.sampling.frequency_penalty, 0.2f);
  EXPECT_EQ(generate.sampling.presence_penalty, 0.3f);
  EXPECT_EQ(generate.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(generate.max_tokens, 0);
  EXPECT_EQ(generate.sampling.min_tokens, 2);
  EXPECT_THAT(generate.stop, ElementsAre("x"));
  EXPECT_THAT(generate.sampling.stop_token_ids, ElementsAre(9));
  EXPECT_TRUE(generate.skip_special_tokens && generate.sampling.ignore_eos);
  EXPECT_TRUE(generate.include_stop_str_in_output);
  EXPECT_EQ(generate.n, 3);
  EXPECT_EQ(generate.sampling.num_logprobs, 2);
  EXPECT_EQ(generate.sampling.prompt_logprobs, 0);
  EXPECT_EQ(generate.sampling.seed, ~uint64_t{0});
  EXPECT_THAT(generate.sampling.logit_bias, ElementsAre(std::pair(4, 1.5f)));
  EXPECT_EQ(generate.truncate_prompt_tokens, -1);
}

TEST(VllmMessagesTest, EachConstraintIsMapped) {
  const auto form_of = [](const auto& set) {
    vllm_v1::GenerateRequest message = IdsOf({5});
    set(*message.mutable_sampling_params());
    const Result<VllmRequest> read = Read(message);
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read->generate.grammar.value_or(GrammarSpec{GrammarKind::kJsonObject, "none", "none"});
  };
  const auto expect = [](const GrammarSpec& form, GrammarKind kind, const std::string& text,
                         const std::string& param) {
    EXPECT_EQ(form.kind, kind) << param;
    EXPECT_EQ(form.text, text) << param;
    EXPECT_EQ(form.param, param);
  };
  expect(form_of([](auto& p) { p.set_json_schema("{}"); }), GrammarKind::kJsonSchema, "{}",
         "json_schema");
  expect(form_of([](auto& p) { p.set_regex("a+"); }), GrammarKind::kRegex, "a+", "regex");
  expect(form_of([](auto& p) { p.set_grammar("root ::= \"a\""); }), GrammarKind::kEbnf,
         "root ::= \"a\"", "grammar");
  expect(form_of([](auto& p) { p.set_grammar("start: \"a\""); }), GrammarKind::kLark,
         "start: \"a\"", "grammar");
  expect(form_of([](auto& p) { p.set_structural_tag("{}"); }), GrammarKind::kStructuralTag, "{}",
         "structural_tag");
  expect(form_of([](auto& p) { p.set_json_object(true); }), GrammarKind::kJsonObject, "",
         "json_object");
  expect(form_of([](auto& p) { p.set_json_object(false); }), GrammarKind::kJsonObject, "none",
         "none");
  expect(form_of([](auto& p) { p.mutable_choice()->add_choices("a\"b"); }), GrammarKind::kChoice,
         R"(["a\"b"])", "choice");
}

TEST(VllmMessagesTest, UnsupportedFieldsAreRefusedByName) {
  const auto refused_for = [](const vllm_v1::GenerateRequest& message, StatusCode code) {
    const Result<VllmRequest> read = Read(message);
    EXPECT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), code) << read.status().message();
    return read.status().param();
  };
  vllm_v1::GenerateRequest message = IdsOf({5});
  message.mutable_mm_inputs();
  EXPECT_EQ(refused_for(message, StatusCode::kUnimplemented), "mm_inputs");
  message = IdsOf({5});
  message.mutable_kv_transfer_params();
  EXPECT_EQ(refused_for(message, StatusCode::kUnimplemented), "kv_transfer_params");
  message = IdsOf({5});
  message.set_kv_transfer_params_json("{}");
  EXPECT_EQ(refused_for(message, StatusCode::kUnimplemented), "kv_transfer_params_json");
  message = IdsOf({5});
  message.set_data_parallel_rank(1);
  EXPECT_EQ(refused_for(message, StatusCode::kInvalidArgument), "data_parallel_rank");
  message.set_data_parallel_rank(0);
  EXPECT_TRUE(Read(message).ok());
  EXPECT_EQ(refused_for({}, StatusCode::kInvalidArgument), "input");
  EXPECT_EQ(refused_for(IdsOf({1u << 31}), StatusCode::kInvalidArgument), "input_ids");
}

TEST(VllmMessagesTest, NumbersOutOfRangeAreRefusedByName) {
  const auto refused_for = [](const auto& set) {
    vllm_v1::GenerateRequest message = IdsOf({5});
    set(*message.mutable_sampling_params());
    const Result<VllmRequest> read = Read(message);
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    return read.status().param();
  };
  EXPECT_EQ(refused_for([](auto& p) { p.set_max_tokens(1u << 31); }), "max_tokens");
  EXPECT_EQ(refused_for([](auto& p) { p.set_min_tokens(1u << 31); }), "min_tokens");
  EXPECT_EQ(refused_for([](auto& p) { p.set_top_k(~0u); }), "top_k");
  EXPECT_EQ(refused_for([](auto& p) { p.set_n(~0u); }), "n");
  EXPECT_EQ(refused_for([](auto& p) { p.add_stop_token_ids(~0u); }), "stop_token_ids");
  EXPECT_EQ(refused_for([](auto& p) { p.set_logprobs(-1); }), "logprobs");
  EXPECT_EQ(refused_for([](auto& p) { p.set_prompt_logprobs(21); }), "prompt_logprobs");
  EXPECT_EQ(refused_for([](auto& p) { p.mutable_choice(); }), "choice");
}

// Two outputs to the prompt {5, 6}, with scores of both.
class VllmAnswerTest : public ::testing::Test {
 protected:
  void Begin(bool stream) {
    VllmRequest request;
    request.stream = stream;
    request.generate.n = 2;
    request.generate.sampling.num_logprobs = 1;
    request.generate.sampling.prompt_logprobs = 1;
    answer_.emplace(request);
    Take(ResponseStarted{{PromptInfo{SharedTokens{5, 6}, ""}}});
    const auto scores = std::make_shared<const std::vector<SampleResult>>(
        std::vector<SampleResult>{Token(6, -0.5f)});
    for (const int choice : {0, 1}) Take(ResponsePromptLogprobs{choice, scores, 2});
  }
  static SampleResult Token(int32_t id, float logprob) {
    SampleResult token;
    token.token = id;
    token.logprob = logprob;
    token.top_logprobs = {{id + 1, logprob / 2}};
    return token;
  }
  void Take(ResponseEvent event) { answer_->Append(event, &messages_); }
  void TakeAll() {
    Take(ResponseDelta{0, "a", {Token(1, -1)}, FinishReason::kNone, {}});
    Take(ResponseDelta{1, "b", {Token(2, -2)}, FinishReason::kStop, "stop here"});
    Take(ResponseDelta{0, "c", {Token(3, -3)}, FinishReason::kLength, {}});
    Take(ResponseDone{{}, {.prompt_tokens = 2, .completion_tokens = 3, .cached_tokens = 1}});
  }

  std::optional<VllmAnswer> answer_;
  Messages messages_;
};

TEST_F(VllmAnswerTest, WholeAnswerIsOneMessagePerOutput) {
  Begin(/*stream=*/false);
  TakeAll();
  ASSERT_EQ(messages_.size(), 2u);
  const vllm_v1::GenerateComplete& first = messages_[0].complete();
  EXPECT_EQ(first.index(), 0u);
  EXPECT_THAT(first.output_ids(), ElementsAre(1, 3));
  EXPECT_EQ(first.finish_reason(), "length");
  EXPECT_EQ(first.prompt_tokens(), 2u);
  EXPECT_EQ(first.completion_tokens(), 2u);
  EXPECT_EQ(first.cached_tokens(), 1u);
  EXPECT_THAT(first.output_logprobs().token_ids(), ElementsAre(1, 3));
  EXPECT_THAT(first.output_logprobs().token_logprobs(), ElementsAre(-1, -3));
  EXPECT_THAT(first.output_logprobs().top_logprobs(1).token_ids(), ElementsAre(4));
  const vllm_v1::InputLogProbs& prompt = first.input_logprobs();
  EXPECT_THAT(prompt.token_ids(), ElementsAre(5, 6));
  ASSERT_EQ(prompt.token_logprobs_size(), 2);
  EXPECT_FALSE(prompt.token_logprobs(0).has_value());
  EXPECT_THAT(prompt.token_logprobs(1).value(), FloatEq(-0.5f));
  EXPECT_EQ(prompt.top_logprobs(0).token_ids_size(), 0);
  EXPECT_THAT(prompt.top_logprobs(1).token_ids(), ElementsAre(7));
  const vllm_v1::GenerateComplete& second = messages_[1].complete();
  EXPECT_EQ(second.index(), 1u);
  EXPECT_EQ(second.finish_reason(), "stop");
  EXPECT_EQ(second.matched_stop_str(), "stop here");
}

TEST_F(VllmAnswerTest, StreamIsChunksAndThenACompleteMessagePerOutput) {
  Begin(/*stream=*/true);
  TakeAll();
  ASSERT_EQ(messages_.size(), 5u);
  std::vector<uint32_t> indices;
  for (int i = 0; i < 3; ++i) {
    const vllm_v1::GenerateStreamChunk& chunk = messages_[static_cast<size_t>(i)].chunk();
    indices.push_back(chunk.index());
    EXPECT_THAT(chunk.token_ids(), ElementsAre(i + 1));
    EXPECT_EQ(chunk.completion_tokens(), 1u);
    EXPECT_EQ(chunk.prompt_tokens(), 2u);
    EXPECT_THAT(chunk.output_logprobs().token_ids(), ElementsAre(i + 1));
    EXPECT_EQ(chunk.has_input_logprobs(), i < 2) << "in the first chunk of an output";
  }
  EXPECT_THAT(indices, ElementsAre(0, 1, 0));
  const vllm_v1::GenerateComplete& first = messages_[3].complete();
  EXPECT_EQ(first.output_ids_size(), 0);
  EXPECT_FALSE(first.has_output_logprobs() || first.has_input_logprobs());
  EXPECT_EQ(first.completion_tokens(), 2u);
  EXPECT_EQ(first.cached_tokens(), 1u);
  EXPECT_EQ(first.finish_reason(), "length");
  EXPECT_EQ(messages_[4].complete().matched_stop_str(), "stop here");
}

TEST_F(VllmAnswerTest, StopTokenIsReportedAndAnErrorIsNotAMessage) {
  Begin(/*stream=*/false);
  Take(ResponseDelta{0, "", {Token(1, -1)}, FinishReason::kStop, int32_t{1}});
  Take(ResponseDelta{1, "", {}, FinishReason::kCancelled, {}});
  Take(ResponseDone{});
  EXPECT_EQ(messages_.at(0).complete().matched_token_id(), 1u);
  EXPECT_EQ(messages_.at(1).complete().finish_reason(), "abort");
  messages_.clear();
  Begin(/*stream=*/false);
  Take(ResponseDone{Status(StatusCode::kCancelled, "cancelled"), {}});
  EXPECT_TRUE(messages_.empty());
}

TEST(VllmMessagesTest, LoadsEqualTheEngines) {
  EngineStats stats;
  stats.running = 3;
  stats.waiting = 2;
  stats.pages_used = 10;
  stats.pages_total = 40;
  stats.prefix_queries = 100;
  stats.prefix_hits = 25;
  EngineOptions engine;
  engine.page_size = 16;
  engine.max_num_seqs = 6;
  vllm_v1::GetLoadsResponse loads;
  ASSERT_TRUE(FillLoads({}, stats, engine, loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  const vllm_v1::SchedulerLoad& load = loads.loads(0);
  EXPECT_EQ(load.num_running_reqs(), 3);
  EXPECT_EQ(load.num_waiting_reqs(), 2);
  EXPECT_EQ(load.num_total_reqs(), 5);
  EXPECT_EQ(load.num_used_tokens(), 160);
  EXPECT_EQ(load.max_total_num_tokens(), 640);
  EXPECT_EQ(load.token_usage(), 0.25);
  EXPECT_EQ(load.cache_hit_rate(), 0.25);
  EXPECT_EQ(load.utilization(), 0.5);
  EXPECT_EQ(loads.timestamp().size(), std::string("2026-01-02T03:04:05+00:00").size());
  vllm_v1::GetLoadsRequest other;
  other.set_dp_rank(1);
  EXPECT_EQ(FillLoads(other, stats, engine, loads).param(), "dp_rank");
}

}  // namespace
}  // namespace diffserve
