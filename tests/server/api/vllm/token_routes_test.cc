// SPDX-License-Identifier: Apache-2.0
// Token ids in and out, rendered prompts, the tokenizer info, and the routes that need another kind
// of model.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/reply/tokenizer_info.h"
#include "server/api/vllm/encoder.h"
#include "server/api/vllm/request.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/tools/tool_format.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;
using testing::ClientReply;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;
using testing::SseData;

constexpr char kGeneratePath[] = "/inference/v1/generate";

class TokenRequestTest : public ::testing::Test {
 protected:
  Result<TokenRequest> Parse(const std::string& members) const {
    return ParseTokenRequest("{" + members + "}", {&limits_, SamplingSpec()});
  }
  std::string RefusedFor(const std::string& members) const {
    return Parse(members).status().param();
  }
  std::string SamplingRefusedFor(const std::string& member) const {
    return RefusedFor(R"("token_ids":[1],"sampling_params":{)" + member + "}");
  }

  FrontendOptions limits_;
};

TEST_F(TokenRequestTest, EveryMemberIsRead) {
  const Result<TokenRequest> parsed = Parse(
      R"("token_ids":[5,6],"model":"tiny","stream":true,"stream_options":{"include_usage":true},
         "cache_salt":"s","priority":3,"request_id":"mine","sampling_params":{"max_tokens":9,"temperature":0.5,
         "seed":7,"n":2,"logprobs":2,"prompt_logprobs":1,"stop":["x"],"stop_token_ids":[4],"min_tokens":1,
         "allowed_token_ids":[8],"bad_words":["no"],"detokenize":false,"ignore_eos":true})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const AnswerRequest& request = parsed->request;
  const GenerateRequest& generate = request.generate;
  EXPECT_EQ(parsed->request_id, "mine");
  EXPECT_EQ(std::get<std::vector<int32_t>>(generate.prompts.at(0)), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(generate.model, "tiny");
  EXPECT_EQ(generate.cache_salt, "s");
  EXPECT_EQ(generate.priority, 3);
  EXPECT_EQ(generate.max_tokens, 9);
  EXPECT_EQ(generate.sampling.seed, 7u);
  EXPECT_EQ(generate.n, 2);
  EXPECT_EQ(generate.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(generate.allowed_token_ids, std::vector<int32_t>{8});
  EXPECT_TRUE(request.stream && request.include_usage && request.logprobs);
  EXPECT_EQ(generate.sampling.num_logprobs, 2);
  EXPECT_EQ(generate.sampling.prompt_logprobs, 1);
}

TEST_F(TokenRequestTest, EmptyRequestGetsTheDefaults) {
  const Result<TokenRequest> parsed = Parse(R"("token_ids":[5])");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->request.generate.max_tokens, std::nullopt);
  EXPECT_EQ(parsed->request.generate.max_tokens_default, 16);
  EXPECT_FALSE(parsed->request.stream || parsed->request.logprobs);
}

TEST_F(TokenRequestTest, AnswerFormEqualsStructuredOutputs) {
  const Result<TokenRequest> parsed = Parse(
      R"("token_ids":[5],"sampling_params":{"structured_outputs":{"json":{"b":0,"a":1}}})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_TRUE(parsed->request.generate.grammar);
  EXPECT_EQ(parsed->request.generate.grammar->kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(parsed->request.generate.grammar->text, R"({"b":0,"a":1})");
}

TEST_F(TokenRequestTest, InvalidMembersAreRefusedByName) {
  EXPECT_EQ(RefusedFor(""), "token_ids");
  for (const char* ids : {"7", "\"text\"", "[\"a\"]", "[1.5]", "[-1]", "[[1]]"})
    EXPECT_EQ(RefusedFor("\"token_ids\":" + std::string(ids)), "token_ids") << ids;
  EXPECT_EQ(RefusedFor(R"("token_ids":[1],"sampling_params":[])"), "sampling_params");
  EXPECT_EQ(RefusedFor(R"("token_ids":[1],"stream_options":{"include_usage":true})"),
            "stream_options");
  EXPECT_EQ(SamplingRefusedFor(R"("temperature":"hot")"), "sampling_params.temperature");
  EXPECT_EQ(SamplingRefusedFor(R"("structured_outputs":{"regex":"a","choice":["b"]})"),
            "structured_outputs.choice");
  EXPECT_EQ(SamplingRefusedFor(R"("structured_outputs":{"regex":5})"),
            "sampling_params.structured_outputs.regex");
  EXPECT_EQ(SamplingRefusedFor(R"("logprobs":-1)"), "logprobs");
}

TEST(TokenRoutesTest, TokenPromptGivesTheTokensOfACompletion) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string common =
      R"("max_tokens":12,"temperature":0,"ignore_eos":true,"logprobs":2,"prompt_logprobs":1,"n":2)";
  const Json completion = client
                              .Post(
                                  "/v1/completions",
                                  R"({"prompt":[70,71,72],"return_token_ids":true,)" + common + "}")
                              .json();
  const std::string body = R"({"token_ids":[70,71,72],"request_id":"mine","sampling_params":{)" +
                           common + "}";
  const Json whole = client.Post(kGeneratePath, body + "}").json();
  EXPECT_EQ(whole["request_id"], "mine");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
  EXPECT_EQ(whole["prompt_logprobs"], completion["choices"][0]["prompt_logprobs"]);
  ASSERT_EQ(whole["choices"].size(), 2u);
  std::vector<Json> streamed(2, Json::array());
  std::vector<Json> reasons(2);
  const ClientReply reply = client.Post(
      kGeneratePath, body + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  const std::vector<std::string> data = SseData(reply.body);
  EXPECT_EQ(Json::parse(data[0])["prompt_logprobs"], whole["prompt_logprobs"]);
  EXPECT_FALSE(Json::parse(data[1]).contains("prompt_logprobs"));
  EXPECT_EQ(data.back(), "[DONE]");
  EXPECT_EQ(Json::parse(data[data.size() - 2])["usage"], whole["usage"]);
  for (size_t i = 0; i + 2 < data.size(); ++i) {
    const Json choice = Json::parse(data[i])["choices"][0];
    for (const Json& id : choice["token_ids"]) streamed[choice["index"]].push_back(id);
    EXPECT_EQ(choice["logprobs"]["content"].size(), choice["token_ids"].size());
    if (!choice["finish_reason"].is_null()) reasons[choice["index"]] = choice["finish_reason"];
  }
  for (const size_t i : {0, 1}) {
    const Json& choice = whole["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["token_ids"], completion["choices"][i]["token_ids"]);
    EXPECT_EQ(choice["token_ids"], streamed[i]);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(reasons[i], "length");
    EXPECT_EQ(choice["logprobs"]["content"].size(), 12u);
    EXPECT_EQ(choice["logprobs"]["content"][0]["logprob"],
              completion["choices"][i]["logprobs"]["token_logprobs"][0]);
  }
}

TEST(TokenRoutesTest, ErrorsNameTheMembersOfThisRoute) {
  ServingFixture server;
  HttpClient client(server.port());
  const auto param = [&](const std::string& body) {
    const ClientReply reply = client.Post(kGeneratePath, body);
    EXPECT_EQ(reply.status, 400) << body;
    return reply.json()["error"]["param"];
  };
  EXPECT_EQ(param("{}"), "token_ids");
  EXPECT_EQ(param(R"({"token_ids":[]})"), "token_ids");
  EXPECT_EQ(param(R"({"token_ids":[100000]})"), "token_ids");
  EXPECT_EQ(param(R"({"token_ids":[1],"sampling_params":{"max_tokens":0}})"), "max_tokens");
  EXPECT_EQ(client.Post(kGeneratePath, R"({"token_ids":[1],"model":"x"})").status, 404);
}

TEST(TokenRoutesTest, RenderedPromptRunsAsTheRequestWould) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string members =
      R"("max_tokens":9,"temperature":0.7,"top_p":0.9,"seed":11,"ignore_eos":true,"return_token_ids":true,)"
      R"("logit_bias":{"80":1.5},"stop":["never met"])";
  const std::string chat = R"({"messages":[{"role":"user","content":"some words"}],)" + members +
                           "}";
  const Json rendered = client.Post("/v1/chat/completions/render", chat).json();
  const Json answer = client.Post("/v1/chat/completions", chat).json();
  EXPECT_EQ(rendered["token_ids"], answer["prompt_token_ids"]);
  EXPECT_EQ(rendered["prompt"], "<|user|>some words<|assistant|>");
  EXPECT_EQ(rendered["sampling_params"]["temperature"].dump(), "0.7");
  EXPECT_EQ(rendered["sampling_params"]["max_tokens"], 9);
  const Json again = client.Post(kGeneratePath, rendered.dump()).json();
  EXPECT_EQ(again["choices"][0]["token_ids"], answer["choices"][0]["token_ids"]);
  EXPECT_EQ(again["request_id"], rendered["request_id"]);
  for (const auto& [name, value] : rendered.items())
    EXPECT_NE(FindMember(members::kTokenTables, name), nullptr) << name;
  for (const auto& [name, value] : rendered["sampling_params"].items())
    EXPECT_NE(FindMember(members::kTokenSamplingTables, name), nullptr) << name;

  const std::string completion = R"({"prompt":["one","two words"],)" + members + "}";
  const Json list = client.Post("/v1/completions/render", completion).json();
  const Json answers = client.Post("/v1/completions", completion).json();
  ASSERT_EQ(list.size(), 2u);
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(list[i]["token_ids"], answers["choices"][i]["prompt_token_ids"]);
    EXPECT_EQ(client.Post(kGeneratePath, list[i].dump()).json()["choices"][0]["token_ids"],
              answers["choices"][i]["token_ids"]);
  }
  EXPECT_EQ(list[0]["prompt"], "one");
}

TEST(TokenRoutesTest, RenderedPromptReportsTheRemainingContext) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json rendered =
      client.Post("/v1/chat/completions/render", R"({"messages":[{"role":"user","content":"a"}]})")
          .json();
  EXPECT_EQ(rendered["sampling_params"]["max_tokens"], 512 - rendered["token_ids"].size());
  const Json cut = client
                       .Post(
                           "/v1/completions/render",
                           R"({"prompt":[70,71,72,73],"truncate_prompt_tokens":2,"max_tokens":1})")
                       .json();
  EXPECT_EQ(cut[0]["token_ids"], Json::parse("[72,73]"));
  const ClientReply refused = client.Post("/v1/completions/render",
                                          R"({"prompt":"a","max_tokens":5000})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "max_tokens");
}

TEST(TokenRoutesTest, AnswerFormHoldsForRenderedPrompts) {
  ServingOptions options;
  options.config.eos_token_ids = {1};
  options.executor.vocab_size = testing::kWholeVocab;
  ServingFixture server(std::move(options));
  HttpClient client(server.port());
  const std::string form = R"("structured_outputs":{"choice":["yes","no, \"not\""]})";
  const std::string body = R"({"prompt":"a","max_tokens":30,"seed":3,"return_token_ids":true,)" +
                           form + "}";
  const Json answer = client.Post("/v1/completions", body).json();
  const std::string text = answer["choices"][0]["text"];
  EXPECT_TRUE(text == "yes" || text == "no, \"not\"") << text;
  const Json rendered = client.Post("/v1/completions/render", body).json()[0];
  EXPECT_EQ(rendered["sampling_params"]["structured_outputs"],
            Json::parse("{" + form + "}")["structured_outputs"]);
  const Json again = client.Post(kGeneratePath, rendered.dump()).json();
  EXPECT_EQ(again["choices"][0]["token_ids"], answer["choices"][0]["token_ids"]);
}

