// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/api/grpc/server.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/server/grpc_stack.h"

namespace diffserve {
namespace {

using diffserve::testing::CallIsCounted;
using diffserve::testing::CallWithBytes;
using diffserve::testing::Eventually;
using diffserve::testing::ExpectedTokens;
using diffserve::testing::Finish;
using diffserve::testing::Generate;
using diffserve::testing::Generated;
using diffserve::testing::GrpcStack;
using diffserve::testing::GrpcStackOptions;
using diffserve::testing::kListServices;
using diffserve::testing::kReflection;
using diffserve::testing::RequestOf;
using diffserve::testing::WithHeldSteps;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
const std::string kServing("\x08\x01"), kNotServing("\x08\x02");
const std::string kOurService(
    "\x0a\x16"
    "diffserve.v1.Inference");

// Waits until the server has ended a Generate call as cancelled.
bool ServerEndsACancelledCall(GrpcStack& stack) { return CallIsCounted(stack, "Generate", 1); }

TEST(GrpcServerTest, GenerateStreamsStartDeltasFinishAndUsageInOrder) {
  GrpcStack stack;
  const std::vector<int32_t> prompt = {5, 6, 7};
  const Generated result = Generate(*stack.NewStub(), RequestOf(prompt, 20));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const auto& messages = result.messages;
  ASSERT_GE(messages.size(), 4u);
  EXPECT_THAT(messages.front().start().token_ids(), ::testing::ElementsAre(5, 6, 7));
  EXPECT_FALSE(messages.front().start().request_id().empty());
  for (size_t i = 1; i + 2 < messages.size(); ++i) EXPECT_TRUE(messages[i].has_delta()) << i;
  EXPECT_EQ(messages[messages.size() - 2].finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(messages.back().usage().prompt_tokens(), 3);
  EXPECT_EQ(messages.back().usage().completion_tokens(), 20);
  const std::vector<int32_t> expected = ExpectedTokens(stack, prompt, 20);
  EXPECT_EQ(result.TokensOf(0), expected);
  EXPECT_EQ(result.TextOf(0), *stack.tokenizer->Decode(expected, true));
}

TEST(GrpcServerTest, TextIsTokenizedWithSpecialTokens) {
  GrpcStack stack;
  v1::GenerateRequest request = RequestOf({}, 4);
  request.set_text("hello world");
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const std::vector<int32_t> ids = *stack.tokenizer->Encode("hello world", true);
  EXPECT_THAT(result.messages.front().start().token_ids(), ::testing::ElementsAreArray(ids));
  EXPECT_EQ(result.TokensOf(0), ExpectedTokens(stack, ids, 4));
}

TEST(GrpcServerTest, EachContinuationHasItsOwnChoice) {
  GrpcStack stack;
  v1::GenerateRequest request = RequestOf({1, 2}, 5);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok());
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(result.TokensOf(choice).size(), 5u);
  EXPECT_NE(result.TokensOf(0), result.TokensOf(1));
  EXPECT_EQ(result.messages.back().usage().prompt_tokens(), 2);
  EXPECT_EQ(result.messages.back().usage().completion_tokens(), 15);
  EXPECT_EQ(Generate(*stack.NewStub(), request).TokensOf(2), result.TokensOf(2))
      << "same seed, same draw";
}

TEST(GrpcServerTest, LogprobsComeOnlyOnRequest) {
  GrpcStack stack;
  v1::GenerateRequest request = RequestOf({1, 2, 3}, 4);
  for (const v1::GenerateResponse& m : Generate(*stack.NewStub(), request).messages)
    EXPECT_EQ(m.delta().logprobs_size(), 0);
  request.set_logprobs(2);
  request.set_prompt_logprobs(0);
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  int with_logprobs = 0, prompt_entries = 0;
  for (const v1::GenerateResponse& m : result.messages) {
    for (int i = 0; i < m.delta().logprobs_size(); ++i, ++with_logprobs) {
      EXPECT_EQ(m.delta().logprobs(i).chosen().id(), m.delta().token_ids(i));
      EXPECT_EQ(m.delta().logprobs(i).top_size(), 2);
      EXPECT_LE(m.delta().logprobs(i).chosen().logprob(), 0);
    }
    prompt_entries += m.prompt_logprobs().tokens_size();
  }
  EXPECT_EQ(with_logprobs, 4);
  EXPECT_EQ(prompt_entries, 3);
}

TEST(GrpcServerTest, OneTokenPromptHasOneEntryWithoutLogprob) {
  GrpcStack stack;
  v1::GenerateRequest request = RequestOf({1}, 1);
  request.set_prompt_logprobs(2);
  int entries = 0;
  for (const v1::GenerateResponse& m : Generate(*stack.NewStub(), request).messages)
    entries += m.prompt_logprobs().tokens_size();
  EXPECT_EQ(entries, 1);
}

TEST(GrpcServerTest, StopTokenEndsTheSequenceAndIsNamed) {
  GrpcStack stack;
  const std::vector<int32_t> expected = ExpectedTokens(stack, {9}, 10);
  v1::GenerateRequest request = RequestOf({9}, 10);
  request.mutable_stopping()->add_stop_token_ids(expected[3]);
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok());
  const v1::Finish& finish = result.messages[result.messages.size() - 2].finish();
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finish.stop_token_id(), expected[3]);
}

