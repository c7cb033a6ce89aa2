// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/diffserve/messages.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.pb.h"
#include "kernels/base/refusal.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/grpc/wire_fields.h"
#include "server/api/grpc/wire_request.h"
#include "server/json/json.h"
#include "server/json/json_writer.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr char kToolsJson[] = "tools_json";

Status CheckName(const std::string& value, const std::string& path) {
  return value.size() <= kMaxNameBytes ? Status()
                                       : TooMany(path, value.size(), "bytes", kMaxNameBytes);
}

Status ReadCalls(const v1::ChatMessage& message, const std::string& path, Message* read) {
  if (message.tool_calls().empty()) return {};
  if (message.role() != "assistant") {
    return OnlyWith(path + ".tool_calls", "the role assistant");
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    const v1::ToolCall& call = message.tool_calls(i);
    const std::string call_path = path + ".tool_calls[" + std::to_string(i) + "]";
    if (call.name().empty()) return Missing(call_path + ".name");
    DS_RETURN_IF_ERROR(CheckName(call.id(), call_path + ".id"));
    DS_RETURN_IF_ERROR(CheckName(call.name(), call_path + ".name"));
    read->calls.push_back({call.id(), call.name(), CallArguments(call.arguments())});
  }
  return {};
}

Result<Message> ReadMessage(const v1::ChatMessage& message, const std::string& path) {
  DS_RETURN_IF_ERROR(CheckRole(message.role(), path, ToolMessages::kAllowed));
  DS_RETURN_IF_ERROR(CheckName(message.name(), path + ".name"));
  DS_RETURN_IF_ERROR(CheckName(message.tool_call_id(), path + ".tool_call_id"));
  if ((message.role() == "tool") == message.tool_call_id().empty()) {
    return InvalidArgument(
        path + ".tool_call_id belongs to a message of the role tool, and to " + "each of them",
        path + ".tool_call_id");
  }
  Message read{.role = message.role(), .content = message.content(), .name = message.name()};
  read.tool_call_id = message.tool_call_id();
  DS_RETURN_IF_ERROR(ReadCalls(message, path, &read));
  return read;
}

// `tools_json` is the list that a body of /v1/chat/completions has as `tools`.
Status ReadTools(const std::string& tools_json, std::vector<Tool>* tools) {
  if (tools_json.empty()) return {};
  if (tools_json.size() > kMaxToolsBytes)
    return TooMany(kToolsJson, tools_json.size(), "bytes", kMaxToolsBytes);
  std::string body;
  JsonWriter(&body).Begin('{').Key(kToolsJson).Json(tools_json).End('}');
  Result<JsonFields> fields = JsonFields::Parse(body);
  if (!fields.ok() || !fields->Has(kToolsJson) || fields->Names().size() != 1) {
    return NotAllowed(
        "tools_json is " + (fields.ok() ? std::string("another value")
                                        : "no JSON (" + fields.status().message() + ")"),
        "a JSON list of tools", kToolsJson);
  }
  *tools = ReadToolList(*fields, kToolsJson);
  return fields->status();
}

Result<Conversation> FromProto(const v1::Chat& chat) {
  const size_t count = static_cast<size_t>(chat.messages_size());
  if (count == 0) return IsEmpty("messages", "at least 1 message");
  if (count > kMaxMessages) {
    return TooMany("messages", count, "entries", kMaxMessages);
  }
  Conversation conversation;
  for (const v1::ChatMessage& message : chat.messages()) {
    const std::string path = "messages[" + std::to_string(conversation.messages.size()) + "]";
    Result<Message> read = ReadMessage(message, path);
    if (!read.ok()) return read.status();
    conversation.messages.push_back(std::move(read).value());
  }
  DS_RETURN_IF_ERROR(ReadTools(chat.tools_json(), &conversation.tools));
  if (chat.has_add_generation_prompt())
    conversation.add_generation_prompt = chat.add_generation_prompt();
  if (chat.continue_final_message())
    DS_RETURN_IF_ERROR(ContinueFinalMessageIfNotOpened(&conversation));
  return conversation;
}

Status AssignGrammar(std::optional<GrammarSpec>* to, GrammarSpec::Kind kind, std::string text,
                     const GrammarLimits& limits, const char* param) {
  if (text.size() > limits.max_text_bytes)
    return TooMany(param, text.size(), "bytes", limits.max_text_bytes);
  *to = GrammarSpec{kind, std::move(text), param};
  return {};
}

