// SPDX-License-Identifier: Apache-2.0
// Each member of each route's tables is served, ignored or refused as its row says.
#include "server/api/fields/members.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/request.h"
#include "server/api/attention/request.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"
#include "server/api/vllm/request.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using Examples = std::map<std::string_view, std::vector<const char*>>;

// Values that a served member takes; further members that they need follow.
const Examples kExamples = {
    {"model", {R"("tiny")", R"("")"}},
    {"prompt", {R"("a")"}},
    {"messages", {R"([{"role":"user","content":"a"}])"}},
    {"max_tokens", {"5"}},
    {"max_completion_tokens", {"5"}},
    {"min_tokens", {"2"}},
    {"n", {"2"}},
    {"best_of", {"1"}},
    {"temperature", {"0.5"}},
    {"top_p", {"0.5"}},
    {"top_k", {"5", "-1"}},
    {"min_p", {"0.5"}},
    {"presence_penalty", {"1"}},
    {"frequency_penalty", {"1"}},
    {"repetition_penalty", {"1.5"}},
    {"logit_bias", {R"({"3":1})", "{}"}},
    {"seed", {"5"}},
    {"stop", {R"(["x"])", R"("")", "[]"}},
    {"stop_token_ids", {"[3]"}},
    {"include_stop_str_in_output", {"true"}},
    {"ignore_eos", {"true"}},
    {"skip_special_tokens", {"false"}},
    {"allowed_token_ids", {"[3,4]"}},
    {"bad_words", {R"(["x"])"}},
    {"truncate_prompt_tokens", {"1"}},
    {"truncation_side", {R"("right")"}},
    {"logprobs", {"3"}},
    {"prompt_logprobs", {"2"}},
    {"top_logprobs", {R"(3,"logprobs":true)"}},
    {"echo", {"true"}},
    {"stream", {"true"}},
    {"stream_options",
     {R"({"include_usage":true,"continuous_usage_stats":true},"stream":true)", "{}"}},
    {"cache_salt", {R"("s")"}},
    {"priority", {"-3"}},
    {"return_token_ids", {"true"}},
    {"return_tokens_as_token_ids", {"true"}},
    {"timings_per_token", {"true"}},
    {"add_special_tokens", {"false"}},
    {"add_generation_prompt", {"false"}},
    {"continue_final_message", {R"(true,"add_generation_prompt":false)", "false"}},
    {"chat_template_kwargs", {R"({"shout":true})", "{}"}},
    {"function_call", {R"("none")", R"("auto")"}},
    {"modalities", {R"(["text"])", "[]"}},
    {"prediction", {R"({"type":"content","content":"a"})"}},
    {"response_format",
     {R"({"type":"json_object"})", R"({"type":"text"})",
      R"({"type":"json_schema","json_schema":{"name":"a","schema":{}}})"}},
    {"structured_outputs", {R"({"regex":"a"})"}},
    {"guided_json", {R"({"type":"object"})"}},
    {"guided_regex", {R"("a|b")"}},
    {"guided_choice", {R"(["a","b"])"}},
    {"guided_grammar", {R"("start: \"a\"")"}},
    {"guided_whitespace_pattern", {R"("[ ]?")", R"("")"}},
    {"disable_any_whitespace", {"true", "false"}},
    {"do_sample", {"true"}},
    {"regex", {R"("a|b")"}},
    {"ebnf", {R"("root ::= \"a\"")"}},
    {"json_schema", {R"({"type":"object"})"}},
    {"max_reasoning_tokens", {"5"}},
    {"thinking_token_budget", {"5"}},
    {"tools", {R"([{"type":"function","function":{"name":"f"}}])", "[]"}},
    {"tool_choice", {R"("none")", R"("")", "{}"}},
    {"parallel_tool_calls", {"false"}},
    {"include_reasoning", {"false"}},
    {"reasoning_effort", {R"("low")", R"("")"}},
    {"request_id", {R"("r")"}},
    {"tokens", {"[1,2]"}},
    {"return_token_strs", {"true"}},
};

const Examples kOfChat = {{"logprobs", {"true"}}};
const Examples kOfMessages = {
    {"system", {R"("s")"}},
    {"stop_sequences", {R"(["x"])"}},
    {"tools",
     {R"([{"name":"f","description":"d","input_schema":{"type":"object"},"strict":true}])"}},
    {"tool_choice", {R"({"type":"none"})"}},
    {"thinking", {R"({"type":"enabled","budget_tokens":2})"}},
    {"output_config", {R"({"format":{"type":"json_schema","schema":{}}})"}},
    {"output_format", {R"({"type":"json_schema","schema":{}})"}},
};
const Examples kOfResponses = {
    {"input", {R"("a")"}},
    {"instructions", {R"("s")"}},
    {"max_output_tokens", {"5"}},
    {"text",
     {R"({"format":{"type":"json_schema","name":"a","schema":{}}})",
      R"({"format":{"type":"json_object"}})", R"({"verbosity":"low"})"}},
    {"tools",
     {R"([{"type":"function","name":"f","parameters":{"type":"object"}}])",
      R"([{"type":"web_search"}])"}},
    {"reasoning", {R"({"effort":"low"})", R"({"summary":"detailed"})"}},
    {"truncation", {R"("auto")"}},
    {"store", {"false"}},
    {"previous_response_id", {R"("resp_1")"}},
    {"metadata", {R"({"a":"b"})"}},
    {"user", {R"("u")"}},
    {"safety_identifier", {R"("u")"}},
    {"prompt_cache_key", {R"("u")"}},
    {"include", {R"(["reasoning.encrypted_content"])", R"(["message.output_text.logprobs"])"}},
    {"top_logprobs", {R"(3,"include":["message.output_text.logprobs"])"}},
};
const Examples kOfEmbeddings = {
    {"input", {R"("a")"}},   {"encoding_format", {R"("base64")"}},
    {"dimensions", {"8"}},   {"pooling", {R"("last")"}},
    {"normalize", {"true"}}, {"use_activation", {"true"}},
};
const Examples kOfPooling = {
    {"input", {R"("a")"}},    {"task", {R"("token_embed")"}}, {"encoding_format", {R"("base64")"}},
    {"normalize", {"false"}}, {"use_activation", {"false"}},
};
const Examples kOfAttention = {
    {"text", {R"("a")"}}, {"heads", {"[0]"}},  {"positions", {"[0]"}},         {"top_k", {"3"}},
    {"layers", {"[0]"}},  {"span", {"[0,1]"}}, {"encoding", {R"("float16")"}},
};
const Examples kOfToken = {
    {"token_ids", {"[1,2]"}},
    {"sampling_params", {R"({"max_tokens":5})"}},
};

constexpr std::string_view kNoType = R"([[{"a":[1.5]}]])";  // a value that no served member takes

const ReadContext& Context() {
  static const FrontendOptions* const limits = [] {
    auto* const options = new FrontendOptions;
    options->names.name = "tiny";
    options->formats.tools = FindToolFormat("hermes");
    return options;
  }();
  static const ReadContext context = {limits, SamplingSpec()};
  return context;
}

Status Checked(const GenerateRequest& request) {
  return CheckRequest(request, {&Context().options->names, 1000, 512, 256});
}
template <auto Parse>
Status Generation(const std::string& body) {
  const auto parsed = Parse(body, Context());
  return parsed.ok() ? Checked(parsed->generate) : parsed.status();
}
template <auto Parse>
Status Parsed(const std::string& body) {
  return Parse(body, Context()).status();
}
Status Responses(const std::string& body) {
  const auto parsed = ParseResponsesRequest(body, Context());
  if (!parsed.ok()) return parsed.status();
  const auto chat = ChatOf(*parsed, nullptr, Context());
  return chat.ok() ? Checked(chat->request.generate) : chat.status();
}
template <auto Parse>
Status Pools(const std::string& body) {
  auto parsed = Parse(body, Context());
  if (!parsed.ok()) return parsed.status();
  DS_RETURN_IF_ERROR(AddPools(/*hidden_size=*/64, &*parsed));
  return Checked(parsed->generate);
}
Status Token(const std::string& body) {
  const auto parsed = ParseTokenRequest(body, Context());
  return parsed.ok() ? Checked(parsed->request.generate) : parsed.status();
}

struct RouteCase {
  const char* name;
  MemberTables tables;
  MemberTables foreign;
  Examples own;
  std::string begin;  // of a body
  Status (*parse)(const std::string& body);
  std::string path = {};  // before a member's name in an error

  Status With(std::string_view member, std::string_view value) const {
    // These routes take one kind of prompt.
    const bool takes_one = tables.data() == members::kAttentionTables ||
                           tables.data() == members::kTokenizeTables ||
                           tables.data() == members::kPoolingTables;
    const bool replaces_messages = takes_one && value != "null" &&
                                   (member == "tokens" || member == "text" || member == "prompt" ||
                                    member == "input");
    return parse(begin + (replaces_messages ? ",\"messages\":null" : "") + ",\"" +
                 std::string(member) + "\":" + std::string(value) + (path.empty() ? "}" : "}}"));
  }
  const std::vector<const char*>& ExamplesOf(std::string_view member) const {
    const auto found = own.find(member);
    return found == own.end() ? kExamples.at(member) : found->second;
  }
};

const std::vector<RouteCase>& Routes() {
  const char kMessage[] = R"({"messages":[{"role":"user","content":"a"}])";
  static const std::vector<RouteCase> routes = {
      {"completions",
       members::kCompletionTables,
       {},
       {},
       R"({"prompt":"a")",
       &Generation<ParseCompletionRequest>},
      {"chat", members::kChatTables, {}, kOfChat, kMessage, &Generation<ParseChatRequest>},
      {"messages", members::kMessagesTables, members::kChatTables, kOfMessages,
       R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}])",
       &Generation<ParseMessagesRequest>},
      {"responses", members::kResponsesTables, members::kChatTables, kOfResponses,
       R"({"input":"a")", &Responses},
      {"embeddings",
       members::kEmbeddingTables,
       {},
       kOfEmbeddings,
       R"({"input":"a")",
       &Pools<ParseEmbeddingRequest>},
      {"pooling", members::kPoolingTables, {}, kOfPooling, kMessage, &Pools<ParsePoolingRequest>},
      {"attention",
       members::kAttentionTables,
       {},
       kOfAttention,
       kMessage,
       &Parsed<ParseAttentionRequest>},
      {"tokenize", members::kTokenizeTables, {}, {}, kMessage, &Parsed<ParseTokenizeRequest>},
      {"detokenize",
       members::kDetokenizeTables,
       {},
       {},
       R"({"tokens":[1])",
       &Parsed<ParseDetokenizeRequest>},
      {"generate", members::kTokenTables, {}, kOfToken, R"({"token_ids":[1,2])", &Token},
      {"sampling_params",
       members::kTokenSamplingTables,
       {},
       {},
       R"({"token_ids":[1,2],"sampling_params":{"max_tokens":9)",
       &Token,
       "sampling_params."},
  };
  return routes;
}

