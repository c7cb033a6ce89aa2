// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/api/grpc/vllm_native/messages.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsEmpty;
using GrammarKind = GrammarSpec::Kind;

native_v1::GenerateRequest NativeIdsOf(const std::vector<uint32_t>& ids) {
  native_v1::GenerateRequest message;
  message.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  return message;
}

SamplingSpec ModelsDefaults() {
  SamplingSpec defaults;
  defaults.temperature = 0.25f;
  defaults.top_p = 0.5f;
  defaults.top_k = 20;
  defaults.min_p = 0.125f;
  defaults.repetition_penalty = 1.5f;
  defaults.seed = 77;
  return defaults;
}

Result<NativeRequest> ReadNative(const native_v1::GenerateRequest& message, bool whole = false) {
  return FromProto(message, ModelsDefaults(), whole);
}

TEST(NativeMessagesTest, UnsetParametersAreTheModelsDefaults) {
  native_v1::GenerateRequest message = NativeIdsOf({5, 6});
  message.mutable_sampling();
  message.mutable_decoding();
  message.mutable_stopping();
  message.mutable_response();
  message.mutable_kv();
  const Result<NativeRequest> read = ReadNative(message);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const GenerateRequest& generate = read->generate;
  EXPECT_THAT(std::get<std::vector<int32_t>>(generate.prompts.at(0)), ElementsAre(5, 6));
  EXPECT_EQ(generate.sampling.temperature, 0.25f);
  EXPECT_EQ(generate.sampling.top_p, 0.5f);
  EXPECT_EQ(generate.sampling.top_k, 20);
  EXPECT_EQ(generate.sampling.min_p, 0.125f);
  EXPECT_EQ(generate.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(generate.sampling.seed, 77u);
  EXPECT_EQ(generate.max_tokens, std::nullopt);
  EXPECT_EQ(generate.truncate_prompt_tokens, std::nullopt);
  EXPECT_EQ(generate.n, 1);
  EXPECT_EQ(generate.sampling.num_logprobs, -1);
  EXPECT_EQ(generate.sampling.prompt_logprobs, -1);
  EXPECT_TRUE(generate.skip_special_tokens && read->shows_text && !generate.grammar);
  EXPECT_FALSE(read->shows_token_ids || read->shows_prompt_ids || read->whole);
}

native_v1::GenerateRequest FullNativeRequest() {
  native_v1::GenerateRequest message;
  message.set_text("hello");
  message.set_request_id("mine");
  message.set_model("other-name");
  message.set_temperature(0);
  message.mutable_sampling()->set_num_sequences(3);
  message.mutable_sampling()->set_top_k(7);
  message.mutable_sampling()->set_top_p(0.75f);
  message.mutable_sampling()->set_min_p(0.5f);
  message.mutable_sampling()->set_seed(-1);
  native_v1::DecodingParameters& decoding = *message.mutable_decoding();
  decoding.set_presence_penalty(0.25f);
  decoding.set_frequency_penalty(-0.25f);
  decoding.set_repetition_penalty(1.25f);
  (*decoding.mutable_logit_bias())[9] = -2;
  (*decoding.mutable_logit_bias())[4] = 1.5f;
  decoding.add_allowed_token_ids(8);
  native_v1::StoppingCriteria& stopping = *message.mutable_stopping();
  stopping.set_max_new_tokens(12);
  stopping.set_min_new_tokens(2);
  stopping.add_stop_token_ids(9);
  stopping.add_stop_strings("x");
  stopping.set_include_stop_strings(true);
  stopping.set_ignore_eos(true);
  native_v1::ResponseOptions& response = *message.mutable_response();
  response.set_prompt_token_ids(true);
  response.set_prompt_logprobs(true);
  response.set_output_text(false);
  response.set_output_token_ids(true);
  response.set_output_logprobs(true);
  response.mutable_output_candidates()->set_top_n(2);
  response.set_skip_special_tokens(false);
  message.mutable_kv()->set_cache_salt("salt");
  message.set_truncate_prompt_tokens(100);
  message.set_priority(-3);
  message.set_session_id("ignored");
  return message;
}

TEST(NativeMessagesTest, EveryParameterIsRead) {
  const Result<NativeRequest> read = ReadNative(FullNativeRequest());
  ASSERT_TRUE(read.ok()) << read.status().message();
  const GenerateRequest& generate = read->generate;
  const SamplingSpec& sampling = generate.sampling;
  EXPECT_EQ(std::get<std::string>(generate.prompts.at(0)), "hello");
  EXPECT_EQ(generate.request_id, "mine");
  EXPECT_EQ(generate.model, "other-name");
  EXPECT_EQ(generate.n, 3);
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.top_p, 0.75f);
  EXPECT_EQ(sampling.min_p, 0.5f);
  EXPECT_EQ(sampling.seed, ~uint64_t{0});
  EXPECT_EQ(sampling.presence_penalty, 0.25f);
  EXPECT_EQ(sampling.frequency_penalty, -0.25f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_THAT(sampling.logit_bias, ElementsAre(std::pair(4, 1.5f), std::pair(9, -2.0f)));
  EXPECT_THAT(generate.allowed_token_ids, ElementsAre(8));
  EXPECT_EQ(generate.max_tokens, 12);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(9));
  EXPECT_THAT(generate.stop, ElementsAre("x"));
  EXPECT_TRUE(generate.include_stop_str_in_output && sampling.ignore_eos);
  EXPECT_EQ(sampling.prompt_logprobs, 0);
  EXPECT_EQ(sampling.num_logprobs, 2);
  EXPECT_TRUE(read->shows_prompt_ids && read->shows_token_ids);
  EXPECT_FALSE(read->shows_text || generate.skip_special_tokens);
  EXPECT_EQ(generate.cache_salt, "salt");
  EXPECT_EQ(generate.truncate_prompt_tokens, 100);
  EXPECT_EQ(generate.priority, -3);
}

