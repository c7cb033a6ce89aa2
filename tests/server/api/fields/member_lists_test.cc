// SPDX-License-Identifier: Apache-2.0
// What clients rely on, written out: members_test.cc takes the names from the same tables as the
// readers.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/anthropic/request.h"
#include "server/api/attention/request.h"
#include "server/api/fields/members.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"
#include "server/api/vllm/request.h"

namespace diffserve {
namespace {

using NameSet = std::set<std::string_view>;

NameSet Words(std::string_view text) {
  const std::vector<std::string_view> names = NamesOf({.use = MemberUse::kServed, .names = text});
  NameSet words(names.begin(), names.end());
  words.erase("");  // between two spaces
  return words;
}

NameSet Served(MemberTables tables) {
  NameSet served;
  for (const MemberTable table : tables) {
    for (const MemberRow& row : table) {
      if (row.use == MemberUse::kServed) served.merge(Words(row.names));
    }
  }
  return served;
}

constexpr char kOfSampling[] =
    " temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty "
    "logit_bias seed min_tokens stop_token_ids ignore_eos skip_special_tokens "
    "include_stop_str_in_output ";
constexpr char kOfGeneration[] =
    " max_tokens max_completion_tokens n best_of stop allowed_token_ids bad_words "
    "truncate_prompt_tokens truncation_side ";
constexpr char kOfOpenAi[] =
    " model logprobs prompt_logprobs stream stream_options cache_salt priority return_token_ids "
    "return_tokens_as_token_ids timings_per_token add_special_tokens function_call modalities "
    "do_sample response_format structured_outputs guided_json guided_regex guided_choice "
    "guided_grammar guided_whitespace_pattern disable_any_whitespace regex ebnf json_schema "
    "max_reasoning_tokens thinking_token_budget ";

TEST(MemberListsTest, RoutesServeTheirInterface) {
  const std::string openai = std::string(kOfOpenAi) + kOfSampling + kOfGeneration;
  const std::string completion = "prompt echo " + openai;
  const std::string chat =
      "messages top_logprobs add_generation_prompt continue_final_message chat_template_kwargs "
      "tools tool_choice parallel_tool_calls include_reasoning reasoning_effort prediction" +
      openai;
  const std::string messages =
      std::string(kOfSampling) +
      "model messages system max_tokens stop_sequences stream tools tool_choice thinking "
      "output_config output_format cache_salt";
  const std::string responses =
      std::string(kOfSampling) +
      "model input instructions max_output_tokens stream text tools tool_choice store "
      "previous_response_id metadata reasoning parallel_tool_calls truncation include stop "
      "priority cache_salt user safety_identifier prompt_cache_key top_logprobs";
  const std::string token_sampling = std::string(kOfSampling) + kOfGeneration +
                                     "logprobs prompt_logprobs structured_outputs";
  EXPECT_EQ(Served(members::kCompletionTables), Words(completion));
  EXPECT_EQ(Served(members::kChatTables), Words(chat));
  EXPECT_EQ(Served(members::kMessagesTables), Words(messages));
  EXPECT_EQ(Served(members::kResponsesTables), Words(responses));
  EXPECT_EQ(Served(members::kTokenSamplingTables), Words(token_sampling));
  EXPECT_EQ(Served(members::kTokenTables),
            Words("token_ids sampling_params model stream priority stream_options cache_salt "
                  "request_id"));
}

TEST(MemberListsTest, RoutesWithoutAnswersServeTheirInterface) {
  EXPECT_EQ(Served(members::kEmbeddingTables),
            Words("model input encoding_format dimensions pooling add_special_tokens "
                  "truncate_prompt_tokens cache_salt normalize use_activation"));
  EXPECT_EQ(Served(members::kPoolingTables),
            Words("model input messages task encoding_format use_activation normalize "
                  "add_special_tokens truncate_prompt_tokens cache_salt add_generation_prompt "
                  "continue_final_message chat_template_kwargs"));
  EXPECT_EQ(Served(members::kAttentionTables),
            Words("model tokens text messages add_generation_prompt continue_final_message "
                  "chat_template_kwargs heads positions top_k span layers encoding"));
  EXPECT_EQ(Served(members::kTokenizeTables),
            Words("model prompt messages return_token_strs add_special_tokens "
                  "add_generation_prompt continue_final_message chat_template_kwargs tools"));
  EXPECT_EQ(Served(members::kDetokenizeTables), Words("model tokens"));
}

// A client that sends one of these asks for another answer than it would get.
TEST(MemberListsTest, MembersThatWouldChangeTheAnswerAreRefused) {
  const struct {
    MemberTables tables;
    const char* names;
  } cases[] = {
      {members::kCompletionTables,
       "suffix tools lora_request prompt_embeds use_beam_search n_predict no_repeat_ngram_size"},
      {members::kChatTables,
       "functions audio web_search_options documents echo moderation images format think"},
      {members::kMessagesTables, "container prompt compaction"},
      {members::kResponsesTables, "background conversation prompt moderation"},
      {members::kEmbeddingTables, "messages embed_dtype priority"},
      {members::kPoolingTables, "dimensions embed_dtype padding"},
      {members::kTokenizeTables, "chat_template documents"},
      {members::kTokenTables, "features kv_transfer_params"},
      {members::kTokenSamplingTables, "guided_decoding logits_processors use_beam_search"},
  };
  for (const auto& [tables, names] : cases) {
    for (const std::string_view name : Words(names)) {
      const MemberRow* const row = FindMember(tables, name);
      ASSERT_NE(row, nullptr) << name;
      EXPECT_EQ(row->use, MemberUse::kRefused) << name;
    }
  }
}

}  // namespace
}  // namespace diffserve