struct KnownMember {
  std::string_view name;
  const MemberRow* row = nullptr;
};
std::vector<KnownMember> MembersOf(MemberTables tables, MemberUse use) {
  std::vector<KnownMember> found;
  for (const MemberTable table : tables) {
    for (const MemberRow& row : table) {
      if (row.use != use) continue;
      for (const std::string_view name : NamesOf(row)) found.push_back({name, &row});
    }
  }
  return found;
}

TEST(MembersTest, NoNameIsTwiceInTheTablesOfARoute) {
  for (const RouteCase& route : Routes()) {
    std::set<std::string_view> names;
    for (const MemberUse use : {MemberUse::kServed, MemberUse::kIgnored, MemberUse::kRefused}) {
      for (const KnownMember& member : MembersOf(route.tables, use)) {
        EXPECT_TRUE(names.insert(member.name).second) << route.name << ": " << member.name;
        EXPECT_EQ(FindMember(route.tables, member.name), member.row) << member.name;
      }
    }
    for (const char* none : {"", " ", "mode", "odel", "model messages"})
      EXPECT_EQ(FindMember(route.tables, none), nullptr) << none;
  }
}

TEST(MembersTest, ServedMembersAreRead) {
  for (const RouteCase& route : Routes()) {
    for (const KnownMember& member : MembersOf(route.tables, MemberUse::kServed)) {
      SCOPED_TRACE(std::string(route.name) + ": " + std::string(member.name));
      for (const char* value : route.ExamplesOf(member.name)) {
        const Status status = route.With(member.name, value);
        EXPECT_TRUE(status.ok()) << value << ": " << status.message();
      }
      // Any JSON may be a schema, which is checked later; then a second form is refused.
      const bool is_json = member.name == "guided_json" || member.name == "guided_choice" ||
                           member.name == "json_schema";
      const Status status = route.With(member.name, is_json ? R"([1],"regex":"a")" : kNoType);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      if (is_json) continue;
      EXPECT_TRUE(status.param().starts_with(route.path + std::string(member.name)))
          << status.param() << ": " << status.message();
      EXPECT_TRUE(route.With(member.name, "null").ok() ||
                  route.begin.find(member.name) != std::string::npos);
    }
  }
}

