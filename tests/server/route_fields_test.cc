// SPDX-License-Identifier: Apache-2.0
// Every request member of the other routes that generate or embed, and of those that clients know
// from the chat route: supported, refused by name, or accepted without effect
// (openai_fields_test.cc has chat and completions).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/api/anthropic/request.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"
#include "server/api/vllm/request.h"
#include "server/serving/request_checks.h"
#include "tests/testing/member_use.h"

namespace diffserve {
namespace {

using testing::MemberUse;
using enum testing::MemberUse;

struct RouteMember {
  const char* name;
  const char* value;  // a value other than off
  MemberUse use;
  const char* param = "";  // the name in a refusal; empty: `name`
};

constexpr char kTool[] =
    R"([{"name":"f","description":"d","input_schema":{"type":"object"},"strict":true}])";
constexpr char kFunction[] = R"([{"type":"function","name":"f","parameters":{"type":"object"}}])";

// Members of chat clients that any route may get. `n` and similar ones exist in no other API.
const RouteMember kFromChat[] = {
    {"n", "2", kRefused},
    {"best_of", "2", kRefused},
    {"logprobs", "true", kRefused},
    {"top_logprobs", "3", kRefused},
    {"prompt_logprobs", "3", kRefused},
    {"echo", "true", kRefused},
    {"suffix", R"("x")", kRefused},
    {"bad_words", R"(["x"])", kRefused},
    {"allowed_token_ids", "[3]", kRefused},
    {"max_completion_tokens", "5", kRefused},
    {"response_format", R"({"type":"json_object"})", kRefused},
    {"structured_outputs", R"({"regex":"a"})", kRefused},
    {"guided_json", "{\"type\":\"object\"}", kRefused},
    {"guided_regex", R"("a")", kRefused},
    {"guided_choice", R"(["a"])", kRefused},
    {"guided_grammar", R"("start: \"a\"")", kRefused},
    {"regex", R"("a")", kRefused},
    {"ebnf", R"("root ::= \"a\"")", kRefused},
    {"json_schema", R"({"type":"object"})", kRefused},
    {"grammar", R"("x")", kRefused},
    {"thinking_token_budget", "5", kRefused},
    {"max_reasoning_tokens", "5", kRefused},
    {"reasoning_effort", R"("low")", kRefused},
    {"chat_template_kwargs", R"({"a":true})", kRefused},
    {"add_generation_prompt", "true", kRefused},
    {"return_token_ids", "true", kRefused},
    {"use_beam_search", "true", kRefused},
    {"kv_transfer_params", R"({"a":1})", kRefused},
    {"repeat_penalty", "1.1", kRefused},
    {"mirostat", "2", kRefused},
    {"lora_path", R"("x")", kRefused},
    {"some_future_member", R"({"a":[1,2]})", kUnknown},
};

// Sampling members of routes that convert to a chat.
const RouteMember kSampling[] = {
    {"temperature", "0.5", kServed},
    {"top_p", "0.5", kServed},
    {"top_k", "5", kServed},
    {"min_p", "0.5", kServed},
    {"presence_penalty", "1", kServed},
    {"frequency_penalty", "1", kServed},
    {"repetition_penalty", "1.5", kServed},
    {"logit_bias", R"({"3":1})", kServed},
    {"seed", "5", kServed},
    {"min_tokens", "2", kServed},
    {"stop_token_ids", "[3]", kServed},
    {"ignore_eos", "true", kServed},
    {"skip_special_tokens", "false", kServed},
    {"include_stop_str_in_output", "true", kServed},
    {"cache_salt", R"("s")", kServed},
};

const RouteMember kOfMessages[] = {
    {"model", R"("tiny")", kServed},
    {"system", R"("s")", kServed},
    {"stop_sequences", R"(["x"])", kServed},
    {"stream", "true", kServed},
    {"tools", kTool, kServed},
    {"tool_choice", R"({"type":"none"})", kServed},
    {"tool_choice", R"({"type":"most"})", kRefused, "tool_choice.type"},
    {"thinking", R"({"type":"enabled","budget_tokens":2})", kServed},
    {"thinking", R"({"type":"enabled"})", kRefused, "thinking.budget_tokens"},
    {"output_config", R"({"format":{"type":"json_schema","schema":{}}})", kServed},
    {"output_config", R"({"format":{"type":"xml"}})", kRefused, "output_config.format.type"},
    {"output_format", R"({"type":"json_schema","schema":{}})", kServed},
    {"metadata", R"({"user_id":"u"})", kIgnored},
    {"service_tier", R"("auto")", kIgnored},
    {"cache_control", R"({"type":"ephemeral"})", kIgnored},
    {"inference_geo", R"("eu")", kIgnored},
    {"betas", R"(["x"])", kIgnored},
    {"container", R"("x")", kRefused},
    {"mcp_servers", "[{}]", kIgnored},
    {"context_management", R"({"a":1})", kIgnored},
    {"speed", R"("fast")", kIgnored},
    {"stop", R"(["x"])", kRefused},
    {"stream_options", R"({"include_usage":true})", kRefused},
    {"parallel_tool_calls", "false", kUnknown},
};

const RouteMember kOfResponses[] = {
    {"model", R"("tiny")", kServed},
    {"instructions", R"("s")", kServed},
    {"max_output_tokens", "5", kServed},
    {"stream", "true", kServed},
    {"stop", R"(["x"])", kServed},
    {"priority", "3", kServed},
    {"text", R"({"format":{"type":"json_schema","name":"a","schema":{}}})", kServed},
    {"text", R"({"format":{"type":"json_object"}})", kServed},
    {"text", R"({"format":{"type":"xml"}})", kRefused, "text.format.type"},
    {"text", R"({"verbosity":"low"})", kServed},
    {"tools", kFunction, kServed},
    {"tools", R"([{"type":"web_search"}])", kServed},
    {"tool_choice", R"("none")", kServed},
    {"tool_choice", R"({"type":"file_search"})", kRefused, "tool_choice.type"},
    {"parallel_tool_calls", "false", kServed},
    {"reasoning", R"({"effort":"low"})", kServed},
    {"reasoning", R"({"summary":"detailed"})", kServed},
    {"reasoning", R"({"summary":"long"})", kRefused, "reasoning.summary"},
    {"truncation", R"("auto")", kServed},
    {"store", "false", kServed},
    {"previous_response_id", R"("resp_1")", kServed},
    {"metadata", R"({"a":"b"})", kServed},
    {"user", R"("u")", kServed},
    {"safety_identifier", R"("u")", kServed},
    {"prompt_cache_key", R"("u")", kServed},
    {"service_tier", R"("auto")", kIgnored},
    {"prompt_cache_retention", R"("24h")", kIgnored},
    {"stream_options", R"({"include_obfuscation":false})", kIgnored},
    {"background", "true", kRefused},
    {"include", R"(["reasoning.encrypted_content"])", kServed},
    {"include", R"(["message.output_text.logprobs"])", kRefused},
    {"conversation", R"("x")", kRefused},
    {"prompt", R"({"id":"x"})", kRefused},
    {"max_tool_calls", "3", kIgnored},
    {"client_metadata", R"({"a":"b"})", kIgnored},
    {"moderation", R"({"a":1})", kRefused},
    {"context_management", R"([{"a":1}])", kIgnored},
};

const RouteMember kOfEmbeddings[] = {
    {"model", R"("tiny")", kServed},
    {"encoding_format", R"("base64")", kServed},
    {"encoding_format", R"("bits")", kRefused},
    {"dimensions", "8", kServed},
    {"dimensions", "65", kRefused},
    {"pooling", R"("last")", kServed},
    {"add_special_tokens", "false", kServed},
    {"truncate_prompt_tokens", "5", kServed},
    {"cache_salt", R"("s")", kServed},
    {"normalize", "true", kServed},
    {"normalize", "false", kRefused},
    {"use_activation", "false", kRefused},
    {"user", R"("u")", kIgnored},
    {"request_id", R"("r")", kIgnored},
    {"messages", R"([{"role":"user","content":"a"}])", kRefused},
    {"prompt_embeds", R"("AAAA")", kRefused},
    {"embed_dtype", R"("float16")", kRefused},
    {"endianness", R"("big")", kRefused},
    {"truncation_side", R"("right")", kRefused},
    {"mm_processor_kwargs", R"({"a":1})", kRefused},
    {"chat_template", R"("x")", kRefused},
    {"priority", "3", kRefused},
    {"temperature", "0.5", kUnknown},
    {"some_future_member", "1", kUnknown},
};

const RouteMember kOfGenerate[] = {
    {"model", R"("tiny")", kServed},
    {"stream", "true", kServed},
    {"priority", "3", kServed},
    {"cache_salt", R"("s")", kServed},
    {"request_id", R"("r")", kServed},
    {"prompt", R"("x")", kIgnored},
    {"features", R"({"a":1})", kRefused},
    {"kv_transfer_params", R"({"a":1})", kRefused},
    {"ec_transfer_params", R"({"a":1})", kRefused},
    {"some_future_member", "1", kUnknown},
};

// Members of its sampling_params.
const RouteMember kOfGenerateSampling[] = {
    {"max_tokens", "5", kServed},
    {"n", "2", kServed},
    {"stop", R"(["x"])", kServed},
    {"logprobs", "3", kServed},
    {"prompt_logprobs", "3", kServed},
    {"bad_words", R"(["x"])", kServed},
    {"allowed_token_ids", "[3]", kServed},
    {"truncate_prompt_tokens", "1", kServed},
    {"detokenize", "false", kIgnored},
    {"output_kind", "2", kIgnored},
    {"spaces_between_special_tokens", "true", kIgnored},
    {"length_penalty", "2", kIgnored},
    {"stream_interval", "2", kIgnored},
    {"structured_outputs", R"({"regex":"a"})", kServed},
    {"guided_decoding", R"({"regex":"a"})", kRefused},
    {"logits_processors", R"(["x"])", kRefused},
    {"use_beam_search", "true", kRefused},
    {"logprob_token_ids", "[1]", kRefused},
    {"flat_logprobs", "true", kRefused},
    {"thinking_token_budget", "5", kRefused},
    {"repetition_detection", R"({"a":1})", kRefused},
    {"early_stopping", "true", kRefused},
    {"skip_clone", "true", kRefused},
    {"extra_args", R"({"a":1})", kRefused},
    {"vllm_xargs", R"({"a":1})", kRefused},
    {"some_future_member", "1", kUnknown},
};

class RouteFieldsTest : public ::testing::Test {
 protected:
  using Route = std::function<Status(const std::string& member, bool strict)>;