TEST(NativeMessagesTest, EachStructureIsMapped) {
  const auto form_of = [](const auto& set) {
    native_v1::GenerateRequest message = NativeIdsOf({5});
    set(*message.mutable_decoding());
    const Result<NativeRequest> read = ReadNative(message);
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read->generate.grammar.value_or(GrammarSpec{GrammarKind::kJsonObject, "none", "none"});
  };
  const auto expect = [](const GrammarSpec& form, GrammarKind kind, const std::string& text,
                         const std::string& param) {
    EXPECT_EQ(form.kind, kind) << param;
    EXPECT_EQ(form.text, text) << param;
    EXPECT_EQ(form.param, param);
  };
  expect(form_of([](auto& d) { d.set_json("{}"); }), GrammarKind::kJsonSchema, "{}", "json");
  expect(form_of([](auto& d) { d.set_regex("a+"); }), GrammarKind::kRegex, "a+", "regex");
  expect(form_of([](auto& d) { d.set_grammar("root ::= \"a\""); }), GrammarKind::kEbnf,
         "root ::= \"a\"", "grammar");
  expect(form_of([](auto& d) { d.set_grammar("start: \"a\""); }), GrammarKind::kLark,
         "start: \"a\"", "grammar");
  expect(form_of([](auto& d) { d.set_structural_tag("{}"); }), GrammarKind::kStructuralTag, "{}",
         "structural_tag");
  expect(form_of([](auto& d) { d.set_json_object(true); }), GrammarKind::kJsonObject, "",
         "json_object");
  expect(form_of([](auto& d) { d.set_json_object(false); }), GrammarKind::kJsonObject, "none",
         "none");
  expect(form_of([](auto& d) { d.mutable_choice()->add_choices("a\"b"); }), GrammarKind::kChoice,
         R"(["a\"b"])", "choice");
}

TEST(NativeMessagesTest, WhatIsNotServedIsRefusedByName) {
  const auto refused_for = [](const auto& set) {
    native_v1::GenerateRequest message = NativeIdsOf({5});
    set(message);
    const Result<NativeRequest> read = ReadNative(message);
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument) << read.status().message();
    return read.status().param();
  };
  EXPECT_EQ(refused_for([](auto& m) { m.clear_token_ids(); }), "prompt");
  EXPECT_EQ(refused_for([](auto& m) { m.add_media(); }), "media");
  EXPECT_EQ(refused_for([](auto& m) { m.set_lora_name("a"); }), "lora_name");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_kv()->mutable_kv_transfer_params(); }),
            "kv_transfer_params");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_kv()->mutable_ec_transfer_params(); }),
            "ec_transfer_params");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_kv()->set_bypass_prefix_cache(true); }),
            "bypass_prefix_cache");
  const auto candidates = [&](const auto& set) {
    return refused_for([&](auto& m) {
      m.mutable_response()->set_output_logprobs(true);
      set(*m.mutable_response()->mutable_output_candidates());
    });
  };
  EXPECT_EQ(candidates([](auto& c) { c.set_all(true); }), "output_candidates");
  EXPECT_EQ(candidates([](auto& c) { c.mutable_token_ids(); }), "output_candidates");
  EXPECT_EQ(candidates([](auto& c) { c.set_top_n(21); }), "output_candidates");
  EXPECT_EQ(
      refused_for([](auto& m) { m.mutable_response()->mutable_prompt_candidates()->set_top_n(1); }),
      "prompt_candidates")
      << "without prompt_logprobs";
}

