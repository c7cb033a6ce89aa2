// SPDX-License-Identifier: Apache-2.0
// Request bodies in OpenAI's format: accepted ones, refused ones, and the member that a refusal
// names.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "server/api/openai/request.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr int kVocabSize = 1000;
constexpr int kMaxModelLen = 512;

class OpenAiRequestTest : public ::testing::Test {
 protected:
  ReadContext Context() const { return {&limits_, SamplingSpec()}; }
  Result<OpenAiRequest> Completion(const std::string& body) const {
    return ParseCompletionRequest(body, Context());
  }
  Result<OpenAiRequest> Chat(const std::string& body) const {
    return ParseChatRequest(body, Context());
  }
  // With the checks that the frontend adds.
  Status Checked(const Result<OpenAiRequest>& parsed) const {
    if (!parsed.ok()) return parsed.status();
    return CheckRequest(parsed.value().generate, {&limits_.names, kVocabSize, kMaxModelLen, 256});
  }
  // The member that the refusal of a completion body with this extra member names; "" if it is
  // accepted.
  std::string RefusedFor(const std::string& member) const {
    const Status status = Checked(Completion("{\"prompt\":\"a\"," + member + "}"));
    if (status.ok()) return "";
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << member;
    EXPECT_FALSE(status.message().empty()) << member;
    return status.param();
  }
  std::string ChatRefusedFor(const std::string& member) const {
    const Status status = Checked(
        Chat(R"({"messages":[{"role":"user","content":"a"}],)" + member + "}"));
    return status.ok() ? "" : status.param();
  }

  FrontendOptions limits_;
};

TEST_F(OpenAiRequestTest, EmptyRequestGetsTheDefaults) {
  limits_.names.name = "tiny";
  ReadContext context = Context();
  context.default_sampling.temperature = 0.6f;
  context.default_sampling.top_k = 20;
  context.default_sampling.seed = 77;
  const Result<OpenAiRequest> parsed = ParseCompletionRequest(R"({"prompt":"a","model":"tiny"})",
                                                              context);
  ASSERT_TRUE(parsed.ok());
  const GenerateRequest& generate = parsed.value().generate;
  EXPECT_EQ(generate.sampling.temperature, 0.6f);
  EXPECT_EQ(generate.sampling.top_k, 20);
  EXPECT_EQ(generate.sampling.seed, 77u);
  EXPECT_EQ(generate.sampling.num_logprobs, -1);
  EXPECT_EQ(generate.max_tokens, std::nullopt);
  EXPECT_EQ(generate.max_tokens_default, 16);
  EXPECT_EQ(generate.n, 1);
  EXPECT_FALSE(parsed.value().stream);
}