TEST(TokenRoutesTest, RenderRefusesWhatItsReplyCannotExpress) {
  ServingOptions options;
  options.config.eos_token_ids = {0};
  options.frontend.formats.reasoning = FindReasoningFormat("deepseek_r1");
  ServingFixture server(std::move(options));
  HttpClient client(server.port());
  const auto param = [&](const std::string& member) {
    const ClientReply reply = client.Post(
        "/v1/chat/completions/render",
        R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"high",)" + member + "}");
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.json()["error"]["param"];
  };
  EXPECT_EQ(param(R"("structured_outputs":{"regex":"a"})"), "structured_outputs.regex");
  EXPECT_EQ(param(R"("max_reasoning_tokens":5)"), "max_reasoning_tokens");
}

TEST(TokenRoutesTest, TokenizerInfoReturnsTheFilesSettings) {
  ServingFixture server;
  HttpClient client(server.port());
  const Json info = client.Get("/tokenizer_info").json();
  EXPECT_EQ(info["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_TRUE(info.contains("chat_template") && info.contains("model_max_length"));

  TemporaryDirectory dir;
  EXPECT_EQ(Json::parse(TokenizerInfoBody(dir.path(), {}).value())["tokenizer_class"], nullptr);
  dir.Write(
      "tokenizer_config.json",
      R"({"tokenizer_class":"T","bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,
                "model_max_length":1000000000000000019884624838656,"chat_template":"old","secret":1})");
  Json told = Json::parse(TokenizerInfoBody(dir.path(), {}).value());
  EXPECT_EQ(told["bos_token"], "<s>");
  EXPECT_EQ(told["eos_token"], "</s>");
  EXPECT_EQ(told["pad_token"], nullptr);
  EXPECT_EQ(told["unk_token"], nullptr);
  EXPECT_EQ(told["model_max_length"], nullptr) << "no limit";
  EXPECT_FALSE(told.contains("secret"));
  dir.Write("tokenizer_config.json", "[1]");
  EXPECT_FALSE(TokenizerInfoBody(dir.path(), {}).ok());
}

TEST(TokenRoutesTest, TokenizerInfoShowsTheChatTemplateInUse) {
  TemporaryDirectory dir;
  const auto shown = [&dir](const std::string& given = "") {
    const auto loaded = ChatTemplate::Load(dir.path(), given).value();
    return Json::parse(
        TokenizerInfoBody(dir.path(), {loaded.get(), given.empty()}).value())["chat_template"];
  };
  EXPECT_EQ(shown(), nullptr) << "the model cannot chat";
  dir.Write("chat_template.json", R"({"chat_template":"{{ messages }} of a processor"})");
  EXPECT_EQ(shown(), "{{ messages }} of a processor");
  dir.Write("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"old"}]})");
  EXPECT_EQ(shown()[0]["template"], "old");
  dir.Write("chat_template.jinja", "new");
  EXPECT_EQ(shown(), "new");
  dir.Write("given.jinja", "{{ messages }}");
  EXPECT_EQ(shown((dir.path() / "given.jinja").string()), "{{ messages }}");
}

}  // namespace
}  // namespace diffserve
