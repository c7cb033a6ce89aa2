// SPDX-License-Identifier: Apache-2.0
// Every request member that clients of OpenAI, vLLM, SGLang and llama.cpp send, on both generating
// routes: supported, refused by name, or accepted without effect. docs/openapi.yaml has the same
// list.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/openai/request.h"
#include "server/serving/request_checks.h"
#include "tests/testing/member_use.h"

namespace diffserve {
namespace {

using testing::MemberUse;
using enum testing::MemberUse;

struct Member {
  const char* name;
  const char* value;  // a value other than off
  MemberUse completion, chat;
};

const Member kMembers[] = {
    // OpenAI's.
    {"model", R"("tiny")", kServed, kServed},
    {"max_tokens", "5", kServed, kServed},
    {"max_completion_tokens", "5", kServed, kServed},
    {"temperature", "0.5", kServed, kServed},
    {"top_p", "0.5", kServed, kServed},
    {"presence_penalty", "1", kServed, kServed},
    {"frequency_penalty", "1", kServed, kServed},
    {"logit_bias", R"({"3":1})", kServed, kServed},
    {"seed", "5", kServed, kServed},
    {"stop", R"(["x"])", kServed, kServed},
    {"n", "2", kServed, kServed},
    {"best_of", "1", kServed, kServed},
    {"stream", "true", kServed, kServed},
    {"stream_options", R"({"include_usage":true,"continuous_usage_stats":true})", kServed, kServed},
    {"logprobs", "true", kRefused, kServed},  // a count and a flag
    {"logprobs", "3", kServed, kRefused},
    {"top_logprobs", "0", kUnknown, kServed},
    {"echo", "true", kServed, kRefused},
    {"suffix", R"("x")", kRefused, kRefused},
    {"user", R"("u")", kIgnored, kIgnored},
    {"metadata", R"({"a":"b"})", kIgnored, kIgnored},
    {"store", "true", kIgnored, kIgnored},
    {"service_tier", R"("auto")", kIgnored, kIgnored},
    {"safety_identifier", R"("u")", kIgnored, kIgnored},
    {"prompt_cache_key", R"("u")", kIgnored, kIgnored},
    {"prompt_cache_retention", R"("24h")", kIgnored, kIgnored},
    {"verbosity", R"("low")", kIgnored, kIgnored},
    {"audio", R"({"voice":"x"})", kRefused, kRefused},
    {"modalities", R"(["audio"])", kRefused, kRefused},
    {"prediction", R"({"type":"content"})", kIgnored, kIgnored},
    {"functions", "[{}]", kRefused, kRefused},
    {"function_call", R"({"name":"f"})", kRefused, kRefused},
    {"web_search_options", R"({"a":1})", kRefused, kRefused},
    {"moderation", R"({"a":1})", kRefused, kRefused},
    {"tools", R"([{"type":"function","function":{"name":"f"}}])", kRefused, kServed},
    {"tool_choice", R"("none")", kRefused, kServed},
    {"parallel_tool_calls", "false", kIgnored, kServed},
    {"reasoning_effort", R"("low")", kRefused, kServed},
    {"reasoning", R"({"effort":"low"})", kRefused, kRefused},
    {"response_format", R"({"type":"json_object"})", kServed, kServed},
    {"response_format", R"({"type":"json_schema","json_schema":{"name":"a","schema":{}}})", kServed,
     kServed},
    {"response_format", R"({"type":"xml"})", kRefused, kRefused},
    // vLLM's.
    {"top_k", "5", kServed, kServed},
    {"min_p", "0.5", kServed, kServed},
    {"repetition_penalty", "1.5", kServed, kServed},
    {"min_tokens", "2", kServed, kServed},
    {"stop_token_ids", "[3]", kServed, kServed},
    {"include_stop_str_in_output", "true", kServed, kServed},
    {"ignore_eos", "true", kServed, kServed},
    {"skip_special_tokens", "false", kServed, kServed},
    {"add_special_tokens", "false", kServed, kServed},
    {"prompt_logprobs", "2", kServed, kServed},
    {"allowed_token_ids", "[3,4]", kServed, kServed},
    {"bad_words", R"(["x"])", kServed, kServed},
    {"truncate_prompt_tokens", "5", kServed, kServed},
    {"truncation_side", R"("right")", kServed, kServed},
    {"priority", "-3", kServed, kServed},
    {"cache_salt", R"("s")", kServed, kServed},
    {"return_token_ids", "true", kServed, kServed},
    {"return_tokens_as_token_ids", "true", kServed, kServed},
    {"add_generation_prompt", "false", kUnknown, kServed},
    {"chat_template_kwargs", R"({"shout":true})", kUnknown, kServed},
    {"structured_outputs", R"({"regex":"a"})", kServed, kServed},
    {"guided_json", R"({"type":"object"})", kServed, kServed},
    {"guided_regex", R"("a|b")", kServed, kServed},
    {"guided_choice", R"(["a","b"])", kServed, kServed},
    {"guided_grammar", R"("start: \"a\"")", kServed, kServed},
    {"guided_decoding_backend", R"("outlines")", kRefused, kRefused},
    {"guided_whitespace_pattern", R"(" ?")", kRefused, kRefused},
    {"max_reasoning_tokens", "5", kServed, kServed},
    {"thinking_token_budget", "5", kServed, kServed},
    {"include_reasoning", "false", kIgnored, kServed},
    {"use_beam_search", "true", kRefused, kRefused},
    {"early_stopping", "true", kRefused, kRefused},
    {"length_penalty", "1.5", kIgnored, kIgnored},
    {"request_id", R"("r")", kIgnored, kIgnored},
    {"session_id", R"("s")", kIgnored, kIgnored},
    {"stream_interval", "2", kIgnored, kIgnored},
    {"spaces_between_special_tokens", "false", kIgnored, kIgnored},
    {"continue_final_message", "true", kUnknown, kServed},
    {"chat_template", R"("{{ 1 }}")", kRefused, kRefused},
    {"documents", R"([{"a":"b"}])", kRefused, kRefused},
    {"prompt_embeds", R"("AAAA")", kRefused, kRefused},
    {"logits_processors", R"(["x"])", kRefused, kRefused},
    {"logprob_token_ids", "[1]", kRefused, kRefused},
    {"kv_transfer_params", R"({"a":1})", kRefused, kRefused},
    {"ec_transfer_params", R"({"a":1})", kRefused, kRefused},
    {"vllm_xargs", R"({"a":1})", kRefused, kRefused},
    {"repetition_detection", R"({"a":1})", kRefused, kRefused},
    {"mm_processor_kwargs", R"({"a":1})", kRefused, kRefused},
    {"media_io_kwargs", R"({"a":1})", kRefused, kRefused},
    {"return_token_offsets", "true", kRefused, kRefused},
    {"return_prompt_text", "true", kRefused, kRefused},
    {"return_assistant_tokens_mask", "true", kRefused, kRefused},
    // SGLang's, TensorRT-LLM's, LMDeploy's and llama.cpp's.
    {"regex", R"("a|b")", kServed, kServed},
    {"ebnf", R"("root ::= \"a\"")", kServed, kServed},
    {"json_schema", R"({"type":"object"})", kServed, kServed},
    {"grammar", R"("root ::= \"a\"")", kRefused, kRefused},
    {"no_stop_trim", "true", kRefused, kRefused},
    {"token_ids_logprob", "[1]", kRefused, kRefused},
    {"session_params", R"({"a":1})", kRefused, kRefused},
    {"custom_params", R"({"a":1})", kRefused, kRefused},
    {"rid", R"("r")", kIgnored, kIgnored},
    {"routed_dp_rank", "1", kIgnored, kIgnored},
    {"return_context_logits", "true", kRefused, kRefused},
    {"disaggregated_params", R"({"a":1})", kRefused, kRefused},
    {"top_p_min", "0.5", kRefused, kRefused},
    {"input_ids", "[1]", kRefused, kRefused},
    {"min_new_tokens", "2", kRefused, kRefused},
    {"repetition_ngram_size", "3", kRefused, kRefused},
    {"repetition_ngram_threshold", "3", kIgnored, kIgnored},
    {"n_predict", "5", kRefused, kRefused},
    {"n_probs", "5", kRefused, kRefused},
    {"n_cmpl", "2", kRefused, kRefused},
    {"min_keep", "2", kRefused, kRefused},
    {"samplers", R"(["top_k"])", kRefused, kRefused},
    {"t_max_predict_ms", "5", kRefused, kRefused},
    {"post_sampling_probs", "true", kRefused, kRefused},
    {"return_tokens", "true", kRefused, kRefused},
    {"repeat_penalty", "1.1", kRefused, kRefused},
    {"typical_p", "0.9", kRefused, kRefused},
    {"top_n_sigma", "1", kRefused, kRefused},
    {"xtc_probability", "0.5", kRefused, kRefused},
    {"dynatemp_range", "0.5", kRefused, kRefused},
    {"dry_multiplier", "0.8", kRefused, kRefused},
    {"mirostat", "2", kRefused, kRefused},
    {"repeat_last_n", "64", kIgnored, kIgnored},
    {"dynatemp_exponent", "2", kIgnored, kIgnored},
    {"xtc_threshold", "0.2", kIgnored, kIgnored},
    {"dry_base", "2", kIgnored, kIgnored},
    {"dry_allowed_length", "2", kIgnored, kIgnored},
    {"dry_penalty_last_n", "2", kIgnored, kIgnored},
    {"dry_sequence_breakers", R"(["x"])", kIgnored, kIgnored},
    {"mirostat_tau", "5", kIgnored, kIgnored},
    {"mirostat_eta", "5", kIgnored, kIgnored},
    {"cache_prompt", "false", kIgnored, kIgnored},
    {"id_slot", "3", kIgnored, kIgnored},
    {"timings_per_token", "true", kIgnored, kIgnored},
    {"input_embeds", "[[1.5]]", kRefused, kRefused},
    {"lora_path", R"("x")", kRefused, kRefused},
    {"custom_logit_processor", R"("x")", kRefused, kRefused},
    {"return_hidden_states", "true", kRefused, kRefused},
    {"stop_regex", R"("x")", kRefused, kRefused},
    {"lora", "[1]", kRefused, kRefused},
    {"lora_request", R"({"a":1})", kRefused, kRefused},
    // Known to no server.
    {"some_future_member", R"({"a":[1,2]})", kUnknown, kUnknown},
};

class OpenAiFieldsTest : public ::testing::Test {
 protected:
  OpenAiFieldsTest() { limits_.served_model_name = "tiny"; }