TEST(NativeMessagesTest, NumbersOutOfRangeAreRefusedByName) {
  const auto refused_for = [](const auto& set) {
    native_v1::GenerateRequest message = NativeIdsOf({5});
    set(message);
    const Result<NativeRequest> read = ReadNative(message);
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    return read.status().param();
  };
  constexpr uint32_t kTooLarge = 1u << 31;
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_token_ids()->add_ids(kTooLarge); }), "token_ids");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_sampling()->set_top_k(kTooLarge); }), "top_k");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_sampling()->set_num_sequences(kTooLarge); }),
            "num_sequences");
  EXPECT_EQ(refused_for([](auto& m) { (*m.mutable_decoding()->mutable_logit_bias())[~0u] = 1; }),
            "logit_bias");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_decoding()->add_allowed_token_ids(~0u); }),
            "allowed_token_ids");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_decoding()->mutable_choice(); }), "choice");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_stopping()->set_max_new_tokens(kTooLarge); }),
            "max_new_tokens");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_stopping()->set_min_new_tokens(kTooLarge); }),
            "min_new_tokens");
  EXPECT_EQ(refused_for([](auto& m) { m.mutable_stopping()->add_stop_token_ids(~0u); }),
            "stop_token_ids");
  EXPECT_EQ(refused_for([](auto& m) { m.set_truncate_prompt_tokens(~0u); }),
            "truncate_prompt_tokens");
}

TEST(NativeMessagesTest, OnlyAStreamHasSeveralSequences) {
  native_v1::GenerateRequest message = NativeIdsOf({5});
  message.mutable_sampling()->set_num_sequences(2);
  EXPECT_TRUE(ReadNative(message, /*whole=*/false).ok());
  EXPECT_EQ(ReadNative(message, /*whole=*/true).status().param(), "num_sequences");
}

// The answer to the prompt {5, 6}, with scores of both.
class NativeAnswerTest : public ::testing::Test {
 protected:
  void Begin(bool whole, int n = 1) {
    NativeRequest request;
    request.whole = whole;
    request.shows_token_ids = request.shows_prompt_ids = true;
    request.generate.n = n;
    request.generate.sampling.num_logprobs = 1;
    answer_.emplace(request);
    Take(ResponseStarted{{PromptInfo{SharedTokens{5, 6}, ""}}});
    const auto scores = std::make_shared<const std::vector<SampleResult>>(
        std::vector<SampleResult>{Scored(6, -0.5f)});
    for (int choice = 0; choice < n; ++choice) Take(ResponsePromptLogprobs{choice, scores, n});
  }
  // The token is the second of two alternatives.
  static SampleResult Scored(int32_t id, float logprob) {
    SampleResult token;
    token.token = id;
    token.logprob = logprob;
    token.top_logprobs = {{id + 1, logprob / 2}, {id, logprob}};
    return token;
  }
  void Take(ResponseEvent event) { answer_->Append(event, &messages_); }

  std::optional<NativeAnswer> answer_;
  std::deque<native_v1::GenerateResponse> messages_;
};

TEST_F(NativeAnswerTest, StreamHasAMessagePerPiece) {
  Begin(/*whole=*/false);
  EXPECT_THAT(messages_, IsEmpty());
  Take(ResponseDelta{0, "a", {Scored(1, -1)}, FinishReason::kNone, {}});
  Take(ResponseDelta{0, "held", {}, FinishReason::kNone, {}});
  Take(ResponseDelta{0, " b", {Scored(3, -3), Scored(4, -4)}, FinishReason::kLength, {}});
  Take(ResponseDone{});
  ASSERT_EQ(messages_.size(), 2u);
  const native_v1::PromptInfo& prompt = messages_[0].prompt_info();
  EXPECT_EQ(prompt.num_prompt_tokens(), 2u);
  EXPECT_THAT(prompt.token_ids(), ElementsAre(5, 6));
  EXPECT_THAT(prompt.logprobs(), ElementsAre(0, FloatEq(-0.5f)));
  EXPECT_THAT(prompt.ranks(), ElementsAre(0, 2));
  ASSERT_EQ(prompt.candidate_tokens_size(), 2);
  EXPECT_EQ(prompt.candidate_tokens(0).tokens_size(), 0);
  EXPECT_EQ(prompt.candidate_tokens(1).tokens(0).id(), 7u);
  EXPECT_FALSE(messages_[1].has_prompt_info());

  const native_v1::SequenceOutput& first = messages_[0].outputs();
  EXPECT_EQ(first.text(), "a");
  EXPECT_EQ(first.num_tokens(), 1u);
  EXPECT_THAT(first.token_ids(), ElementsAre(1));
  EXPECT_FALSE(first.has_finish_info());
  const native_v1::SequenceOutput& last = messages_[1].outputs();
  EXPECT_EQ(last.text(), "held b") << "text without a token goes out with the next one";
  EXPECT_EQ(last.num_tokens(), 2u);
  EXPECT_THAT(last.token_ids(), ElementsAre(3, 4));
  EXPECT_THAT(last.logprobs(), ElementsAre(-3, -4));
  EXPECT_THAT(last.ranks(), ElementsAre(2, 2));
  ASSERT_EQ(last.candidate_tokens_size(), 2);
  ASSERT_EQ(last.candidate_tokens(1).tokens_size(), 1) << "the token itself is no alternative";
  EXPECT_EQ(last.candidate_tokens(1).tokens(0).id(), 5u);
  EXPECT_EQ(last.candidate_tokens(1).tokens(0).rank(), 1u);
  EXPECT_EQ(last.candidate_tokens(1).tokens(0).logprob(), -2);
  EXPECT_EQ(last.finish_info().num_output_tokens(), 3u);
  EXPECT_EQ(last.finish_info().finish_reason(), native_v1::FinishInfo::LENGTH);
  EXPECT_EQ(last.finish_info().stop_reason_case(), native_v1::FinishInfo::STOP_REASON_NOT_SET);
}