Status ReadGrammar(const v1::Grammar& in, const GrammarLimits& limits,
                   std::optional<GrammarSpec>* out) {
  using Kind = GrammarSpec::Kind;
  switch (in.kind_case()) {
    case v1::Grammar::kJsonObject:
      return in.json_object() ? AssignGrammar(out, Kind::kJsonObject, "", limits, "json_object")
                              : Status();
    case v1::Grammar::kJsonSchema:
      return AssignGrammar(out, Kind::kJsonSchema, in.json_schema(), limits, "json_schema");
    case v1::Grammar::kRegex:
      return AssignGrammar(out, Kind::kRegex, in.regex(), limits, "regex");
    case v1::Grammar::kChoice:
      if (in.choice().texts().empty()) return IsEmpty("choice", "at least 1 text");
      return AssignGrammar(out, Kind::kChoice, JsonListOf(in.choice().texts()), limits, "choice");
    case v1::Grammar::kLark:
      return AssignGrammar(out, Kind::kLark, in.lark(), limits, "lark");
    case v1::Grammar::kEbnf:
      return AssignGrammar(out, Kind::kEbnf, in.ebnf(), limits, "ebnf");
    case v1::Grammar::kStructuralTag:
      return AssignGrammar(out, Kind::kStructuralTag, in.structural_tag(), limits,
                           "structural_tag");
    case v1::Grammar::KIND_NOT_SET:
      break;
  }
  return IsEmpty("grammar", "json_object, json_schema, regex, choice, lark, ebnf, structural_tag");
}

Result<ToolChoice> FromProto(const v1::ToolChoice& choice, bool any_tools) {
  using Kind = ToolChoice::Kind;
  ToolChoice read;
  read.parallel = !choice.has_parallel() || choice.parallel();
  if (choice.kind_case() == v1::ToolChoice::kFunction) {
    if (choice.function().empty())
      return NotAllowed("tool_choice.function is empty", "the name of a tool", "tool_choice");
    read.kind = Kind::kNamed;
    read.name = choice.function();
    return read;
  }
  switch (choice.mode()) {  // AUTO if neither is there
    case v1::ToolChoice::AUTO:
      read.kind = any_tools ? Kind::kAuto : Kind::kNone;
      return read;
    case v1::ToolChoice::NONE:
      return read;
    case v1::ToolChoice::REQUIRED:
      read.kind = Kind::kRequired;
      return read;
    default:
      return NotAllowed("tool_choice.mode is " + std::to_string(choice.mode()),
                        "AUTO, NONE, REQUIRED", "tool_choice.mode");
  }
}

// Sets how the answer is read, and the token settings that follow from it.
Status ReadAnswerForm(const v1::GenerateRequest& message, const AnswerFormats& formats,
                      AnswerRequest* request) {
  const bool is_chat = message.has_chat();
  for (const auto& [found, name] :
       {std::pair(message.has_tool_choice(), "tool_choice"),
        std::pair(message.has_include_reasoning(), "include_reasoning"),
        std::pair(!message.reasoning_effort().empty(), "reasoning_effort")}) {
    if (found && !is_chat) return OnlyWith(name, "the prompt chat");
  }
  if (!is_chat) return {};
  auto& conversation = std::get<Conversation>(request->generate.prompts.front());
  const std::string& effort = message.reasoning_effort();
  if (effort.size() > kMaxEffortBytes)
    return TooMany("reasoning_effort", effort.size(), "bytes", kMaxEffortBytes);
  SetReasoningEffort(effort, /*thinking_is_set=*/false, &conversation);
  if (message.has_include_reasoning()) request->include_reasoning = message.include_reasoning();
  const Result<ToolChoice> choice = FromProto(message.tool_choice(), !conversation.tools.empty());
  if (!choice.ok()) return choice.status();
  request->generate.names.tools = kToolsJson;
  return PlanTools(*choice, formats, request);
}

// Reads the grammar, the reasoning budget, the rules for tokens, truncation and priority.
Status ReadConstraints(const v1::GenerateRequest& message, const FrontendOptions& limits,
                       GenerateRequest& request) {
  if (message.has_grammar())
    DS_RETURN_IF_ERROR(ReadGrammar(message.grammar(), limits.grammar, &request.grammar));
  if (message.has_max_reasoning_tokens() && message.max_reasoning_tokens() < 0) {
    return BelowMin("max_reasoning_tokens", message.max_reasoning_tokens(), 0);
  }
  if (message.has_max_reasoning_tokens())
    request.max_reasoning_tokens = message.max_reasoning_tokens();
  request.allowed_token_ids.assign(message.allowed_token_ids().begin(),
                                   message.allowed_token_ids().end());
  request.bad_words.assign(message.bad_words().begin(), message.bad_words().end());
  if (message.has_truncate_prompt_tokens())
    request.truncate_prompt_tokens = message.truncate_prompt_tokens();
  request.priority = message.priority();
  return {};
}