  Status Checked(const Member& member, bool chat, bool strict) const {
    std::string body = chat ? R"({"messages":[{"role":"user","content":"a"}])" : R"({"prompt":"a")";
    if (std::string(member.name) == "stream_options") body += R"(,"stream":true)";
    if (chat && std::string(member.name) == "tools") body += R"(,"tool_choice":"none")";
    if (std::string(member.name) == "top_logprobs") body += R"(,"logprobs":1)";
    if (chat && std::string(member.name) == "continue_final_message")
      body += R"(,"add_generation_prompt":false)";
    if (chat && std::string(member.name) == "top_logprobs")
      body.replace(body.size() - 1, 1, "true");
    body += std::string(",\"") + member.name + "\":" + member.value + "}";
    const ReadContext context = {&limits_, SamplingParams(), strict};
    const Result<OpenAiRequest> parsed = chat ? ParseChatRequest(body, context)
                                              : ParseCompletionRequest(body, context);
    if (!parsed.ok()) return parsed.status();
    return CheckRequest(parsed->generate, {&limits_, 1000, 512, 256});
  }

  FrontendOptions limits_;
};

TEST_F(OpenAiFieldsTest, EachMemberIsServedIgnoredOrRefusedByItsName) {
  for (const Member& member : kMembers) {
    for (const bool chat : {false, true}) {
      const MemberUse use = chat ? member.chat : member.completion;
      for (const bool strict : {false, true}) {
        const Status status = Checked(member, chat, strict);
        const bool refused = use == kRefused || (strict && use == kUnknown);
        EXPECT_EQ(status.ok(), !refused)
            << member.name << (chat ? " of a chat " : " of a completion ") << status.message();
        if (refused) {
          EXPECT_EQ(status.param(), member.name);
          EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << member.name;
        }
      }
    }
  }
}

TEST_F(OpenAiFieldsTest, IgnoredMembersMayHaveAnyJsonValue) {
  for (const Member& member : kMembers) {
    for (const bool chat : {false, true}) {
      if ((chat ? member.chat : member.completion) != kIgnored) continue;
      for (const char* value : {"null", "true", "-1.5", R"("x")", "[[]]", R"({"a":{}})"}) {
        const Member odd = {member.name, value, kIgnored, kIgnored};
        EXPECT_TRUE(Checked(odd, chat, true).ok()) << member.name << " " << value;
      }
    }
  }
}

TEST_F(OpenAiFieldsTest, RefusedMembersAreAcceptedAsNull) {
  for (const Member& member : kMembers) {
    const Member off = {member.name, "null", member.completion, member.chat};
    EXPECT_TRUE(Checked(off, false, false).ok()) << member.name;
    EXPECT_TRUE(Checked(off, true, false).ok()) << member.name;
  }
}

TEST_F(OpenAiFieldsTest, MembersWithoutEffectAreAccepted) {
  for (const char* member : {R"("stop":"")",
                             R"("stop":[])",
                             R"("stop":null)",
                             R"("stream_options":{})",
                             R"("stream_options":{"include_usage":false})",
                             R"("stream_options":null)",
                             R"("tools":[])",
                             R"("tools":null)",
                             R"("tool_choice":"")",
                             R"("tool_choice":{})",
                             R"("tool_choice":null)",
                             R"("functions":[])",
                             R"("function_call":null)",
                             R"("logit_bias":{})",
                             R"("response_format":null)",
                             R"("reasoning_effort":"")",
                             R"("chat_template_kwargs":{})",
                             R"("metadata":{})",
                             R"("audio":null)",
                             R"("web_search_options":{})",
                             R"("documents":[])",
                             R"("model":"")",
                             R"("user":null)",
                             R"("continue_final_message":false)",
                             R"("modalities":[])"}) {
    const ReadContext context = {&limits_, SamplingParams(), true};
    const auto parsed = ParseChatRequest(
        R"({"messages":[{"role":"user","content":"a","name":null,"tool_calls":null}],)" +
            std::string(member) + "}",
        context);
    ASSERT_TRUE(parsed.ok()) << member << ": " << parsed.status().message();
    EXPECT_TRUE(CheckRequest(parsed->generate, {&limits_, 1000, 512, 256}).ok()) << member;
  }
}

TEST_F(OpenAiFieldsTest, SamplersThatAreOffAreAccepted) {
  for (const auto& [name, off] :
       std::vector<std::pair<const char*, const char*>>{{"repeat_penalty", "1.0"},
                                                        {"typical_p", "1"},
                                                        {"top_n_sigma", "-1"},
                                                        {"xtc_probability", "0"},
                                                        {"dry_multiplier", "0.0"},
                                                        {"mirostat", "0"},
                                                        {"top_p_min", "0"}}) {
    EXPECT_TRUE(Checked({name, off, kRefused, kRefused}, true, true).ok()) << name;
    EXPECT_EQ(Checked({name, R"("x")", kRefused, kRefused}, true, true).param(), name);
  }
}

TEST_F(OpenAiFieldsTest, RefusalNamesAnAlternative) {
  const auto message = [this](const char* name, const char* value) {
    return Checked({name, value, kRefused, kRefused}, false, false).message();
  };
  EXPECT_NE(message("suffix", R"("x")").find("prompt"), std::string::npos);
  EXPECT_NE(message("use_beam_search", "true").find("logprobs"), std::string::npos);
  EXPECT_NE(message("best_of", "4").find("best_of is 4 and n 1"), std::string::npos);
  EXPECT_NE(message("repeat_penalty", "1.1").find("repetition_penalty"), std::string::npos);
  EXPECT_NE(message("n_predict", "5").find("max_tokens"), std::string::npos);
  EXPECT_NE(message("allowed_token_ids", "[]").find("leave it out"), std::string::npos);
  EXPECT_NE(message("truncate_prompt_tokens", "0").find("1 to 512, or -1"), std::string::npos);
}

}  // namespace
}  // namespace diffserve