TEST_F(OpenAiRequestTest, EveryFieldIsRead) {
  const Result<OpenAiRequest> parsed = Completion(
      R"({"prompt":"a","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"presence_penalty":-2,
          "frequency_penalty":2,"repetition_penalty":1.5,"logit_bias":{"3":-100,"4":5.5},"seed":-3,"min_tokens":2,
          "stop":["x","y"],"stop_token_ids":[5,6],"include_stop_str_in_output":true,"ignore_eos":true,
          "skip_special_tokens":false,"n":2,"best_of":2,"logprobs":3,"stream":true,
          "stream_options":{"include_usage":true,"continuous_usage_stats":true},"cache_salt":"s","return_token_ids":true,
          "timings_per_token":true,"add_special_tokens":false,"allowed_token_ids":[3,4],"bad_words":["no","not"],"truncate_prompt_tokens":9,
          "truncation_side":"right","priority":-2,"return_tokens_as_token_ids":true,
          "user":"u","metadata":{"a":[1]},"store":true})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const OpenAiRequest& request = parsed.value();
  const GenerateRequest& generate = request.generate;
  EXPECT_EQ(generate.max_tokens, 7);
  EXPECT_EQ(generate.sampling.temperature, 0.5f);
  EXPECT_EQ(generate.sampling.top_p, 0.9f);
  EXPECT_EQ(generate.sampling.top_k, 0);
  EXPECT_EQ(generate.sampling.min_p, 0.1f);
  EXPECT_EQ(generate.sampling.presence_penalty, -2);
  EXPECT_EQ(generate.sampling.frequency_penalty, 2);
  EXPECT_EQ(generate.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(generate.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{3, -100.0f}, {4, 5.5f}}));
  EXPECT_EQ(generate.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(generate.sampling.num_logprobs, 3);
  EXPECT_EQ(generate.sampling.min_tokens, 2);
  EXPECT_EQ(generate.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(generate.sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(generate.include_stop_str_in_output && generate.sampling.ignore_eos &&
              !generate.skip_special_tokens);
  EXPECT_EQ(generate.n, 2);
  EXPECT_EQ(generate.cache_salt, "s");
  EXPECT_EQ(generate.add_special_tokens, false);
  EXPECT_EQ(generate.allowed_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(generate.bad_words, (std::vector<std::string>{"no", "not"}));
  EXPECT_EQ(generate.truncate_prompt_tokens, 9);
  EXPECT_TRUE(generate.truncate_right && request.tokens_as_ids);
  EXPECT_EQ(generate.priority, -2);
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage &&
              request.return_token_ids && request.timings && request.logprobs);
}

TEST_F(OpenAiRequestTest, FourPromptFormsAreAccepted) {
  const auto prompts = [&](const std::string& prompt) {
    const Result<OpenAiRequest> parsed = Completion("{\"prompt\":" + prompt + "}");
    EXPECT_TRUE(parsed.ok()) << prompt << " " << parsed.status().message();
    return parsed.ok() ? parsed.value().generate.prompts : std::vector<Prompt>();
  };
  EXPECT_EQ(std::get<std::string>(prompts("\"ab\"").at(0)), "ab");
  EXPECT_EQ(prompts(R"(["ab","c"])").size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(prompts("[1,2,3]").at(0)),
            (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(std::get<std::vector<int32_t>>(prompts("[[1],[2,3]]").at(1)),
            (std::vector<int32_t>{2, 3}));
  for (const char* bad :
       {"[]", "[[]]", "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]", "[1,[2]]", "[[1],[\"a\"]]", "[true]",
        "{}", "7", "null", "[1.5]", "[-1]", "[2147483648]", "[9999]", "[[[1]]]"}) {
    EXPECT_EQ(Checked(Completion(std::string("{\"prompt\":") + bad + "}")).param(), "prompt")
        << bad;
  }
}

TEST_F(OpenAiRequestTest, NumbersAtTheirLimitsAreAcceptedOrRefusedByName) {
  // Each field with accepted and refused values.
  struct Field {
    const char* name;
    std::vector<std::string> taken, refused;
  };
  const std::vector<std::string> never = {"-2147483648",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551616",
                                          "1e30",
                                          "\"1\"",
                                          "[1]",
                                          "{}",
                                          "\"NaN\"",
                                          "true"};
  const std::vector<Field> fields = {
      {"max_tokens",
       {"1", "512", "513", "2147483647", "null"},  // what fits is known with the prompt's tokens
       {"-1", "0", "2147483648", "1.5", "1.0"}},
      {"max_completion_tokens", {"1", "null"}, {"-1", "2147483648", "1.5"}},
      {"min_tokens", {"0", "16"}, {"-1", "513", "2147483648", "0.5"}},
      {"n", {"1", "16"}, {"-1", "0", "17", "1000000", "1.5"}},
      {"best_of", {"1"}, {"-1", "0", "2", "17"}},
      {"temperature", {"0", "2", "0.001", "100"}, {"-0.1", "-1", "100.5"}},
      {"top_p", {"1", "0.001"}, {"-1", "0", "1.001"}},
      {"top_k", {"-1", "0", "1", "2147483647"}, {"-2", "2147483648", "0.5"}},
      {"min_p", {"0", "1", "0.5"}, {"-0.1", "1.1"}},
      {"presence_penalty", {"-2", "0", "2"}, {"-2.1", "2.1"}},
      {"frequency_penalty", {"-2", "0", "2"}, {"-2.1", "2.1"}},
      {"repetition_penalty", {"0.5", "1", "2"}, {"-1", "0", "101"}},
      {"logprobs", {"0", "20"}, {"-1", "21", "1.5"}},
      {"prompt_logprobs", {"0", "20"}, {"-1", "21", "1.5"}},
      {"truncate_prompt_tokens", {"-1", "1", "512", "null"}, {"-2", "0", "513", "1.5"}},
  };
  for (const Field& field : fields) {
    const std::string name = field.name;
    for (const std::string& value : field.taken)
      EXPECT_EQ(RefusedFor("\"" + name + "\":" + value), "") << name << " " << value;
    std::vector<std::string> refused = field.refused;
    refused.insert(refused.end(), never.begin(), never.end());
    for (const std::string& value : refused) {
      EXPECT_EQ(RefusedFor("\"" + name + "\":" + value), name) << value;
    }
  }
  for (const char* value :
       {"0", "-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615"}) {
    EXPECT_EQ(RefusedFor("\"seed\":" + std::string(value)), "") << value;
  }
  for (const char* value : {"1.5", "\"1\"", "true", "[]", "1e30"}) {
    EXPECT_EQ(RefusedFor("\"seed\":" + std::string(value)), "seed") << value;
  }
}

TEST_F(OpenAiRequestTest, NonNumbersAreNotValidJson) {
  for (const char* value :
       {"NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "+1", ".5", "1.", "--1"}) {
    EXPECT_FALSE(Completion("{\"prompt\":\"a\",\"temperature\":" + std::string(value) + "}").ok())
        << value;
  }
}

TEST_F(OpenAiRequestTest, ListsOfAMillionEntriesAreRefusedQuicklyByName) {
  const auto list = [](const std::string& entry, int count) {
    std::string text = "[" + entry;
    for (int i = 1; i < count; ++i) text += "," + entry;
    return text + "]";
  };
  const int million = 1'000'000;
  EXPECT_EQ(RefusedFor("\"stop\":" + list("\"a\"", million)), "stop");
  EXPECT_EQ(RefusedFor("\"stop_token_ids\":" + list("1", million)), "stop_token_ids");
  EXPECT_EQ(Checked(Completion("{\"prompt\":" + list("\"a\"", 100'000) + "}")).param(), "prompt");
  EXPECT_EQ(Checked(Completion("{\"prompt\":" + list("1", million) + "}")).param(), "prompt");
  EXPECT_EQ(Checked(Completion("{\"prompt\":" + list("[1]", 100'000) + "}")).param(), "prompt");
  EXPECT_EQ(ChatRefusedFor("\"messages\":" + list("{}", 100'000)), "messages");
  std::string bias = "\"logit_bias\":{\"0\":1";
  for (int i = 1; i < 20'000; ++i) bias += ",\"" + std::to_string(i) + "\":1";
  EXPECT_EQ(RefusedFor(bias + "}"), "logit_bias");
  const Status status = Checked(
      Completion("{\"prompt\":\"a\",\"metadata\":" + list("0", 1'100'000) + "}"));
  EXPECT_NE(status.message().find("JSON values"), std::string::npos) << status.message();
}

TEST_F(OpenAiRequestTest, ListsAndObjectsAreCheckedEntryByEntry) {
  for (const char* stop : {R"([""])", "[1]", "7", R"({"a":1})", R"([["a"]])"}) {
    EXPECT_EQ(RefusedFor("\"stop\":" + std::string(stop)), "stop") << stop;
  }
  EXPECT_EQ(RefusedFor(R"("stop":"x")"), "");
  EXPECT_EQ(RefusedFor(R"("stop":[])"), "");
  EXPECT_EQ(RefusedFor(R"("stop":"")"), "");
  EXPECT_EQ(RefusedFor(R"("stop":null)"), "");
  EXPECT_EQ(RefusedFor("\"stop\":\"" + std::string(1024, 'x') + "\""), "");
  EXPECT_EQ(RefusedFor("\"stop\":\"" + std::string(1025, 'x') + "\""), "stop");
  for (const char* ids :
       {"[-1]", "[1000]", "[2147483648]", "[1.5]", "[\"1\"]", "1", "[[1]]", "[true]"}) {
    EXPECT_EQ(RefusedFor("\"stop_token_ids\":" + std::string(ids)), "stop_token_ids") << ids;
  }
  for (const char* bias :
       {R"({"-1":1})", R"({"1000":1})", R"({"99999999999":1})", R"({"a":1})", R"({"":1})",
        R"({"1.5":1})", R"({"1":101})", R"({"1":-101})", R"({"1":"1"})", R"({"1":true})",
        R"({"1":null})", "[1]", "1", R"("x")"}) {
    EXPECT_EQ(RefusedFor("\"logit_bias\":" + std::string(bias)), "logit_bias") << bias;
  }
  EXPECT_EQ(RefusedFor(R"("logit_bias":{})"), "");
  for (const char* name :
       {"ignore_eos", "stream", "echo", "skip_special_tokens", "include_stop_str_in_output",
        "return_token_ids", "return_tokens_as_token_ids", "add_special_tokens"}) {
    for (const char* value : {"1", "0", "\"true\"", "[]", "{}"}) {
      EXPECT_EQ(RefusedFor("\"" + std::string(name) + "\":" + value), name) << value;
    }
  }
  EXPECT_EQ(RefusedFor("\"cache_salt\":\"" + std::string(257, 's') + "\""), "cache_salt");
  EXPECT_EQ(RefusedFor(R"("cache_salt":7)"), "cache_salt");
  EXPECT_EQ(RefusedFor(R"("stream_options":{"include_usage":true})"), "stream_options");
  EXPECT_EQ(RefusedFor(R"("stream":true,"stream_options":{"include_usage":1})"),
            "stream_options.include_usage");
  EXPECT_EQ(RefusedFor(R"("stream":true,"stream_options":[])"), "stream_options");
  EXPECT_EQ(RefusedFor(R"("stream":true,"prompt_logprobs":1)"), "");
  for (const char* ids : {"[]", "[-1]", "[1000]", "[1.5]", "[\"1\"]", "1", "[[1]]", "[true]"}) {
    EXPECT_EQ(RefusedFor("\"allowed_token_ids\":" + std::string(ids)), "allowed_token_ids") << ids;
  }
  EXPECT_EQ(RefusedFor(R"("allowed_token_ids":[0,999])"), "");
  for (const char* words : {R"([""])", "[1]", "7", R"({"a":1})", R"([["a"]])"}) {
    EXPECT_EQ(RefusedFor("\"bad_words\":" + std::string(words)), "bad_words") << words;
  }
  EXPECT_EQ(RefusedFor(R"("bad_words":["a"," "])"), "");
  EXPECT_EQ(RefusedFor("\"bad_words\":[\"" + std::string(8193, 'x') + "\"]"), "bad_words");
  EXPECT_EQ(RefusedFor(R"("truncation_side":"middle")"), "truncation_side");
  EXPECT_EQ(RefusedFor(R"("truncation_side":"right")"), "");
}

TEST_F(OpenAiRequestTest, PredictionIsATextOrTextParts) {
  const auto chat = [&](const std::string& prediction) {
    return Chat(R"({"messages":[{"role":"user","content":"a"}],"prediction":)" + prediction + "}");
  };
  Result<OpenAiRequest> parsed = chat(R"({"type":"content","content":"one\ntwo"})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->predicts);
  EXPECT_EQ(parsed->generate.prediction, "one\ntwo");
  parsed = chat(
      R"({"type":"content","content":[{"type":"text","text":"one"},{"type":"text","text":" two"}]})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->generate.prediction, "one two");
  parsed = chat("null");
  ASSERT_TRUE(parsed.ok());
  EXPECT_FALSE(parsed->predicts);

  EXPECT_EQ(ChatRefusedFor(R"("prediction":"one")"), "prediction");
  EXPECT_EQ(ChatRefusedFor(R"("prediction":{"content":"one"})"), "prediction.type");
  EXPECT_EQ(ChatRefusedFor(R"("prediction":{"type":"text","content":"one"})"), "prediction.type");
  EXPECT_EQ(ChatRefusedFor(R"("prediction":{"type":"content"})"), "prediction.content");
  EXPECT_EQ(ChatRefusedFor(R"("prediction":{"type":"content","content":7})"), "prediction.content");
  EXPECT_EQ(ChatRefusedFor(
                R"("prediction":{"type":"content","content":[{"type":"image_url","text":"a"}]})"),
            "prediction.content[0].type");
  EXPECT_EQ(
      ChatRefusedFor(R"("prediction":{"type":"content","content":[{"type":"text","text":1}]})"),
      "prediction.content[0].text");
  EXPECT_EQ(RefusedFor(R"("prediction":7)"), "") << "passed over for completions";
}

TEST_F(OpenAiRequestTest, MessagesAreConvertedForTheTemplate) {
  const Result<OpenAiRequest> parsed = Chat(
      R"({"messages":[{"role":"system","content":"be \"brief\""},{"role":"user","name":"bob","content":[{"type":"text","text":"a"},
          {"type":"text","text":"b"}]},{"role":"assistant","content":""}],
          "add_generation_prompt":false,"chat_template_kwargs":{"shout":true,"k":1.5,"l":[{"b":1,"a":null}],"n":null},"logprobs":true,"top_logprobs":2})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const auto& chat = std::get<Conversation>(parsed.value().generate.prompts.at(0));
  EXPECT_EQ(
      TemplateJsonOf(chat).messages,
      R"([{"role":"system","content":"be \"brief\""},{"role":"user","content":"a\nb","name":"bob"},)"
      R"({"role":"assistant","content":""}])");
  EXPECT_EQ(chat.template_kwargs, R"({"shout":true,"k":1.5,"l":[{"b":1,"a":null}]})");
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_EQ(parsed.value().generate.sampling.num_logprobs, 2);
  EXPECT_EQ(parsed.value().generate.max_tokens_default, 0);
}

TEST_F(OpenAiRequestTest, InvalidMessagesAreRefusedWithTheirPath) {
  const auto refused_for = [&](const std::string& messages) {
    return Chat("{\"messages\":" + messages + "}").status().param();
  };
  EXPECT_EQ(Chat("{}").status().param(), "messages");
  EXPECT_EQ(refused_for("[]"), "messages");
  EXPECT_EQ(refused_for("\"hi\""), "messages");
  EXPECT_EQ(refused_for("[\"hi\"]"), "messages[0]");
  EXPECT_EQ(refused_for(R"([{"role":"user","content":"a"},{"role":"wizard","content":"a"}])"),
            "messages[1].role");
  EXPECT_EQ(refused_for(R"([{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused_for(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refused_for(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(
      refused_for(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"),
      "messages[0].content");
  EXPECT_EQ(refused_for(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content");
  EXPECT_EQ(ChatRefusedFor(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(ChatRefusedFor(R"("logprobs":2)"), "logprobs");
  EXPECT_EQ(ChatRefusedFor(R"("echo":true)"), "echo");
  EXPECT_EQ(ChatRefusedFor(R"("chat_template_kwargs":{"messages":1})"),
            "chat_template_kwargs.messages");
  EXPECT_EQ(ChatRefusedFor(R"("chat_template_kwargs":[1])"), "chat_template_kwargs");
  EXPECT_EQ(
      ChatRefusedFor(R"("chat_template_kwargs":{"a":[")" + std::string(1 << 20, 'x') + R"("]})"),
      "chat_template_kwargs");
}

TEST_F(OpenAiRequestTest, EchoWithoutOutputStillScoresThePrompt) {
  EXPECT_EQ(Completion(R"({"prompt":"a","echo":true,"max_tokens":0,"logprobs":3})")
                .value()
                .generate.sampling.prompt_logprobs,
            3);
  EXPECT_EQ(Completion(R"({"prompt":"a","echo":true,"max_tokens":0})")
                .value()
                .generate.sampling.prompt_logprobs,
            0);
  EXPECT_EQ(Completion(R"({"prompt":"a","echo":true})").value().generate.sampling.prompt_logprobs,
            -1);
  EXPECT_EQ(RefusedFor(R"("max_tokens":0)"), "max_tokens");
}

TEST_F(OpenAiRequestTest, ErrorShowsANumberAsItWasSent) {
  struct Case {
    const char *member, *shown;
  };
  const Case cases[] = {
      {R"("temperature":-1e-9)", "temperature is -1e-9;"},
      {R"("temperature":1e30)", "temperature is 1e30;"},
      {R"("temperature":1E+2e)", "not valid JSON"},
      {R"("temperature":100.50)", "temperature is 100.50;"},
      {R"("temperature":1000000000000000000000000000000)",
       "temperature is 1000000000000000000000000000000;"},
      {R"("temperature":101)", "temperature is 101;"},
      {R"("temperature":1e400)", "the number 1e400, at byte"},
      {R"("top_p":0.0)", "top_p is 0.0; allowed: above 0 to 1"},
      {R"("top_p":-0)", "top_p is -0;"},
      {R"("min_p":1.0000001)", "min_p is 1.0000001;"},
      {R"("presence_penalty":-2.5e0)", "presence_penalty is -2.5e0;"},
      {R"("frequency_penalty":2.000001)", "frequency_penalty is 2.000001;"},
      {R"("repetition_penalty":1e-30)", "repetition_penalty is 1e-30; allowed: 0.01 to 100"},
      {R"("logit_bias":{"5":-100.25e0})", "logit_bias is -100.25e0 for token 5;"},
      {R"("max_tokens":1e2)", "max_tokens is 1e2; allowed: an integer"},
      {R"("max_tokens":99999999999999999999999)", "max_tokens is 99999999999999999999999;"},
      {R"("max_tokens":-5)", "max_tokens is -5;"},
      {R"("n":2.50)", "n is 2.50;"},
      {R"("seed":1e3)", "seed is 1e3;"},
      {R"("stop":-0)", "stop is -0;"},
      {R"("echo":1e0)", "echo is 1e0;"},
      {R"("n":1e0,"n":3000000000)", "n is 3000000000;"},
  };
  for (const Case& c : cases) {
    const Status status = Checked(Completion("{\"prompt\":\"a\"," + std::string(c.member) + "}"));
    EXPECT_NE(status.message().find(c.shown), std::string::npos)
        << c.member << ": " << status.message();
  }
}

TEST_F(OpenAiRequestTest, JsonIsRefusedAtItsLimits) {
  for (const int depth : {62, 63, 64, 1000, 100'000}) {
    const std::string nested = std::string(depth, '[') + std::string(depth, ']');
    const Result<OpenAiRequest> parsed = Completion("{\"prompt\":\"a\",\"user\":" + nested + "}");
    EXPECT_EQ(parsed.ok(), depth <= 63) << depth;
  }
  for (const char* bad :
       {"", " ", "{", "{}x", "{\"prompt\":\"a\",}", "[]", "null", "7", "\"a\"",
        "{\"prompt\":\"\xFF\"}", "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"\n\"}",
        "{'prompt':'a'}", "\xEF\xBB\xBF", "{\"a\":1}{\"b\":2}"}) {
    const Status status = Completion(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_LT(status.message().size(), 200u);
  }
}

TEST_F(OpenAiRequestTest, LastOfRepeatedMembersCounts) {
  const Result<OpenAiRequest> parsed = Completion(
      R"({"prompt":"a","max_tokens":{"x":1},"max_tokens":5,"prompt":"b"})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().generate.max_tokens, 5);
  EXPECT_EQ(std::get<std::string>(parsed.value().generate.prompts.at(0)), "b");
}

TEST_F(OpenAiRequestTest, AnotherModelIsNotFound) {
  limits_.names.name = "tiny";
  const std::vector<std::string> models = {"../tiny",     "/etc/passwd",           "TINY",
                                           "tiny\\u0000", std::string(10240, 'm'), "t\xC3\xADny"};
  for (const std::string& model : models) {
    const Status status = Checked(Completion("{\"prompt\":\"a\",\"model\":\"" + model + "\"}"));
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << model;
    EXPECT_EQ(status.param(), "model");
    EXPECT_LT(status.message().size(), 300u);
  }
}

TEST_F(OpenAiRequestTest, TokenizeAcceptsTextOrMessages) {
  const auto text = ParseTokenizeRequest(R"({"prompt":"ab","return_token_strs":true})", Context());
  ASSERT_TRUE(text.ok());
  EXPECT_TRUE(text.value().add_special_tokens && text.value().return_token_strs);
  const auto chat = ParseTokenizeRequest(R"({"messages":[{"role":"user","content":"a"}]})",
                                         Context());
  ASSERT_TRUE(chat.ok());
  EXPECT_FALSE(chat.value().add_special_tokens);
  const auto tools = ParseTokenizeRequest(
      R"({"messages":[{"role":"user","content":"a"}],
          "tools":[{"type":"function","function":{"name":"f"}}]})",
      Context());
  ASSERT_TRUE(tools.ok());
  EXPECT_EQ(std::get<Conversation>(tools.value().prompt).tools.at(0).name, "f");
  EXPECT_EQ(ParseTokenizeRequest("{}", Context()).status().param(), "prompt");
  EXPECT_EQ(ParseDetokenizeRequest("{}", Context()).status().param(), "tokens");
  EXPECT_EQ(ParseDetokenizeRequest(R"({"tokens":[-1]})", Context()).status().param(), "tokens");
  EXPECT_EQ(ParseDetokenizeRequest(R"({"tokens":[1,2]})", Context()).value().tokens.size(), 2u);
}

}  // namespace
}  // namespace diffserve