  RouteFieldsTest() {
    limits_.served_model_name = "tiny";
    limits_.formats.tools = FindToolFormat("hermes");
  }
  ReadContext Context(bool strict) const { return {&limits_, SamplingParams(), strict}; }
  Status Checked(const GenerateRequest& request) const {
    return CheckRequest(request, {&limits_, 1000, 512, 256});
  }

  Status Messages(const std::string& member, bool strict) const {
    const auto parsed = ParseMessagesRequest(
        R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],)" + member + "}",
        Context(strict));
    return parsed.ok() ? Checked(parsed->generate) : parsed.status();
  }
  Status Responses(const std::string& member, bool strict) const {
    const auto parsed = ParseResponsesRequest(R"({"input":"a",)" + member + "}", Context(strict));
    if (!parsed.ok()) return parsed.status();
    const auto chat = ChatOf(*parsed, nullptr, Context(strict));
    return chat.ok() ? Checked(chat->request.generate) : chat.status();
  }
  Status Embeddings(const std::string& member, bool strict) const {
    auto parsed = ParseEmbeddingRequest(R"({"input":"a",)" + member + "}", Context(strict));
    if (!parsed.ok()) return parsed.status();
    DS_RETURN_IF_ERROR(AddPools(/*hidden_size=*/64, &*parsed));
    return Checked(parsed->generate);
  }
  Status Generate(const std::string& members, bool strict) const {
    const auto parsed = ParseTokenRequest(R"({"token_ids":[1,2],)" + members + "}",
                                          Context(strict));
    return parsed.ok() ? Checked(parsed->request.generate) : parsed.status();
  }

  static std::string Text(const RouteMember& member, const char* value) {
    return "\"" + std::string(member.name) + "\":" + value;
  }

  template <size_t kCount>
  void Expect(const Route& route, const RouteMember (&members)[kCount],
              const std::string& path = "") {
    for (const RouteMember& member : members) {
      for (const bool strict : {false, true}) {
        const Status status = route(Text(member, member.value), strict);
        const bool refused = member.use == kRefused || (strict && member.use == kUnknown);
        EXPECT_EQ(status.ok(), !refused)
            << member.name << " " << member.value << ": " << status.message();
        if (!refused) continue;
        const std::string param = *member.param == '\0' ? member.name : member.param;
        EXPECT_EQ(status.param(), path + param);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << member.name;
      }
      if (member.use == kRefused) {
        EXPECT_TRUE(route(Text(member, "null"), false).ok()) << member.name;
      }
      if (member.use != kIgnored) continue;
      for (const char* value : {"null", "true", "-1.5", R"("x")", "[[]]", R"({"a":{}})"})
        EXPECT_TRUE(route(Text(member, value), true).ok()) << member.name << " " << value;
    }
  }

  FrontendOptions limits_;
};