TEST(GrpcServerTest, EndingTheCallFreesEverything) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = stack.NewStub();
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, RequestOf({1, 2, 3}, 4000));
  stack.steps.Allow(2);
  v1::GenerateResponse message;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_EQ(Finish(context, *reader).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(ServerEndsACancelledCall(stack));
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kCancelled), 1u);
}

TEST(GrpcServerTest, DroppedConnectionFreesEverything) {
  GrpcStack stack(WithHeldSteps());
  {
    const auto stub = stack.NewStub();
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, RequestOf({1, 2, 3}, 4000));
    stack.steps.Allow(1);
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
  }
  EXPECT_TRUE(ServerEndsACancelledCall(stack));
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kCancelled), 1u);
}

TEST(GrpcServerTest, CancelEndsARunningRequestByItsId) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = stack.NewStub();
  v1::GenerateRequest request = RequestOf({1, 2, 3}, 4000);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  stack.steps.Allow(1);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.start().request_id(), "mine");

  v1::CancelRequest cancel;
  v1::CancelResponse cancelled;
  cancel.set_request_id("mine");
  grpc::ClientContext first, second;
  EXPECT_TRUE(stub->Cancel(&first, cancel, &cancelled).ok());
  EXPECT_EQ(Finish(context, *reader).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kCancelled), 1u);
  EXPECT_EQ(stub->Cancel(&second, cancel, &cancelled).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcServerTest, DeadlineEndsTheRequest) {
  GrpcStack stack(WithHeldSteps());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto stub = stack.NewStub();
  const auto reader = stub->Generate(&context, RequestOf({1, 2, 3}, 4000));
  EXPECT_EQ(Finish(context, *reader).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kLength), 0u);
}