TEST(MembersTest, IgnoredAndUnknownMembersMayHaveAnyValue) {
  for (const RouteCase& route : Routes()) {
    std::vector<KnownMember> ignored = MembersOf(route.tables, MemberUse::kIgnored);
    ignored.push_back({"some_future_member"});
    for (const KnownMember& member : MembersOf(route.foreign, MemberUse::kIgnored)) {
      if (FindMember(route.tables, member.name) == nullptr) ignored.push_back(member);
    }
    for (const KnownMember& member : ignored) {
      for (const char* value : {"null", "true", "-1.5", R"("x")", "[[]]", R"({"a":{}})"}) {
        const Status status = route.With(member.name, value);
        EXPECT_TRUE(status.ok()) << route.name << ": " << member.name << " " << value << ": "
                                 << status.message();
      }
    }
  }
}

void ExpectRefused(const RouteCase& route, std::string_view name, std::string_view value,
                   std::string_view why) {
  const Status status = route.With(name, value);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << route.name << ": " << name;
  EXPECT_EQ(status.param(), route.path + std::string(name)) << value;
  EXPECT_EQ(status.message(),
            status.param() + " is not supported by this server" + std::string(why));
}

TEST(MembersTest, RefusedMembersNameTheReasonUnlessTheyAreOff) {
  constexpr const char* kOn[] = {"true", "5", R"("x")", "[1]", R"({"a":1})"};
  constexpr const char* kOff[] = {"null", "false", "0", R"("")", "[]", "{}"};
  for (const RouteCase& route : Routes()) {
    for (const KnownMember& member : MembersOf(route.tables, MemberUse::kRefused)) {
      SCOPED_TRACE(route.name);
      if (member.row->off) {
        EXPECT_TRUE(route.With(member.name, std::to_string(*member.row->off)).ok()) << member.name;
        EXPECT_TRUE(route.With(member.name, "null").ok()) << member.name;
        ExpectRefused(route, member.name, "5.5", member.row->why);
        EXPECT_EQ(route.With(member.name, R"("x")").param(), member.name);
        continue;
      }
      for (const char* value : kOn) ExpectRefused(route, member.name, value, member.row->why);
      for (const char* value : kOff)
        EXPECT_TRUE(route.With(member.name, value).ok()) << member.name << " " << value;
    }
  }
}

