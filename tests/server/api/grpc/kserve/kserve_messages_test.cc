// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/grpc/kserve/messages.h"

namespace diffserve {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FrontendOptions Limits() {
  FrontendOptions limits;
  limits.names.name = "m";
  return limits;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string Element(const std::string& text) {
  return BytesOf<uint32_t>({static_cast<uint32_t>(text.size())}) + text;
}

ModelInferRequest Input(const std::string& name, const std::string& datatype,
                        const std::vector<int64_t>& shape, const std::string& raw) {
  ModelInferRequest message;
  message.set_model_name("m");
  auto& input = *message.add_inputs();
  input.set_name(name);
  input.set_datatype(datatype);
  input.mutable_shape()->Add(shape.begin(), shape.end());
  message.add_raw_input_contents(raw);
  return message;
}

ModelInferRequest TextInput(const std::string& text = "hi") {
  return Input("text_input", "BYTES", {1}, Element(text));
}

Result<InferRequest> Mapped(const ModelInferRequest& message, bool streams = false) {
  SamplingSpec defaults;
  defaults.top_k = 11;
  return FromProto(message, Limits(), defaults, streams);
}

std::string RefusedFor(const ModelInferRequest& message, bool streams = false) {
  const Result<InferRequest> mapped = Mapped(message, streams);
  return mapped.ok() ? "nothing" : mapped.status().param();
}

std::vector<int32_t> IdsOf(const ModelInferRequest& message) {
  const Result<InferRequest> mapped = Mapped(message);
  EXPECT_TRUE(mapped.ok()) << mapped.status().message();
  return std::get<std::vector<int32_t>>(mapped->generate.prompts.at(0));
}

TEST(KserveMessagesTest, TextIsReadRawOrFromContents) {
  EXPECT_EQ(std::get<std::string>(Mapped(TextInput("a\xF0"))->generate.prompts.at(0)), "a\xF0");
  ModelInferRequest message = Input("text_input", "BYTES", {1, 1}, "");
  message.clear_raw_input_contents();
  message.mutable_inputs(0)->mutable_contents()->add_bytes_contents("text");
  EXPECT_EQ(std::get<std::string>(Mapped(message)->generate.prompts.at(0)), "text");
  EXPECT_EQ(Mapped(message)->generate.sampling.top_k, 11);
}

TEST(KserveMessagesTest, IdsAreReadIn32Or64BitsRawOrFromContents) {
  EXPECT_THAT(IdsOf(Input("input_ids", "INT32", {3}, BytesOf<int32_t>({1, 2, 3}))),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(IdsOf(Input("input_ids", "INT64", {1, 2}, BytesOf<int64_t>({4, 5}))),
              ElementsAre(4, 5));
  ModelInferRequest message = Input("input_ids", "INT64", {2}, "");
  message.clear_raw_input_contents();
  message.mutable_inputs(0)->mutable_contents()->add_int64_contents(6);
  message.mutable_inputs(0)->mutable_contents()->add_int64_contents(7);
  EXPECT_THAT(IdsOf(message), ElementsAre(6, 7));
}

TEST(KserveMessagesTest, MismatchedTensorIsRefusedByName) {
  const int64_t kTooLarge = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  for (const ModelInferRequest& message : {
           Input("input_ids", "INT32", {2}, BytesOf<int32_t>({1})),
           Input("input_ids", "INT32", {2, 1}, BytesOf<int32_t>({1, 2})),
           Input("input_ids", "INT32", {-1}, BytesOf<int32_t>({1})),
           Input("input_ids", "INT32", {0}, ""),
           Input("input_ids", "INT32", {}, BytesOf<int32_t>({1})),
           Input("input_ids", "INT32", {1}, "abc"),
           Input("input_ids", "INT32", {1}, BytesOf<int32_t>({-1})),
           Input("input_ids", "INT64", {1}, BytesOf<int64_t>({kTooLarge})),
           Input("input_ids", "FP32", {1}, BytesOf<float>({1})),
       })
    EXPECT_EQ(RefusedFor(message), "input_ids") << message.ShortDebugString();
  for (const ModelInferRequest& message : {
           Input("text_input", "BYTES", {2}, Element("a") + Element("b")),
           Input("text_input", "BYTES", {1}, "abc"),
           Input("text_input", "BYTES", {1}, Element("abc") + "d"),
           Input("text_input", "BYTES", {1}, Element("abc").substr(0, 6)),
           Input("text_input", "INT32", {1}, Element("a")),
       })
    EXPECT_EQ(RefusedFor(message), "text_input") << message.ShortDebugString();
  EXPECT_EQ(RefusedFor(Input("image", "BYTES", {1}, Element("a"))), "image");
}

TEST(KserveMessagesTest, ExactlyOnePromptIsAccepted) {
  ModelInferRequest message = TextInput();
  message.MergeFrom(Input("input_ids", "INT32", {1}, BytesOf<int32_t>({1})));
  EXPECT_EQ(RefusedFor(message), "input_ids");
  message = TextInput();
  message.add_raw_input_contents("more");
  EXPECT_EQ(RefusedFor(message), "raw_input_contents");
  message = TextInput();
  message.mutable_inputs(0)->mutable_contents()->add_bytes_contents("hi");
  EXPECT_EQ(RefusedFor(message), "text_input");
  message = TextInput();
  (*message.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("x");
  EXPECT_EQ(RefusedFor(message), "text_input");
  message.Clear();
  message.set_model_name("m");
  EXPECT_EQ(RefusedFor(message), "text_input");
}

TEST(KserveMessagesTest, ParametersAreTyped) {
  ModelInferRequest message = TextInput();
  auto& parameters = *message.mutable_parameters();
  parameters["max_tokens"].set_int64_param(5);
  parameters["temperature"].set_double_param(0.5);
  parameters["top_p"].set_int64_param(1);
  parameters["top_k"].set_uint64_param(3);
  parameters["seed"].set_uint64_param(~uint64_t{0});
  parameters["stop"].set_string_param("end");
  parameters["priority"].set_uint64_param(2);
  parameters["timeout"].set_int64_param(1500);
  parameters["exclude_input_in_output"].set_bool_param(true);
  parameters["triton_enable_empty_final_response"].set_bool_param(true);
  const InferRequest request = *Mapped(message);
  EXPECT_EQ(request.generate.max_tokens, 5);
  EXPECT_EQ(request.generate.sampling.temperature, 0.5f);
  EXPECT_EQ(request.generate.sampling.top_p, 1);
  EXPECT_EQ(request.generate.sampling.top_k, 3);
  EXPECT_EQ(request.generate.sampling.seed, ~uint64_t{0});
  EXPECT_THAT(request.generate.stop, ElementsAre("end"));
  EXPECT_EQ(request.generate.priority, 2);
  EXPECT_EQ(request.timeout, std::chrono::microseconds(1500));
  EXPECT_FALSE(request.shape.echo);
}

TEST(KserveMessagesTest, ParameterOfAnotherTypeOrNameIsRefusedByName) {
  using Value = inference::InferParameter;
  const auto refused = [](const std::string& name, const std::function<void(Value&)>& set) {
    ModelInferRequest message = TextInput();
    set((*message.mutable_parameters())[name]);
    EXPECT_EQ(RefusedFor(message), name);
  };
  refused("max_tokens", [](Value& v) { v.set_string_param("5"); });
  refused("max_tokens", [](Value& v) { v.set_double_param(5); });
  refused("max_tokens", [](Value&) {});
  refused("max_tokens", [](Value& v) { v.set_int64_param(int64_t{1} << 40); });
  refused("priority", [](Value& v) { v.set_uint64_param(~uint64_t{0}); });
  refused("temperature", [](Value& v) { v.set_bool_param(true); });
  refused("stop", [](Value& v) { v.set_int64_param(1); });
  refused("ignore_eos", [](Value& v) { v.set_int64_param(1); });
  refused("timeout", [](Value& v) { v.set_int64_param(0); });
  refused("sequence_id", [](Value& v) { v.set_int64_param(7); });
  refused("stream", [](Value& v) { v.set_bool_param(true); });
}

TEST(KserveMessagesTest, StreamOmitsTheInputAndWholeAnswerBeginsWithIt) {
  ModelInferRequest message = TextInput();
  EXPECT_TRUE(Mapped(message)->shape.echo);
  EXPECT_TRUE(Mapped(message)->generate.want_prompt_text);
  EXPECT_FALSE(Mapped(message, true)->shape.echo);
  EXPECT_TRUE(Mapped(message, true)->shape.stream);
  auto& parameters = *message.mutable_parameters();
  parameters["exclude_input_in_output"].set_bool_param(false);
  EXPECT_EQ(RefusedFor(message, true), "exclude_input_in_output");
  parameters["stream"].set_bool_param(false);
  EXPECT_TRUE(Mapped(message, true)->shape.echo);
  EXPECT_FALSE(Mapped(message, true)->shape.stream);
}

TEST(KserveMessagesTest, AnotherModelOrVersionIsNotFound) {
  EXPECT_TRUE(CheckModelName("m", "", Limits()).ok());
  EXPECT_TRUE(CheckModelName("m", "1", Limits()).ok());
  EXPECT_EQ(CheckModelName("m", "2", Limits()).code(), StatusCode::kNotFound);
  EXPECT_EQ(CheckModelName("", "", Limits()).code(), StatusCode::kNotFound);
  ModelInferRequest message = TextInput();
  message.set_model_name("other");
  EXPECT_EQ(Mapped(message).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Mapped(message).status().message(), HasSubstr("'other'"));
}

TEST(KserveMessagesTest, OnlyRequestedOutputsAreReturned) {
  ModelInferRequest message = TextInput();
  message.add_outputs()->set_name("output_ids");
  const InferShape shape = Mapped(message)->shape;
  EXPECT_TRUE(shape.ids);
  EXPECT_FALSE(shape.text);
  EXPECT_FALSE(shape.finish_reason);
  (*message.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(1);
  EXPECT_EQ(RefusedFor(message), "output_ids");
  message.mutable_outputs(0)->set_name("logits");
  EXPECT_EQ(RefusedFor(message), "logits");
}

ResponseDelta Delta(const std::string& text, const std::vector<int32_t>& ids,
                    FinishReason finish = FinishReason::kNone) {
  ResponseDelta delta;
  delta.text = text;
  for (const int32_t id : ids) delta.tokens.push_back({.token = id});
  delta.finish = finish;
  return delta;
}

TEST(KserveMessagesTest, StreamHasOneResponsePerPieceAndMarksTheLast) {
  InferAnswer answer({.id = "r", .model = "m", .stream = true});
  ModelInferResponse out;
  EXPECT_FALSE(answer.Take(ResponseStarted(), &out));
  ASSERT_TRUE(answer.Take(Delta("ab", {5, 6}), &out));
  EXPECT_EQ(out.id(), "r");
  EXPECT_EQ(out.model_name(), "m");
  EXPECT_FALSE(out.parameters().at("triton_final_response").bool_param());
  EXPECT_THAT(out.raw_output_contents(),
              ElementsAre(Element("ab"), BytesOf<int32_t>({5, 6}), Element("")));
  EXPECT_EQ(out.outputs(1).datatype(), "INT32");
  EXPECT_THAT(out.outputs(1).shape(), ElementsAre(2));
  EXPECT_FALSE(answer.Take(Delta("c", {7}, FinishReason::kLength), &out));
  EXPECT_FALSE(answer.done());
  ASSERT_TRUE(answer.Take(ResponseDone{{}, {.prompt_tokens = 2, .completion_tokens = 3}}, &out));
  EXPECT_TRUE(answer.done() && answer.status().ok());
  EXPECT_TRUE(out.parameters().at("triton_final_response").bool_param());
  EXPECT_EQ(out.parameters().at("prompt_tokens").int64_param(), 2);
  EXPECT_EQ(out.parameters().at("completion_tokens").int64_param(), 3);
  EXPECT_THAT(out.raw_output_contents(),
              ElementsAre(Element("c"), BytesOf<int32_t>({7}), Element("length")));
}

TEST(KserveMessagesTest, WholeAnswerIsOneResponseAfterItsPrompt) {
  InferAnswer answer({.id = "", .model = "m", .echo = true, .finish_reason = false});
  ModelInferResponse out;
  ResponseStarted started;
  started.prompts.push_back({SharedTokens(std::vector<int32_t>{1, 2}), "in"});
  EXPECT_FALSE(answer.Take(started, &out));
  EXPECT_FALSE(answer.Take(Delta("a", {5}), &out));
  EXPECT_FALSE(answer.Take(Delta("b", {6}, FinishReason::kStop), &out));
  ASSERT_TRUE(answer.Take(ResponseDone(), &out));
  EXPECT_THAT(out.raw_output_contents(),
              ElementsAre(Element("inab"), BytesOf<int32_t>({1, 2, 5, 6})));
}

TEST(KserveMessagesTest, ErrorIsNotAResponseAndItsTextIsUtf8) {
  InferAnswer answer({.id = "", .model = "m", .stream = true});
  ModelInferResponse out;
  EXPECT_FALSE(answer.Take(ResponseDone{InvalidArgument("bad"), {}}, &out));
  EXPECT_TRUE(answer.done());
  EXPECT_EQ(answer.status().message(), "bad");
  inference::ModelStreamInferResponse response;
  FillError(InvalidArgument("cut \xC3"), "r", response);
  EXPECT_EQ(response.error_message(), "cut \xEF\xBF\xBD");
  EXPECT_EQ(response.infer_response().id(), "r");
  EXPECT_TRUE(response.infer_response().parameters().at("triton_final_response").bool_param());
}

}  // namespace
}  // namespace diffserve
