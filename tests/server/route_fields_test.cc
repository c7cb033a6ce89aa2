// SPDX-License-Identifier: Apache-2.0
// Every request member of the other routes that generate or embed, and of those that clients know
// from the chat route: supported, refused by name, or accepted without effect
// (openai_fields_test.cc has chat and completions).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/openai/embedding_request.h"
#include "server/openai/messages_request.h"
#include "server/openai/request.h"
#include "server/openai/responses_request.h"
#include "server/openai/token_request.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

enum class RouteUse {
  kRouteServed,   // supported
  kRouteIgnored,  // accepted without effect, whatever its value
  kRouteRefused,  // 400 with its name, unless its value means off
  kRouteUnknown,  // not a member of this route: accepted, or refused with --strict
};

struct RouteMember {
  const char* name;
  const char* value;  // a value other than off
  RouteUse use;
  const char* param = "";  // the name in a refusal; empty: `name`
};

constexpr RouteUse kRouteServed = RouteUse::kRouteServed, kRouteIgnored = RouteUse::kRouteIgnored,
                   kRouteRefused = RouteUse::kRouteRefused, kRouteUnknown = RouteUse::kRouteUnknown;

constexpr char kTool[] =
    R"([{"name":"f","description":"d","input_schema":{"type":"object"},"strict":true}])";
constexpr char kFunction[] = R"([{"type":"function","name":"f","parameters":{"type":"object"}}])";

// Members of chat clients that any route may get. `n` and similar ones exist in no other API.
const RouteMember kFromChat[] = {
    {"n", "2", kRouteRefused},
    {"best_of", "2", kRouteRefused},
    {"logprobs", "true", kRouteRefused},
    {"top_logprobs", "3", kRouteRefused},
    {"prompt_logprobs", "3", kRouteRefused},
    {"echo", "true", kRouteRefused},
    {"suffix", R"("x")", kRouteRefused},
    {"bad_words", R"(["x"])", kRouteRefused},
    {"allowed_token_ids", "[3]", kRouteRefused},
    {"max_completion_tokens", "5", kRouteRefused},
    {"response_format", R"({"type":"json_object"})", kRouteRefused},
    {"structured_outputs", R"({"regex":"a"})", kRouteRefused},
    {"guided_json", "{\"type\":\"object\"}", kRouteRefused},
    {"guided_regex", R"("a")", kRouteRefused},
    {"guided_choice", R"(["a"])", kRouteRefused},
    {"guided_grammar", R"("start: \"a\"")", kRouteRefused},
    {"regex", R"("a")", kRouteRefused},
    {"ebnf", R"("root ::= \"a\"")", kRouteRefused},
    {"json_schema", R"({"type":"object"})", kRouteRefused},
    {"grammar", R"("x")", kRouteRefused},
    {"thinking_token_budget", "5", kRouteRefused},
    {"max_reasoning_tokens", "5", kRouteRefused},
    {"reasoning_effort", R"("low")", kRouteRefused},
    {"chat_template_kwargs", R"({"a":true})", kRouteRefused},
    {"add_generation_prompt", "true", kRouteRefused},
    {"return_token_ids", "true", kRouteRefused},
    {"use_beam_search", "true", kRouteRefused},
    {"kv_transfer_params", R"({"a":1})", kRouteRefused},
    {"repeat_penalty", "1.1", kRouteRefused},
    {"mirostat", "2", kRouteRefused},
    {"lora_path", R"("x")", kRouteRefused},
    {"some_future_member", R"({"a":[1,2]})", kRouteUnknown},
};

// Sampling members of routes that convert to a chat.
const RouteMember kSampling[] = {
    {"temperature", "0.5", kRouteServed},
    {"top_p", "0.5", kRouteServed},
    {"top_k", "5", kRouteServed},
    {"min_p", "0.5", kRouteServed},
    {"presence_penalty", "1", kRouteServed},
    {"frequency_penalty", "1", kRouteServed},
    {"repetition_penalty", "1.5", kRouteServed},
    {"logit_bias", R"({"3":1})", kRouteServed},
    {"seed", "5", kRouteServed},
    {"min_tokens", "2", kRouteServed},
    {"stop_token_ids", "[3]", kRouteServed},
    {"ignore_eos", "true", kRouteServed},
    {"skip_special_tokens", "false", kRouteServed},
    {"include_stop_str_in_output", "true", kRouteServed},
    {"cache_salt", R"("s")", kRouteServed},
};