TEST_F(RouteFieldsTest, EachMemberOfMessagesIsServedIgnoredOrRefusedByItsName) {
  const Route route = [this](const std::string& m, bool strict) { return Messages(m, strict); };
  Expect(route, kOfMessages);
  Expect(route, kSampling);
  Expect(route, kFromChat);
  EXPECT_EQ(route(R"("prompt":"x")", false).param(), "prompt");
}

TEST_F(RouteFieldsTest, EachMemberOfResponsesIsServedIgnoredOrRefusedByItsName) {
  const Route route = [this](const std::string& m, bool strict) { return Responses(m, strict); };
  Expect(route, kOfResponses);
  Expect(route, kSampling);
  Expect(route, kFromChat);
}

TEST_F(RouteFieldsTest, EachMemberOfEmbeddingsIsServedIgnoredOrRefusedByItsName) {
  Expect([this](const std::string& m, bool strict) { return Embeddings(m, strict); },
         kOfEmbeddings);
}

TEST_F(RouteFieldsTest, EachMemberOfGenerateIsServedIgnoredOrRefusedByItsName) {
  const Route sampling = [this](const std::string& member, bool strict) {
    return Generate("\"sampling_params\":{" + member + "}", strict);
  };
  Expect([this](const std::string& m, bool strict) { return Generate(m, strict); }, kOfGenerate);
  const std::string path = "sampling_params.";
  Expect(sampling, kOfGenerateSampling, path);
  for (const RouteMember& member : kSampling) {
    if (std::string(member.name) == "cache_salt") continue;  // next to sampling_params
    EXPECT_TRUE(sampling(Text(member, member.value), true).ok()) << member.name;
  }
}