std::vector<int32_t> IdsOf(const v1::TokenIds& ids) { return {ids.ids().begin(), ids.ids().end()}; }

void ReadStopping(const v1::StoppingParams& stopping, GenerateRequest& request) {
  if (stopping.has_max_tokens()) request.max_tokens = stopping.max_tokens();
  request.sampling.min_tokens = stopping.min_tokens();
  request.stop.assign(stopping.stop().begin(), stopping.stop().end());
  request.sampling.stop_token_ids.assign(stopping.stop_token_ids().begin(),
                                         stopping.stop_token_ids().end());
  request.include_stop_str_in_output = stopping.include_stop_str_in_output();
  request.sampling.ignore_eos = stopping.ignore_eos();
}

SamplingSpec FromProto(const v1::SamplingParams& in, const SamplingSpec& defaults) {
  SamplingSpec out = defaults;
  ReadSamplingNumbers(in, &out);
  if (in.has_top_k()) out.top_k = in.top_k();
  if (in.has_seed()) out.seed = in.seed();
  // A map has no order; sorted, equal requests are equal.
  for (const auto& [token, bias] : in.logit_bias()) out.logit_bias.emplace_back(token, bias);
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  return out;
}

void Fill(const AttentionQueryMaps& in, const AttentionAnswer& answer, v1::AttentionItem& out) {
  const bool has_map2 = answer.num_maps == 2;
  out.set_layer(in.layer);
  out.set_head(in.head);
  out.set_position(in.position);
  out.set_lambda(in.lambda);
  out.set_entropy1(in.entropy1);
  if (has_map2) out.set_entropy2(in.entropy2);
  out.set_cancelled(in.cancelled);
  if (answer.has_span) {
    v1::AttentionShare& share = *out.mutable_on_span();
    share.set_map1(in.on_span.map1);
    if (has_map2) share.set_map2(in.on_span.map2);
    share.set_difference(in.on_span.difference);
  }
  out.mutable_map1()->Add(in.map1.begin(), in.map1.end());
  out.mutable_map2()->Add(in.map2.begin(), in.map2.end());
  for (const AttentionSlot& slot : in.top) {
    v1::AttentionSlot& top = *out.add_top();
    top.set_slot(slot.slot);
    top.set_map1(slot.map1);
    if (has_map2) top.set_map2(slot.map2);
    top.set_difference(slot.difference);
  }
}

}  // namespace

Result<AnswerRequest> FromProto(const v1::GenerateRequest& message, const FrontendOptions& limits,
                                const SamplingSpec& defaults) {
  AnswerRequest answered;
  GenerateRequest& request = answered.generate;
  request.request_id = message.request_id();
  request.model = message.model();
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText:
      request.names.prompt = "text";
      request.prompts.emplace_back(message.text());
      break;
    case v1::GenerateRequest::kTokenIds:
      request.names.prompt = "token_ids";
      request.prompts.emplace_back(IdsOf(message.token_ids()));
      break;
    case v1::GenerateRequest::kChat: {
      Result<Conversation> chat = FromProto(message.chat());
      if (!chat.ok()) return chat.status();
      request.prompts.emplace_back(std::move(chat).value());
      answered.chat = true;
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return Missing("prompt", "text, token_ids, chat");
  }
  if (message.has_logprobs()) DS_RETURN_IF_ERROR(CheckLogprobs(message.logprobs(), "logprobs"));
  if (message.has_prompt_logprobs())
    DS_RETURN_IF_ERROR(CheckLogprobs(message.prompt_logprobs(), "prompt_logprobs"));
  DS_RETURN_IF_ERROR(ReadConstraints(message, limits, request));
  request.sampling = FromProto(message.sampling(), defaults);
  request.sampling.num_logprobs = message.has_logprobs() ? message.logprobs() : -1;
  answered.logprobs = message.has_logprobs();
  request.n = message.sampling().n() == 0 ? 1 : message.sampling().n();
  ReadStopping(message.stopping(), request);
  request.skip_special_tokens = message.has_skip_special_tokens() ? message.skip_special_tokens()
                                                                  : true;
  request.sampling.prompt_logprobs = message.has_prompt_logprobs() ? message.prompt_logprobs() : -1;
  request.cache_salt = message.cache_salt();
  DS_RETURN_IF_ERROR(ReadAnswerForm(message, limits.formats, &answered));
  return answered;
}