const RouteMember kOfMessages[] = {
    {"model", R"("tiny")", kRouteServed},
    {"system", R"("s")", kRouteServed},
    {"stop_sequences", R"(["x"])", kRouteServed},
    {"stream", "true", kRouteServed},
    {"tools", kTool, kRouteServed},
    {"tool_choice", R"({"type":"none"})", kRouteServed},
    {"tool_choice", R"({"type":"most"})", kRouteRefused, "tool_choice.type"},
    {"thinking", R"({"type":"enabled","budget_tokens":2})", kRouteServed},
    {"thinking", R"({"type":"enabled"})", kRouteRefused, "thinking.budget_tokens"},
    {"output_config", R"({"format":{"type":"json_schema","schema":{}}})", kRouteServed},
    {"output_config", R"({"format":{"type":"xml"}})", kRouteRefused, "output_config.format.type"},
    {"output_format", R"({"type":"json_schema","schema":{}})", kRouteServed},
    {"metadata", R"({"user_id":"u"})", kRouteIgnored},
    {"service_tier", R"("auto")", kRouteIgnored},
    {"cache_control", R"({"type":"ephemeral"})", kRouteIgnored},
    {"inference_geo", R"("eu")", kRouteIgnored},
    {"betas", R"(["x"])", kRouteIgnored},
    {"container", R"("x")", kRouteRefused},
    {"mcp_servers", "[{}]", kRouteIgnored},
    {"context_management", R"({"a":1})", kRouteIgnored},
    {"speed", R"("fast")", kRouteIgnored},
    {"stop", R"(["x"])", kRouteRefused},
    {"stream_options", R"({"include_usage":true})", kRouteRefused},
    {"parallel_tool_calls", "false", kRouteUnknown},
};

const RouteMember kOfResponses[] = {
    {"model", R"("tiny")", kRouteServed},
    {"instructions", R"("s")", kRouteServed},
    {"max_output_tokens", "5", kRouteServed},
    {"stream", "true", kRouteServed},
    {"stop", R"(["x"])", kRouteServed},
    {"priority", "3", kRouteServed},
    {"text", R"({"format":{"type":"json_schema","name":"a","schema":{}}})", kRouteServed},
    {"text", R"({"format":{"type":"json_object"}})", kRouteServed},
    {"text", R"({"format":{"type":"xml"}})", kRouteRefused, "text.format.type"},
    {"text", R"({"verbosity":"low"})", kRouteServed},
    {"tools", kFunction, kRouteServed},
    {"tools", R"([{"type":"web_search"}])", kRouteServed},
    {"tool_choice", R"("none")", kRouteServed},
    {"tool_choice", R"({"type":"file_search"})", kRouteRefused, "tool_choice.type"},
    {"parallel_tool_calls", "false", kRouteServed},
    {"reasoning", R"({"effort":"low"})", kRouteServed},
    {"reasoning", R"({"summary":"detailed"})", kRouteServed},
    {"reasoning", R"({"summary":"long"})", kRouteRefused, "reasoning.summary"},
    {"truncation", R"("auto")", kRouteServed},
    {"store", "false", kRouteServed},
    {"previous_response_id", R"("resp_1")", kRouteServed},
    {"metadata", R"({"a":"b"})", kRouteServed},
    {"user", R"("u")", kRouteServed},
    {"safety_identifier", R"("u")", kRouteServed},
    {"prompt_cache_key", R"("u")", kRouteServed},
    {"service_tier", R"("auto")", kRouteIgnored},
    {"prompt_cache_retention", R"("24h")", kRouteIgnored},
    {"stream_options", R"({"include_obfuscation":false})", kRouteIgnored},
    {"background", "true", kRouteRefused},
    {"include", R"(["reasoning.encrypted_content"])", kRouteServed},
    {"include", R"(["message.output_text.logprobs"])", kRouteRefused},
    {"conversation", R"("x")", kRouteRefused},
    {"prompt", R"({"id":"x"})", kRouteRefused},
    {"max_tool_calls", "3", kRouteIgnored},
    {"client_metadata", R"({"a":"b"})", kRouteIgnored},
    {"moderation", R"({"a":1})", kRouteRefused},
    {"context_management", R"([{"a":1}])", kRouteIgnored},
};