TEST(GrpcServerTest, UnaryCallsAnswer) {
  GrpcStack stack;
  const auto stub = stack.NewStub();
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse ids;
  tokenize.set_text("hello");
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(stub->Tokenize(&first, tokenize, &ids).ok());
  EXPECT_THAT(ids.ids(), ::testing::ElementsAreArray(*stack.tokenizer->Encode("hello", true)));

  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  const std::vector<int32_t> plain = *stack.tokenizer->Encode("hello", false);
  detokenize.mutable_ids()->Add(plain.begin(), plain.end());
  ASSERT_TRUE(stub->Detokenize(&second, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hello");

  v1::GetModelResponse model;
  ASSERT_TRUE(stub->GetModel(&third, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake-model");
  EXPECT_EQ(model.vocab_size(), stack.tokenizer->vocab_size());
  EXPECT_EQ(model.max_model_len(), 4096);
  EXPECT_EQ(model.page_size(), 16);
  EXPECT_THAT(stack.metrics->Render(),
              HasSubstr("diffserve_grpc_requests_total{method=\"GetModel\",code=\"0\"} 1"));
}

TEST(GrpcServerTest, InvalidInputHasItsCodeAndNamesTheField) {
  GrpcStack stack;
  const auto with = [](auto change) {
    v1::GenerateRequest request = RequestOf({1, 2, 3}, 4);
    change(request);
    return request;
  };
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const std::tuple<v1::GenerateRequest, grpc::StatusCode, const char*> cases[] = {
      {v1::GenerateRequest(), invalid, "prompt"},
      {RequestOf({}, 4), invalid, "token_ids"},
      {RequestOf({1 << 30}, 4), invalid, "token_ids"},
      {RequestOf({-1}, 4), invalid, "token_ids"},
      {RequestOf(std::vector<int32_t>(5000, 1), 1), invalid, "token_ids"},
      {with([](auto& r) { r.set_text(std::string(100'000, 'x')); }), invalid, "text"},
      {RequestOf({1}, 4096), invalid, "max_tokens"},
      {RequestOf({1}, -1), invalid, "max_tokens"},
      {with([](auto& r) { r.set_model("other"); }), grpc::StatusCode::NOT_FOUND, "model"},
      {with([](auto& r) { r.mutable_sampling()->set_temperature(-1); }), invalid, "temperature"},
      {with([](auto& r) { r.mutable_sampling()->set_temperature(std::nanf("")); }), invalid,
       "temperature"},
      {with([](auto& r) { r.mutable_sampling()->set_top_p(0); }), invalid, "top_p"},
      {with([](auto& r) { r.mutable_sampling()->set_min_p(2); }), invalid, "min_p"},
      {with([](auto& r) { r.mutable_sampling()->set_n(17); }), invalid, "n"},
      {with([](auto& r) { r.mutable_sampling()->set_n(-1); }), invalid, "n"},
      {with([](auto& r) { r.mutable_sampling()->set_presence_penalty(3); }), invalid,
       "presence_penalty"},
      {with([](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }), invalid,
       "repetition_penalty"},
      {with([](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = 101; }), invalid,
       "logit_bias"},
      {with([](auto& r) { r.set_logprobs(21); }), invalid, "logprobs"},
      {with([](auto& r) { r.set_logprobs(-1); }), invalid, "logprobs"},
      {with([](auto& r) { r.set_prompt_logprobs(-2); }), invalid, "prompt_logprobs"},
      {with([](auto& r) { r.mutable_stopping()->set_min_tokens(5); }), invalid, "min_tokens"},
      {with([](auto& r) { r.mutable_stopping()->add_stop(""); }), invalid, "stop"},
      {with([](auto& r) { r.mutable_stopping()->add_stop(std::string(5000, 'x')); }), invalid,
       "stop"},
      {with([](auto& r) { r.set_request_id(std::string(200, 'x')); }), invalid, "request_id"},
      {with([](auto& r) { r.mutable_chat()->add_messages()->set_role("user"); }), invalid,
       "messages"},
  };
  const auto stub = stack.NewStub();
  for (const auto& [request, code, param] : cases) {
    const Generated result = Generate(*stub, request);
    const std::string shown = request.ShortDebugString().substr(0, 80);
    EXPECT_EQ(result.status.error_code(), code) << shown;
    EXPECT_EQ(result.param, param) << shown << ": " << result.status.error_message();
    EXPECT_FALSE(result.status.error_message().empty()) << shown;
  }
  EXPECT_TRUE(Generate(*stub, RequestOf({1, 2}, 2)).status.ok()) << "the server goes on";
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(GrpcServerTest, RefusalsWithoutATokenizerNameTheField) {
  GrpcStackOptions options;
  options.with_tokenizer = false;
  options.config.vocab_size = 256;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  v1::GenerateRequest generate;
  generate.set_text("hello");
  EXPECT_EQ(Generate(*stub, generate).param, "text");

  grpc::ClientContext first, second;
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse ids;
  tokenize.set_text("hello");
  EXPECT_FALSE(stub->Tokenize(&first, tokenize, &ids).ok());
  EXPECT_EQ(testing::TrailerOf(first, "param"), "text");

  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  detokenize.add_ids(1);
  EXPECT_FALSE(stub->Detokenize(&second, detokenize, &text).ok());
  EXPECT_EQ(testing::TrailerOf(second, "param"), "ids");
}

TEST(GrpcServerTest, MessagesThatAreTooLargeOrCompressedAreRefused) {
  GrpcStack stack;
  const auto stub = stack.NewStub();
  v1::GenerateRequest request = RequestOf({}, 1);
  request.set_text(std::string(5 << 20, 'x'));
  EXPECT_EQ(Generate(*stub, request).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  request.set_text(std::string(1000, 'x'));
  const auto reader = stub->Generate(&context, request);
  EXPECT_EQ(Finish(context, *reader).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(GrpcServerTest, SixtyFourStreamsAtOnceGetExactlyTheirTokens) {
  GrpcStack stack;
  const auto stub = stack.NewStub();
  std::vector<std::future<Generated>> results;
  const auto prompt = [](int i) { return std::vector<int32_t>{i % 7, i, i * 3 % 250}; };
  for (int i = 0; i < 64; ++i) {
    results.push_back(std::async(std::launch::async,
                                 [&, i] { return Generate(*stub, RequestOf(prompt(i), 20 + i)); }));
  }
  for (int i = 0; i < 64; ++i) {
    const Generated result = results[static_cast<size_t>(i)].get();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.TokensOf(0), ExpectedTokens(stack, prompt(i), 20 + i)) << i;
    EXPECT_EQ(result.messages.back().usage().completion_tokens(), 20 + i);
  }
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(GrpcServerTest, TooMuchWaitingWorkIsRefused) {
  GrpcStackOptions options = WithHeldSteps();
  options.engine.max_num_seqs = 1;
  options.engine.max_waiting_requests = 2;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  std::vector<std::future<Generated>> results;
  for (int i = 0; i < 8; ++i) {
    results.push_back(
        std::async(std::launch::async, [&, i] { return Generate(*stub, RequestOf({i}, 60)); }));
  }
  EXPECT_TRUE(Eventually(
      [&] { return stack.Stats().refused[static_cast<size_t>(RefusalReason::kQueueFull)] == 6; }));
  stack.steps.Open();
  int done = 0, refused = 0;
  for (std::future<Generated>& future : results) {
    const Generated result = future.get();
    done += result.status.ok();
    refused += result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    EXPECT_EQ(result.status.ok(), !result.messages.empty()) << "a refusal comes without messages";
  }
  EXPECT_EQ(done, 2) << "the one whose first step is held counts as waiting";
  EXPECT_EQ(refused, 6);
}

TEST(GrpcServerTest, RequestThatWouldWaitTooLongReportsRetryDelay) {
  GrpcStackOptions options;
  options.engine.max_queue_wait_s = 0;  // has passed when the request is counted
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  const Generated result = Generate(*stub, RequestOf({1}, 5));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(result.status.error_message(), ::testing::HasSubstr("the request would wait"));
  EXPECT_EQ(result.retry_after, "1");
  EXPECT_TRUE(result.messages.empty());
}

TEST(GrpcServerTest, SlowReaderIsCutAndReleasesEverything) {
  GrpcStackOptions options;
  options.frontend.max_stream_bytes = 2048;
  options.engine.max_model_len = 32768;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  grpc::ClientContext context;
  v1::GenerateRequest request = RequestOf({1}, 30000);
  request.set_logprobs(20);
  const auto reader = stub->Generate(&context, request);
  EXPECT_TRUE(stack.BecomesIdle()) << "although nothing was read";
  EXPECT_FALSE(Finish(context, *reader).status.ok());
}

TEST(GrpcServerTest, HealthFollowsSetServing) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  for (const std::string& service : {std::string(), kOurService}) {
    EXPECT_EQ(CallWithBytes(channel, kHealthCheck, service).second, kServing);
  }
  stack.grpc_server->SetServing(false);
  for (const std::string& service : {std::string(), kOurService}) {
    EXPECT_EQ(CallWithBytes(channel, kHealthCheck, service).second, kNotServing);
  }
  EXPECT_EQ(CallWithBytes(channel, kHealthCheck, "\x0a\x01x").first.error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcServerTest, ReflectionListsTheServices) {
  GrpcStack stack;
  const auto [status, reply] = CallWithBytes(stack.NewChannel(), kReflection, kListServices);
  EXPECT_THAT(reply, HasSubstr("diffserve.v1.Inference"));
  EXPECT_THAT(reply, HasSubstr("grpc.health.v1.Health"));
}

TEST(GrpcServerTest, EveryMethodButHealthNeedsAKey) {
  GrpcStackOptions options;
  options.keys = "right\nother\n";
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  const std::string prefix = "/diffserve.v1.Inference/";
  for (const std::string& method :
       {prefix + "Generate", prefix + "Tokenize", prefix + "Detokenize", prefix + "GetModel",
        prefix + "Embed", prefix + "Attention", prefix + "Cancel", std::string(kReflection)}) {
    for (const std::string key : {"", "wrong"}) {
      const auto [status, reply] = CallWithBytes(channel, method,
                                                 method == kReflection ? kListServices : "", key);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << method << " " << key << ": " << status.error_message();
      EXPECT_THAT(reply, ::testing::Not(HasSubstr("Inference"))) << method;
    }
    const auto [status, reply] = CallWithBytes(channel, method,
                                               method == kReflection ? kListServices : "", "other");
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
  EXPECT_EQ(CallWithBytes(channel, kHealthCheck, "").second, kServing);
  EXPECT_THAT(CallWithBytes(channel, kReflection, kListServices, "right").second,
              HasSubstr("diffserve.v1.Inference"));

  grpc::ClientContext context;
  context.AddMetadata("x-api-key", "right");
  v1::GetModelResponse model;
  EXPECT_TRUE(v1::Inference::NewStub(channel)->GetModel(&context, {}, &model).ok());
}

TEST(GrpcServerTest, PortInUseIsAClearError) {
  GrpcStack stack;
  GrpcStackOptions options;
  options.grpc.port = stack.grpc_server->port();
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("byte_bpe");
  const ModelConfig config;
  OutputLoop output(*tokenizer, 16, CallsTo(*stack.engine));
  Frontend frontend({}, config, *tokenizer, nullptr, *stack.engine, output);
  const auto second = GrpcServer::Start(options.grpc, frontend, ApiKeys(), nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(),
              HasSubstr("127.0.0.1:" + std::to_string(options.grpc.port)));
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
}

TEST(GrpcServerTest, WhileDrainingNewWorkIsUnavailable) {
  GrpcStack stack;
  stack.engine->Drain(std::chrono::steady_clock::now());
  const Generated result = Generate(*stack.NewStub(), RequestOf({1}, 4));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(result.messages.empty());
}

TEST(GrpcServerTest, DrainLetsStreamsEndAndReportsTheRest) {
  GrpcStackOptions options = WithHeldSteps();
  options.engine.drain_grace_ms = 0;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  auto quick = std::async(std::launch::async, [&] { return Generate(*stub, RequestOf({1}, 20)); });
  auto endless = std::async(std::launch::async,
                            [&] { return Generate(*stub, RequestOf({2}, 4000)); });
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting == 2; }));
  std::thread drain(
      [&] { stack.engine->Drain(std::chrono::steady_clock::now() + std::chrono::hours(1)); });
  EXPECT_TRUE(Eventually([&] { return stack.Stats().draining; }));
  stack.steps.Allow(30);
  EXPECT_EQ(quick.get().TokensOf(0).size(), 20u);
  stack.engine->Drain(std::chrono::steady_clock::now());
  stack.steps.Open();
  EXPECT_EQ(endless.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST(GrpcServerTest, ShutdownUnderLoadEndsEveryCall) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = stack.NewStub();
  std::vector<std::future<Generated>> results;
  for (int i = 0; i < 32; ++i)
    results.push_back(
        std::async(std::launch::async, [&, i] { return Generate(*stub, RequestOf({i}, 4000)); }));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting == 32; }));
  stack.steps.Allow(2);
  EXPECT_TRUE(Eventually([&] { return stack.Stats().running == 32; }));
  stack.grpc_server->Shutdown(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  for (std::future<Generated>& future : results) {
    EXPECT_THAT(future.get().status.error_code(),
                AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED));
  }
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kCancelled), 32u);
}

}  // namespace
}  // namespace diffserve