TEST_F(RouteFieldsTest, RoutesReturnOneContinuation) {
  EXPECT_TRUE(Messages(R"("n":1,"best_of":1)", true).ok());
  EXPECT_TRUE(Responses(R"("n":1)", true).ok());
}

// Each route generates the properties in the order in which the client wrote them.
TEST_F(RouteFieldsTest, SchemaKeepsTheOrderOfItsProperties) {
  const std::string schema = R"({"type": "object", "properties": {"z": {}, "a": {}}})";
  const auto messages = ParseMessagesRequest(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],"output_config":{"format":)"
      R"({"type":"json_schema","schema":)" +
          schema + "}}}",
      Context(false));
  ASSERT_TRUE(messages.ok());
  EXPECT_EQ(messages->generate.grammar->text, schema);
  const auto named = ParseMessagesRequest(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"tool",)"
      R"("name":"f"},"tools":[{"name":"f","input_schema":)" +
          schema + "}]}",
      Context(false));
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->generate.grammar->text, schema);
  for (const std::string& members :
       {R"("text":{"format":{"type":"json_schema","name":"a","schema":)" + schema + "}}",
        R"("tool_choice":{"type":"function","name":"f"},"tools":[{"type":"function","name":"f",)"
        R"("parameters":)" +
            schema + "}]"}) {
    const auto parsed = ParseResponsesRequest(R"({"input":"a",)" + members + "}", Context(false));
    ASSERT_TRUE(parsed.ok());
    const auto chat = ChatOf(*parsed, nullptr, Context(false));
    ASSERT_TRUE(chat.ok());
    EXPECT_EQ(chat->request.generate.grammar->text, schema);
  }
}

}  // namespace
}  // namespace diffserve