const RouteMember kOfEmbeddings[] = {
    {"model", R"("tiny")", kRouteServed},
    {"encoding_format", R"("base64")", kRouteServed},
    {"encoding_format", R"("bits")", kRouteRefused},
    {"dimensions", "8", kRouteServed},
    {"dimensions", "65", kRouteRefused},
    {"pooling", R"("last")", kRouteServed},
    {"add_special_tokens", "false", kRouteServed},
    {"truncate_prompt_tokens", "5", kRouteServed},
    {"cache_salt", R"("s")", kRouteServed},
    {"normalize", "true", kRouteServed},
    {"normalize", "false", kRouteRefused},
    {"use_activation", "false", kRouteRefused},
    {"user", R"("u")", kRouteIgnored},
    {"request_id", R"("r")", kRouteIgnored},
    {"messages", R"([{"role":"user","content":"a"}])", kRouteRefused},
    {"prompt_embeds", R"("AAAA")", kRouteRefused},
    {"embed_dtype", R"("float16")", kRouteRefused},
    {"endianness", R"("big")", kRouteRefused},
    {"truncation_side", R"("right")", kRouteRefused},
    {"mm_processor_kwargs", R"({"a":1})", kRouteRefused},
    {"chat_template", R"("x")", kRouteRefused},
    {"priority", "3", kRouteRefused},
    {"temperature", "0.5", kRouteUnknown},
    {"some_future_member", "1", kRouteUnknown},
};

const RouteMember kOfGenerate[] = {
    {"model", R"("tiny")", kRouteServed},
    {"stream", "true", kRouteServed},
    {"priority", "3", kRouteServed},
    {"cache_salt", R"("s")", kRouteServed},
    {"request_id", R"("r")", kRouteServed},
    {"prompt", R"("x")", kRouteIgnored},
    {"features", R"({"a":1})", kRouteRefused},
    {"kv_transfer_params", R"({"a":1})", kRouteRefused},
    {"ec_transfer_params", R"({"a":1})", kRouteRefused},
    {"some_future_member", "1", kRouteUnknown},
};

// Members of its sampling_params.
const RouteMember kOfGenerateSampling[] = {
    {"max_tokens", "5", kRouteServed},
    {"n", "2", kRouteServed},
    {"stop", R"(["x"])", kRouteServed},
    {"logprobs", "3", kRouteServed},
    {"prompt_logprobs", "3", kRouteServed},
    {"bad_words", R"(["x"])", kRouteServed},
    {"allowed_token_ids", "[3]", kRouteServed},
    {"truncate_prompt_tokens", "1", kRouteServed},
    {"detokenize", "false", kRouteIgnored},
    {"output_kind", "2", kRouteIgnored},
    {"spaces_between_special_tokens", "true", kRouteIgnored},
    {"length_penalty", "2", kRouteIgnored},
    {"stream_interval", "2", kRouteIgnored},
    {"structured_outputs", R"({"regex":"a"})", kRouteServed},
    {"guided_decoding", R"({"regex":"a"})", kRouteRefused},
    {"logits_processors", R"(["x"])", kRouteRefused},
    {"use_beam_search", "true", kRouteRefused},
    {"logprob_token_ids", "[1]", kRouteRefused},
    {"flat_logprobs", "true", kRouteRefused},
    {"thinking_token_budget", "5", kRouteRefused},
    {"repetition_detection", R"({"a":1})", kRouteRefused},
    {"early_stopping", "true", kRouteRefused},
    {"skip_clone", "true", kRouteRefused},
    {"extra_args", R"({"a":1})", kRouteRefused},
    {"vllm_xargs", R"({"a":1})", kRouteRefused},
    {"some_future_member", "1", kRouteUnknown},
};

class RouteFieldsTest : public ::testing::Test {
 protected:
  using Route = std::function<Status(const std::string& member, bool strict)>;

  RouteFieldsTest() {
    limits_.served_model_name = "tiny";
    limits_.formats.tools = FindToolFormat("hermes");
  }
  OpenAiContext Context(bool strict) const { return {&limits_, SamplingParams(), strict}; }
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
        const bool refused = member.use == kRouteRefused || (strict && member.use == kRouteUnknown);
        EXPECT_EQ(status.ok(), !refused)
            << member.name << " " << member.value << ": " << status.message();
        if (!refused) continue;
        const std::string param = *member.param == '\0' ? member.name : member.param;
        EXPECT_EQ(status.param(), path + param);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << member.name;
      }
      if (member.use == kRouteRefused) {
        EXPECT_TRUE(route(Text(member, "null"), false).ok()) << member.name;
      }
      if (member.use != kRouteIgnored) continue;
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