TEST(MembersTest, MembersThatActInAnotherApiAreRefusedByName) {
  for (const RouteCase& route : Routes()) {
    for (const MemberUse use : {MemberUse::kServed, MemberUse::kRefused}) {
      for (const KnownMember& member : MembersOf(route.foreign, use)) {
        if (FindMember(route.tables, member.name) != nullptr) continue;
        for (const char* value : {"true", "5", R"("x")", "[1]", R"({"a":1})"})
          ExpectRefused(route, member.name, value, " on this route");
        for (const char* value : {"null", "false", "0", R"("")", "[]", "{}"})
          EXPECT_TRUE(route.With(member.name, value).ok()) << member.name << " " << value;
      }
    }
    if (route.foreign.empty()) continue;
    EXPECT_TRUE(route.With("n", R"(1,"best_of":1)").ok()) << "each returns one continuation";
  }
}

// A value that is refused by the name of what is wrong in it.
TEST(MembersTest, ServedMembersNameWhatTheyDoNotTake) {
  struct {
    const char *route, *member, *value, *param;
  } const cases[] = {
      {"completions", "logprobs", "true", "logprobs"},
      {"completions", "best_of", "4", "best_of"},
      {"completions", "allowed_token_ids", "[]", "allowed_token_ids"},
      {"completions", "truncate_prompt_tokens", "0", "truncate_prompt_tokens"},
      {"completions", "response_format", R"({"type":"xml"})", "response_format"},
      {"completions", "response_format", "{}", "response_format"},
      {"completions", "response_format", R"("text")", "response_format"},
      {"completions", "function_call", R"({"name":"f"})", "function_call"},
      {"chat", "function_call", R"("x")", "function_call"},
      {"chat", "logprobs", "3", "logprobs"},
      {"chat", "modalities", R"(["audio"])", "modalities"},
      {"messages", "tool_choice", R"({"type":"most"})", "tool_choice.type"},
      {"messages", "thinking", R"({"type":"enabled"})", "thinking.budget_tokens"},
      {"messages", "output_config", R"({"format":{"type":"xml"}})", "output_config.format.type"},
      {"responses", "text", R"({"format":{"type":"xml"}})", "text.format.type"},
      {"responses", "tool_choice", R"({"type":"file_search"})", "tool_choice.type"},
      {"responses", "reasoning", R"({"summary":"long"})", "reasoning.summary"},
      {"responses", "include", R"(["message.output_text.images"])", "include"},
      {"responses", "top_logprobs", "3", "top_logprobs"},
      {"embeddings", "encoding_format", R"("bits")", "encoding_format"},
      {"embeddings", "dimensions", "65", "dimensions"},
      {"embeddings", "normalize", "false", "normalize"},
      {"embeddings", "use_activation", "false", "use_activation"},
      {"pooling", "task", R"("classify")", "task"},
      {"pooling", "encoding_format", R"("bytes")", "encoding_format"},
  };
  for (const auto& each : cases) {
    const auto route = std::ranges::find(Routes(), std::string_view(each.route), &RouteCase::name);
    ASSERT_NE(route, Routes().end());
    EXPECT_EQ(route->With(each.member, each.value).param(), each.param) << each.value;
  }
}

TEST(MembersTest, MessagesWithEmptyMembersAreAccepted) {
  EXPECT_TRUE(Generation<ParseChatRequest>(
                  R"({"messages":[{"role":"user","content":"a","name":null,"tool_calls":null}]})")
                  .ok());
}

}  // namespace
}  // namespace diffserve