Result<EmbeddingRequest> FromProto(const v1::EmbedRequest& message, const SamplingSpec& defaults) {
  EmbeddingRequest request;
  GenerateRequest& generate = request.generate;
  generate.request_id = message.request_id();
  generate.model = message.model();
  generate.sampling = defaults;
  generate.max_tokens = 0;
  generate.names.prompt = generate.names.n = "inputs";
  generate.holds = AnswerHolds::kText;
  generate.cache_salt = message.cache_salt();
  for (int i = 0; i < message.inputs_size(); ++i) {
    const v1::EmbedInput& input = message.inputs(i);
    if (input.has_text()) {
      generate.prompts.emplace_back(input.text());
    } else if (input.has_token_ids()) {
      generate.prompts.emplace_back(IdsOf(input.token_ids()));
    } else {
      const std::string path = "inputs[" + std::to_string(i) + "]";
      return IsEmpty(path, "text, token_ids");
    }
  }
  if (message.pooling() == v1::POOLING_LAST) {
    request.pooling = HiddenStatePool::Kind::kLast;
  } else if (message.pooling() != v1::POOLING_MEAN) {
    return NotAllowed("pooling is " + std::to_string(message.pooling()),
                      "POOLING_MEAN, POOLING_LAST", "pooling");
  }
  if (message.has_dimensions()) {
    request.dimensions = message.dimensions();
    DS_RETURN_IF_ERROR(CheckDimensions(message.dimensions()));
  }
  if (message.has_add_special_tokens()) generate.add_special_tokens = message.add_special_tokens();
  if (message.has_truncate_prompt_tokens())
    generate.truncate_prompt_tokens = message.truncate_prompt_tokens();
  return request;
}

Result<AttentionRequest> FromProto(const v1::AttentionRequest& message) {
  AttentionRequest request;
  request.request_id = message.request_id();
  request.model = message.model();
  switch (message.prompt_case()) {
    case v1::AttentionRequest::kText:
      request.prompt = message.text();
      break;
    case v1::AttentionRequest::kTokenIds:
      request.prompt = IdsOf(message.token_ids());
      request.names.prompt = "token_ids";
      break;
    case v1::AttentionRequest::kChat: {
      Result<Conversation> chat = FromProto(message.chat());
      if (!chat.ok()) return chat.status();
      request.prompt = std::move(chat).value();
      request.names.prompt = "chat";
      break;
    }
    case v1::AttentionRequest::PROMPT_NOT_SET:
      return Missing("prompt", "text, token_ids, chat");
  }
  request.layers.assign(message.layers().begin(), message.layers().end());
  request.heads.assign(message.heads().begin(), message.heads().end());
  request.positions.assign(message.positions().begin(), message.positions().end());
  request.all_positions = message.all_positions();
  if (message.has_top_k()) request.top_k = message.top_k();
  if (message.has_span()) request.span = {message.span().begin(), message.span().end()};
  return request;
}

Result<Prompt> FromProto(const v1::TokenizeRequest& message) {
  switch (message.input_case()) {
    case v1::TokenizeRequest::kText:
      return Prompt(message.text());
    case v1::TokenizeRequest::kChat: {
      Result<Conversation> chat = FromProto(message.chat());
      if (!chat.ok()) return chat.status();
      return Prompt(std::move(chat).value());
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return Missing("input", "text, chat");
}

void Fill(const AttentionAnswer& answer, size_t i, v1::AttentionResponse& out) {
  out.Clear();
  if (i > 0) return Fill(answer.items[i - 1], answer, *out.mutable_item());
  v1::AttentionStart& start = *out.mutable_start();
  start.set_maps(answer.num_maps);
  start.set_num_layers(answer.num_layers);
  start.set_num_heads(answer.num_heads);
  start.mutable_token_ids()->Add(answer.tokens.begin(), answer.tokens.end());
  start.mutable_token_texts()->Add(answer.token_texts.begin(), answer.token_texts.end());
}

void FillEmbeddings(const std::vector<std::shared_ptr<HiddenStatePool>>& pools, const Usage& usage,
                    v1::EmbedResponse& out) {
  for (const auto& pool : pools) {
    const std::span<const float> values = pool->values();
    out.add_embeddings()->mutable_values()->Add(values.begin(), values.end());
  }
  out.mutable_usage()->set_prompt_tokens(usage.prompt_tokens);
  out.mutable_usage()->set_cached_tokens(usage.cached_tokens);
}

void FillModel(const Frontend& frontend, const EngineOptions& engine, v1::GetModelResponse& out) {
  const ModelConfig& config = frontend.model_config();
  out.set_name(frontend.options().names.name);
  out.set_family(config.family);
  out.set_vocab_size(config.vocab_size);
  out.set_max_model_len(engine.max_model_len);
  out.set_num_layers(config.num_layers);
  out.set_hidden_size(config.hidden_size);
  out.set_page_size(engine.page_size);
  out.set_num_pages(engine.num_pages);
  out.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
}

}  // namespace diffserve
