#include "server/openai/response.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "server/openai/json.h"
#include "server/status_codes.h"

namespace diffserve {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json FinishJson(FinishReason reason) {
  return reason == FinishReason::kNone ? Json(nullptr) : Json(OpenAiNameOf(reason));
}

Json StopReasonJson(const std::variant<std::monostate, std::string, int32_t>& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  return nullptr;
}

// JSON knows no infinity; -9999 is what clients of other servers meet for a probability of zero.
double LogprobNumber(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0;
}

bool IsUtf8(std::string_view bytes) {
  try {
    (void)nlohmann::json(bytes).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// A token's text; one that is part of a character is shown as its bytes, so that different tokens
// stay different.
std::string TokenKey(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string key = "bytes:";
  constexpr char kHex[] = "0123456789abcdef";
  for (const unsigned char c : bytes) {
    key += "\\x";
    key += kHex[c >> 4];
    key += kHex[c & 15];
  }
  return key;
}

int64_t CharactersStartedIn(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

Json ByteList(const std::string& bytes) {
  Json list = Json::array();
  for (const unsigned char c : bytes) list.push_back(c);
  return list;
}

// More may have been computed than this list shows.
std::span<const TokenLogprob> FirstOf(const std::vector<TokenLogprob>& top, int count) {
  return std::span(top).first(std::min(static_cast<size_t>(std::max(count, 0)), top.size()));
}

// The lists of a completion's logprobs object, filled token by token.
struct CompletionLogprobs {
  const TokenBytes& token_bytes;
  const int num_top;
  int64_t* const offset;  // characters before the next token
  Json tokens = Json::array(), token_logprobs = Json::array(), top_logprobs = Json::array(),
       text_offset = Json::array();

  // The first token of a prompt has no log-probability.
  void AddPrompt(const SharedTokens& ids, const std::vector<SampleResult>& scores) {
    if (!ids.empty()) AddToken(token_bytes(*ids.begin()), nullptr, nullptr);
    for (const SampleResult& score : scores) Add(score);
  }
  void Add(const SampleResult& sample) {
    const std::string bytes = token_bytes(sample.token);
    Json top = Json::object();
    for (const TokenLogprob& other : FirstOf(sample.top_logprobs, num_top)) {
      top[TokenKey(token_bytes(other.token))] = LogprobNumber(other.logprob);
    }
    top[TokenKey(bytes)] = LogprobNumber(sample.logprob);
    AddToken(bytes, LogprobNumber(sample.logprob), std::move(top));
  }
  void AddToken(const std::string& bytes, Json logprob, Json top) {
    tokens.push_back(TokenKey(bytes));
    token_logprobs.push_back(std::move(logprob));
    top_logprobs.push_back(std::move(top));
    text_offset.push_back(*offset);
    *offset += CharactersStartedIn(bytes);
  }
  Json Object() && {
    return Json{{"tokens", std::move(tokens)},
                {"token_logprobs", std::move(token_logprobs)},
                {"top_logprobs", std::move(top_logprobs)},
                {"text_offset", std::move(text_offset)}};
  }
};

Json ChatToken(const std::string& bytes, float logprob) {
  return Json{{"token", bytes}, {"logprob", LogprobNumber(logprob)}, {"bytes", ByteList(bytes)}};
}

Json ChatLogprobs(const std::vector<SampleResult>& tokens, int num_top,
                  const TokenBytes& token_bytes) {
  Json content = Json::array();
  for (const SampleResult& sample : tokens) {
    Json entry = ChatToken(token_bytes(sample.token), sample.logprob);
    Json top = Json::array();
    for (const TokenLogprob& other : FirstOf(sample.top_logprobs, num_top))
      top.push_back(ChatToken(token_bytes(other.token), other.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return Json{{"content", std::move(content)}, {"refusal", nullptr}};
}

// vLLM's form: for each prompt token an object of id to {logprob, rank, decoded_token}; null for
// the first.
Json PromptLogprobsJson(const std::vector<SampleResult>& tokens, int num_top,
                        const TokenBytes& token_bytes) {
  Json list = Json::array({nullptr});
  for (const SampleResult& sample : tokens) {
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob, const Json& rank) {
      entry[std::to_string(id)] = Json{{"logprob", LogprobNumber(logprob)},
                                       {"rank", rank},
                                       {"decoded_token", TokenKey(token_bytes(id))}};
    };
    // Its rank is known only if it is among the alternatives.
    add(sample.token, sample.logprob, nullptr);
    int rank = 0;
    for (const TokenLogprob& other : sample.top_logprobs) {
      if (++rank <= num_top || other.token == sample.token) add(other.token, other.logprob, rank);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json IdList(const std::vector<SampleResult>& tokens) {
  Json list = Json::array();
  for (const SampleResult& sample : tokens) list.push_back(sample.token);
  return list;
}

Json UsageJson(int64_t prompt_tokens, int64_t completion_tokens) {
  return Json{{"prompt_tokens", prompt_tokens},
              {"completion_tokens", completion_tokens},
              {"total_tokens", prompt_tokens + completion_tokens}};
}

Json UsageJson(const Usage& usage) {
  Json json = UsageJson(usage.prompt_tokens, usage.completion_tokens);
  json["prompt_tokens_details"] = Json{{"cached_tokens", usage.cached_tokens}};
  return json;
}

const char* ErrorCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
      return status.param() == "model" ? "model_not_found" : "not_found";
    case StatusCode::kUnauthenticated:
      return "invalid_api_key";
    case StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    default:
      return nullptr;
  }
}

}  // namespace

std::string OpenAiErrorBody(const Status& status) {
  const char* const code = ErrorCode(status);
  Json error{{"message", status.message()},
             {"type", WireStatusOf(status.code()).openai_type},
             {"param", status.param().empty() ? Json(nullptr) : Json(status.param())},
             {"code", code == nullptr ? Json(nullptr) : Json(code)}};
  return Dump(Json{{"error", std::move(error)}});
}

OpenAiResponse::OpenAiResponse(const OpenAiRequest& request, OpenAiIdentity identity,
                               TokenBytes token_bytes)
    : chat_(request.chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      echo_(request.echo),
      logprobs_(request.logprobs),
      return_token_ids_(request.return_token_ids),
      n_(request.generate.n),
      num_logprobs_(request.generate.sampling.num_logprobs),
      prompt_logprobs_(request.prompt_logprobs),
      identity_(std::move(identity)),
      token_bytes_(std::move(token_bytes)) {
  const char* const object = !chat_    ? "text_completion"
                             : stream_ ? "chat.completion.chunk"
                                       : "chat.completion";
  head_ = "{\"id\":" + JsonQuoted(identity_.id) + ",\"object\":\"" + object +
          "\",\"created\":" + std::to_string(identity_.created) +
          ",\"model\":" + JsonQuoted(identity_.model) +
          ",\"system_fingerprint\":" + JsonQuoted(identity_.fingerprint) + ",\"choices\":[";
}

const PromptInfo& OpenAiResponse::PromptOf(int choice) const {
  return prompts_[static_cast<size_t>(choice / n_)];
}

void OpenAiResponse::Take(ResponseEvent event, std::string* frames) {
  if (done_) return;
  if (auto* started = std::get_if<ResponseStarted>(&event))
    OnStarted(std::move(*started));
  else if (auto* prompt = std::get_if<ResponsePromptLogprobs>(&event))
    OnPromptLogprobs(std::move(*prompt), frames);
  else if (auto* delta = std::get_if<ResponseDelta>(&event))
    OnDelta(std::move(*delta), frames);
  else
    OnDone(std::move(std::get<ResponseDone>(event)), frames);
}

void OpenAiResponse::OnStarted(ResponseStarted event) {
  prompts_ = std::move(event.prompts);
  choices_.resize(prompts_.size() * static_cast<size_t>(n_));
  for (const PromptInfo& prompt : prompts_)
    prompt_tokens_ += static_cast<int64_t>(prompt.token_ids.size());
}

void OpenAiResponse::OnPromptLogprobs(ResponsePromptLogprobs event, std::string* frames) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  choices_[static_cast<size_t>(event.choice)].prompt_logprobs = std::move(event.tokens);
  if (!stream_) return;
  OpenChoice(event.choice, frames);
}

// The first chunk of each choice: the role for chat, the prompt for an echo, the prompt's ids if
// they were asked for.
void OpenAiResponse::OpenChoice(int index, std::string* frames) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.opened) return;
  choice.opened = true;
  started_ = true;
  if (!chat_ && !echo_ && !return_token_ids_) return;
  Chunk chunk;
  chunk.opens = true;
  if (echo_) chunk.text = PromptOf(index).text;
  AppendChunk(index, chunk, frames);
}

void OpenAiResponse::OnDelta(ResponseDelta event, std::string* frames) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  streamed_tokens_ += static_cast<int64_t>(event.tokens.size());
  if (!stream_) {
    choice.text += event.text;
    if (logprobs_ || return_token_ids_) {
      std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
    }
    if (event.finish == FinishReason::kNone) return;
    choice.finish = event.finish;
    choice.stop_reason = std::move(event.stop_reason);
    return;
  }
  OpenChoice(event.choice, frames);
  const bool ends = event.finish != FinishReason::kNone;
  // While text is held back (a possible stop string, half a character) there may be nothing to say.
  if (event.text.empty() && !ends && (event.tokens.empty() || (!logprobs_ && !return_token_ids_)))
    return;
  Chunk chunk;
  chunk.text = event.text;
  chunk.tokens = &event.tokens;
  chunk.end = ends ? &event : nullptr;
  AppendChunk(event.choice, chunk, frames);
}

void OpenAiResponse::OnDone(ResponseDone event, std::string* frames) {
  done_ = true;
  status_ = std::move(event.status);
  usage_ = event.usage;
  if (!stream_) return;
  if (!status_.ok()) {
    if (started_) *frames += "data: " + OpenAiErrorBody(status_) + "\n\n";
    return;
  }
  started_ = true;
  if (include_usage_)
    *frames += "data: " + head_ + "],\"usage\":" + Dump(UsageJson(usage_)) + "}\n\n";
  *frames += "data: [DONE]\n\n";
}

std::string OpenAiResponse::RunningUsage() const {
  return Dump(UsageJson(prompt_tokens_, streamed_tokens_));
}

void OpenAiResponse::AppendChunk(int index, const Chunk& chunk, std::string* frames) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  std::string& out = *frames;
  out += "data: " + head_ + "{\"index\":" + std::to_string(index);
  if (!chat_) {
    out += ",\"text\":" + JsonQuoted(chunk.text);
  } else if (chunk.opens) {
    out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}";
  } else {
    out += ",\"delta\":{" + (chunk.text.empty() ? "" : "\"content\":" + JsonQuoted(chunk.text)) +
           "}";
  }
  out += ",\"logprobs\":";
  if (logprobs_ && chat_ && chunk.tokens != nullptr && !chunk.tokens->empty()) {
    out += Dump(ChatLogprobs(*chunk.tokens, num_logprobs_, token_bytes_));
  } else if (logprobs_ && !chat_) {
    CompletionLogprobs lists{token_bytes_, num_logprobs_, &choice.text_offset};
    if (chunk.opens && echo_) lists.AddPrompt(PromptOf(index).token_ids, choice.prompt_logprobs);
    for (size_t i = 0; chunk.tokens != nullptr && i < chunk.tokens->size(); ++i)
      lists.Add((*chunk.tokens)[i]);
    out += Dump(std::move(lists).Object());
  } else {
    out += "null";
  }
  out += ",\"finish_reason\":" +
         Dump(FinishJson(chunk.end == nullptr ? FinishReason::kNone : chunk.end->finish));
  if (chunk.end != nullptr)
    out += ",\"stop_reason\":" + Dump(StopReasonJson(chunk.end->stop_reason));
  if (return_token_ids_ && chunk.tokens != nullptr)
    out += ",\"token_ids\":" + Dump(IdList(*chunk.tokens));
  if (return_token_ids_ && chunk.opens)
    out += ",\"prompt_token_ids\":" + Dump(Json(PromptOf(index).token_ids.ids()));
  out += "}]";
  if (continuous_usage_)
    out += ",\"usage\":" + RunningUsage();
  else if (include_usage_)
    out += ",\"usage\":null";
  out += "}\n\n";
}

std::string OpenAiResponse::Body() const {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    const PromptInfo& prompt = PromptOf(static_cast<int>(i));
    Json json{{"index", i}};
    if (chat_) {
      json["message"] = Json{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      json["logprobs"] = logprobs_ ? ChatLogprobs(choice.tokens, num_logprobs_, token_bytes_)
                                   : Json(nullptr);
    } else {
      json["text"] = echo_ ? prompt.text + choice.text : choice.text;
      json["logprobs"] = nullptr;
      if (logprobs_) {
        int64_t offset = 0;
        CompletionLogprobs lists{token_bytes_, num_logprobs_, &offset};
        if (echo_) lists.AddPrompt(prompt.token_ids, choice.prompt_logprobs);
        for (const SampleResult& token : choice.tokens) lists.Add(token);
        json["logprobs"] = std::move(lists).Object();
      }
    }
    json["finish_reason"] = FinishJson(choice.finish);
    json["stop_reason"] = StopReasonJson(choice.stop_reason);
    if (!chat_ && prompt_logprobs_ >= 0)
      json["prompt_logprobs"] = PromptLogprobsJson(choice.prompt_logprobs, prompt_logprobs_,
                                                   token_bytes_);
    if (return_token_ids_) json["token_ids"] = IdList(choice.tokens);
    if (return_token_ids_ && !chat_) json["prompt_token_ids"] = prompt.token_ids.ids();
    choices.push_back(std::move(json));
  }
  std::string list = Dump(choices);
  std::string body = head_ + list.substr(1) + ",\"usage\":" + Dump(UsageJson(usage_));
  if (chat_ && prompt_logprobs_ >= 0 && !choices_.empty()) {
    body += ",\"prompt_logprobs\":" + Dump(PromptLogprobsJson(choices_.front().prompt_logprobs,
                                                              prompt_logprobs_, token_bytes_));
  }
  if (chat_ && return_token_ids_)
    body += ",\"prompt_token_ids\":" + Dump(Json(prompts_.front().token_ids.ids()));
  return body + "}";
}

namespace {

Json ModelJson(const ModelCard& card) {
  return Json{{"id", card.name},
              {"object", "model"},
              {"created", card.created},
              {"owned_by", "diffserve"},
              {"root", card.root},
              {"parent", nullptr},
              {"max_model_len", card.max_model_len}};
}

}  // namespace

std::string ModelBody(const ModelCard& card) { return Dump(ModelJson(card)); }

std::string ModelListBody(const ModelCard& card) {
  return Dump(Json{{"object", "list"}, {"data", Json::array({ModelJson(card)})}});
}

std::string TokenizeBody(const std::vector<int32_t>& ids, int max_model_len,
                         const std::vector<std::string>* token_strs) {
  Json json{{"count", ids.size()},
            {"max_model_len", max_model_len},
            {"tokens", ids},
            {"token_strs", nullptr}};
  if (token_strs != nullptr) json["token_strs"] = *token_strs;
  return Dump(json);
}

std::string DetokenizeBody(std::string_view text) { return Dump(Json{{"prompt", text}}); }

std::string VersionBody(std::string_view version, std::string_view commit) {
  return Dump(Json{{"version", version}, {"commit", commit}});
}

std::string LoadBody(int64_t requests) { return Dump(Json{{"server_load", requests}}); }

}  // namespace diffserve
