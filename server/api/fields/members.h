// SPDX-License-Identifier: Apache-2.0
// Members of request bodies: what a route does with each name that it knows. A route has one or
// more tables; the readers, the tests and docs/openapi.yaml use the same ones. This file has the
// tables of generation, completions and chat, which several APIs share; the tables of an API are in
// its folder.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "server/json/json.h"

namespace diffserve {

enum class MemberUse {
  kServed,   // the route reads it
  kIgnored,  // accepted without effect, whatever its value
  kRefused,  // has an effect that the server cannot give: 400 with its name, unless it is off
};

// Members of one kind.
struct MemberRow {
  MemberUse use;
  std::string_view names;         // separated by spaces
  std::string_view why = {};      // of a refusal: what follows "NAME is not supported"
  std::optional<float> off = {};  // the number that turns it off; else as in JsonFields::IsOff
};

using MemberTable = std::span<const MemberRow>;
using MemberTables = std::span<const MemberTable>;

std::vector<std::string_view> NamesOf(const MemberRow& row);
// The row of a name; nullptr if no table has it.
const MemberRow* FindMember(MemberTables tables, std::string_view name);

// Refuses the refused members of `tables` that are in the body. Members that no table has are
// passed over and logged at debug level. The exception are members that a client of another API
// sends by mistake: what `foreign` serves or refuses has an effect there and is refused here.
void CheckMembers(JsonFields& fields, MemberTables tables, MemberTables foreign = {});

namespace members {

using enum MemberUse;

// What ReadGeneration reads, in two groups.
inline constexpr MemberRow kSampling[] = {
    {kServed,
     "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty "
     "logit_bias seed min_tokens stop_token_ids ignore_eos skip_special_tokens "
     "include_stop_str_in_output"},
};
inline constexpr MemberRow kGeneration[] = {
    {kServed,
     "max_tokens max_completion_tokens n best_of stop allowed_token_ids bad_words "
     "truncate_prompt_tokens truncation_side"},
};
// What ReadStructuredFields reads.
inline constexpr MemberRow kStructured[] = {
    {kServed,
     "response_format structured_outputs guided_json guided_regex guided_choice guided_grammar "
     "guided_whitespace_pattern disable_any_whitespace regex ebnf json_schema "
     "max_reasoning_tokens thinking_token_budget"},
};

// What clients of OpenAI, vLLM, SGLang, TensorRT-LLM, llama.cpp, Ollama, KoboldCpp and
// text-generation-webui send to completions and chat.
inline constexpr MemberRow kOpenAi[] = {
    {kServed,
     "model logprobs prompt_logprobs stream stream_options cache_salt priority "
     "return_token_ids return_tokens_as_token_ids timings_per_token add_special_tokens "
     "function_call modalities do_sample"},
    {kIgnored,
     "user metadata store service_tier safety_identifier prompt_cache_key "
     "prompt_cache_retention prompt_cache_options verbosity request_id session_id "
     "spaces_between_special_tokens "
     "length_penalty stream_interval rid routed_dp_rank cache_prompt id_slot "
     "repeat_last_n dynatemp_exponent xtc_threshold dry_base dry_allowed_length "
     "dry_penalty_last_n dry_sequence_breakers mirostat_tau mirostat_eta "
     "repetition_ngram_threshold adaptive_decay smoothing_curve dynatemp_low dynatemp_high "
     "repetition_penalty_range rep_pen_range rep_pen_slope keep_alive num_keep num_batch num_gpu "
     "main_gpu num_thread numa low_vram f16_kv vocab_only use_mmap use_mlock penalize_newline "
     "max_tokens_second prompt_lookup_num_tokens quiet genkey trim_stop"},
    {kRefused,
     "functions audio guided_decoding_backend stop_regex "
     "prompt_embeds input_embeds lora lora_path lora_request logits_processors "
     "custom_logit_processor logprob_token_ids kv_transfer_params ec_transfer_params "
     "vllm_xargs repetition_detection reasoning web_search_options documents "
     "mm_processor_kwargs media_io_kwargs return_token_offsets return_prompt_text "
     "return_assistant_tokens_mask return_hidden_states moderation token_ids_logprob "
     "session_params custom_params return_context_logits disaggregated_params min_keep "
     "samplers t_max_predict_ms post_sampling_probs sampler_order sampler_priority "
     "temperature_last dynamic_temperature negative_prompt preset character greeting user_bio "
     "impersonate"},
    {kRefused, "suffix",
     ": text can only be continued, not filled in; give all of it in the prompt"},
    {kRefused, "use_beam_search early_stopping",
     ": continuations are sampled; ask for n with logprobs, and choose"},
    {kRefused, "no_stop_trim", ": use include_stop_str_in_output"},
    {kRefused, "input_ids", ": /v1/completions takes them as prompt"},
    {kRefused, "n_predict num_predict max_new_tokens max_length", ": use max_tokens"},
    {kRefused, "auto_max_new_tokens", ": leave out max_tokens"},
    {kRefused, "num_ctx max_context_length", ": --max-model-len sets it when the server starts"},
    {kRefused, "truncation_length", ": use truncate_prompt_tokens"},
    {kRefused, "options", ": its members stand in the request itself"},
    {kRefused,
     "chat_template template instruction_template instruction_template_str "
     "chat_template_str",
     ": --chat-template sets it when the server starts"},
    {kRefused, "raw", ": /v1/completions takes a prompt as it is"},
    {kRefused, "system memory", ": use a message of the role system, or the prompt's beginning"},
    {kRefused, "context", ": send the whole conversation"},
    {kRefused, "images", ": only text is served"},
    {kRefused, "think", ": use reasoning_effort or chat_template_kwargs"},
    {kRefused, "prefix continue_", ": use continue_final_message"},
    {kRefused, "format", ": use response_format"},
    {kRefused, "grammar grammar_string", ": use ebnf"},
    {kRefused, "stop_sequence stop_sequences stopping_strings", ": use stop"},
    {kRefused, "banned_tokens banned_strings custom_token_bans",
     ": use bad_words, or logit_bias for token ids"},
    {kRefused, "ban_eos_token bypass_eos use_default_badwordsids", ": use ignore_eos"},
    {kRefused, "render_special", ": use skip_special_tokens"},
    {kRefused, "sampler_seed", ": use seed"},
    {kRefused, "n_probs", ": use logprobs"},
    {kRefused, "n_cmpl", ": use n"},
    {kRefused, "min_new_tokens", ": use min_tokens"},
    {kRefused, "return_tokens", ": use return_token_ids"},
    {kRefused, "repeat_penalty rep_pen", " other than 1: use repetition_penalty", 1},
    {kRefused, "typical_p typical tfs tfs_z guidance_scale encoder_repetition_penalty",
     " other than 1", 1},
    {kRefused, "top_n_sigma adaptive_target", "", -1},
    {kRefused,
     "xtc_probability dynatemp_range dry_multiplier mirostat mirostat_mode top_p_min "
     "repetition_ngram_size no_repeat_ngram_size smoothing_factor epsilon_cutoff eta_cutoff top_a "
     "penalty_alpha nsigma",
     "", 0},
};
inline constexpr MemberRow kCompletion[] = {
    {kServed, "prompt echo"},
    {kIgnored, "parallel_tool_calls include_reasoning prediction"},
    {kRefused, "tools tool_choice reasoning_effort", " for completions"},
};
inline constexpr MemberRow kChat[] = {
    {kServed,
     "messages top_logprobs add_generation_prompt continue_final_message chat_template_kwargs "
     "tools tool_choice parallel_tool_calls include_reasoning reasoning_effort prediction"},
    {kRefused, "echo", " for chat"},
};

inline constexpr MemberTable kCompletionTables[] = {kCompletion, kOpenAi, kSampling, kGeneration,
                                                    kStructured};
inline constexpr MemberTable kChatTables[] = {kChat, kOpenAi, kSampling, kGeneration, kStructured};

}  // namespace members
}  // namespace diffserve