TEST_F(NativeAnswerTest, WholeAnswerIsTheStreamsInOneMessage) {
  Begin(/*whole=*/true);
  Take(ResponseDelta{0, "a", {Scored(1, -1)}, FinishReason::kNone, {}});
  Take(ResponseDelta{0, "b", {Scored(3, -3)}, FinishReason::kStop, "stop here"});
  EXPECT_THAT(messages_, IsEmpty());
  Take(ResponseDone{});
  ASSERT_EQ(messages_.size(), 1u);
  EXPECT_THAT(messages_[0].prompt_info().token_ids(), ElementsAre(5, 6));
  const native_v1::SequenceOutput& output = messages_[0].outputs();
  EXPECT_EQ(output.text(), "ab");
  EXPECT_EQ(output.num_tokens(), 2u);
  EXPECT_THAT(output.token_ids(), ElementsAre(1, 3));
  EXPECT_THAT(output.logprobs(), ElementsAre(-1, -3));
  EXPECT_EQ(output.finish_info().num_output_tokens(), 2u);
  EXPECT_EQ(output.finish_info().stop_string(), "stop here");
}

TEST_F(NativeAnswerTest, EachSequenceHasItsIndexAndEnd) {
  Begin(/*whole=*/false, /*n=*/3);
  Take(ResponseDelta{1, "", {Scored(9, -1)}, FinishReason::kStop, int32_t{9}});
  Take(ResponseDelta{0, "", {Scored(1, -1), Scored(2, -1)}, FinishReason::kStop, {}});
  Take(ResponseDelta{2, "", {}, FinishReason::kCancelled, {}});
  ASSERT_EQ(messages_.size(), 3u);
  EXPECT_TRUE(messages_[0].has_prompt_info());
  EXPECT_EQ(messages_[0].outputs().index(), 1u);
  EXPECT_EQ(messages_[0].outputs().finish_info().stop_token_id(), 9u);
  EXPECT_EQ(messages_[1].outputs().index(), 0u);
  EXPECT_EQ(messages_[1].outputs().finish_info().eos_token_id(), 2u);
  EXPECT_EQ(messages_[1].outputs().finish_info().num_output_tokens(), 2u);
  EXPECT_EQ(messages_[2].outputs().finish_info().finish_reason(), native_v1::FinishInfo::ABORTED);
}

TEST_F(NativeAnswerTest, ErrorIsNotAMessage) {
  for (const bool whole : {false, true}) {
    Begin(whole);
    Take(ResponseDelta{0, "", {Scored(1, -1)}, FinishReason::kError, {}});
    Take(ResponseDone{Status(StatusCode::kInternal, "failed"), {}});
    EXPECT_THAT(messages_, IsEmpty());
  }
}

TEST(NativeMessagesTest, ServerInfoIsTheEngines) {
  EngineOptions engine;
  engine.page_size = 32;
  engine.num_pages = 100;
  engine.max_model_len = 4096;
  engine.max_num_seqs = 8;
  engine.max_num_batched_tokens = 512;
  native_v1::ServerInfo info;
  FillServerInfo(engine, "one", info);
  EXPECT_EQ(info.api_version(), "vllm");
  EXPECT_EQ(info.instance_id(), "one");
  EXPECT_EQ(info.engine_version().substr(0, 10), "diffserve ");
  EXPECT_EQ(info.kv_block_size(), 32u);
  EXPECT_EQ(info.total_kv_blocks(), 100u);
  EXPECT_EQ(info.max_model_len(), 4096u);
  EXPECT_EQ(info.max_running_requests(), 8u);
  EXPECT_EQ(info.max_batched_tokens(), 512u);
  EXPECT_EQ(info.parallelism().data_parallel_size(), 1u);
  EXPECT_EQ(info.parallelism().data_parallel_size_local(), 1u);
}

}  // namespace
}  // namespace diffserve
