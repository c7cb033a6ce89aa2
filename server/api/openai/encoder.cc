// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/encoder.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/answer_splitter.h"
#include "server/api/json/json.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string DumpUtf8(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson StopReasonJson(const std::variant<std::monostate, std::string, int32_t>& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  return nullptr;
}

OrderedJson UsageJson(int64_t prompt_tokens, int64_t completion_tokens) {
  return OrderedJson{{"prompt_tokens", prompt_tokens},
                     {"completion_tokens", completion_tokens},
                     {"total_tokens", prompt_tokens + completion_tokens}};
}

OrderedJson UsageJson(const Usage& usage) {
  OrderedJson json = UsageJson(usage.prompt_tokens, usage.completion_tokens);
  json["prompt_tokens_details"] = OrderedJson{{"cached_tokens", usage.cached_tokens}};
  return json;
}

const char* ErrorCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kContextExceeded:
      return "context_length_exceeded";
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
  OrderedJson error{
      {"message", status.message()},
      {"type", WireStatusOf(status.code()).openai_type},
      {"param", status.param().empty() ? OrderedJson(nullptr) : OrderedJson(status.param())},
      {"code", code == nullptr ? OrderedJson(nullptr) : OrderedJson(code)}};
  return DumpUtf8(OrderedJson{{"error", std::move(error)}});
}

OpenAiResponse::OpenAiResponse(const OpenAiRequest& request, OpenAiIdentity identity,
                               TokenTexts texts)
    : chat_(request.chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      echo_(request.echo),
      logprobs_(request.logprobs),
      return_token_ids_(request.return_token_ids),
      hides_eos_(request.hides_eos),
      tokens_as_ids_(request.tokens_as_ids),
      skip_special_tokens_(request.generate.skip_special_tokens),
      n_(request.generate.n),
      num_logprobs_(request.generate.sampling.num_logprobs),
      prompt_logprobs_(request.prompt_logprobs),
      identity_(std::move(identity)),
      chat_form_{request.answer, request.include_reasoning, identity_.id, identity_.created},
      texts_(std::move(texts)) {
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

void OpenAiResponse::Take(ResponseEvent event) {
  DS_CHECK(written(), "an event is written before the next one comes");
  if (done_) return;
  if (auto* started = std::get_if<ResponseStarted>(&event))
    OnStarted(std::move(*started));
  else if (auto* prompt = std::get_if<ResponsePromptLogprobs>(&event))
    OnPromptLogprobs(std::move(*prompt));
  else if (auto* delta = std::get_if<ResponseDelta>(&event))
    OnDelta(std::move(*delta));
  else
    OnDone(std::move(std::get<ResponseDone>(event)));
}

bool OpenAiResponse::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return written();
}

void OpenAiResponse::OnStarted(ResponseStarted event) {
  prompts_ = std::move(event.prompts);
  choices_.resize(prompts_.size() * static_cast<size_t>(n_));
  for (size_t i = 0; chat_ && i < choices_.size(); ++i) {
    choices_[i].chat = std::make_unique<ChatText>(chat_form_, PromptOf(static_cast<int>(i)));
  }
  for (const PromptInfo& prompt : prompts_)
    prompt_tokens_ += static_cast<int64_t>(prompt.token_ids.size());
}

void OpenAiResponse::OnPromptLogprobs(ResponsePromptLogprobs event) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  choices_[static_cast<size_t>(event.choice)].prompt_scores = std::move(event.tokens);
  if (!stream_) return;
  OpenChoice(event.choice);
}

// The first chunk of each choice: the role for chat, the prompt for an echo, the prompt's ids and
// log-probabilities if they were asked for.
void OpenAiResponse::OpenChoice(int index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.opened) return;
  choice.opened = true;
  started_ = true;
  if (!chat_ && !echo_ && !return_token_ids_ && prompt_logprobs_ < 0) return;
  Chunk chunk;
  chunk.opens = true;
  if (echo_) chunk.text = PromptOf(index).text;
  AddChunk(index, chunk);
}

void OpenAiResponse::OnDelta(ResponseDelta event) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  streamed_tokens_ += static_cast<int64_t>(event.tokens.size());
  const bool ends = event.finish != FinishReason::kNone;
  AnswerMessage message;
  if (chat_) {
    const std::string_view text = ShownText(event, hides_eos_, texts_.bytes);
    message = choice.chat->Read(event, text);
    event.text.clear();
  }
  if (!stream_) {
    choice.text += event.text;
    choice.message.Append(std::move(message));
    if (logprobs_ || return_token_ids_) {
      std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
      choice.opening_tokens += event.opening_tokens;
    }
    if (!ends) return;
    choice.finish = event.finish;
    choice.stop_reason = std::move(event.stop_reason);
    return;
  }
  OpenChoice(event.choice);
  // While text is held back (a possible stop string, half a character), there may be nothing to
  // send.
  if (event.text.empty() && message.empty() && !ends &&
      (event.tokens.empty() || (!logprobs_ && !return_token_ids_)))
    return;
  delta_ = std::move(event);
  delta_message_ = std::move(message);
  Chunk chunk;
  chunk.text = delta_.text;
  chunk.message = &delta_message_;
  chunk.tokens = &delta_.tokens;
  chunk.opening_tokens = delta_.opening_tokens;
  chunk.end = ends ? &delta_ : nullptr;
  AddChunk(delta_.choice, chunk);
}

void OpenAiResponse::OnDone(ResponseDone event) {
  done_ = true;
  status_ = std::move(event.status);
  usage_ = event.usage;
  if (!status_.ok()) {
    if (started_) pieces_.Add("data: " + OpenAiErrorBody(status_) + "\n\n");
    return;
  }
  if (!stream_) return AddBody();
  started_ = true;
  if (include_usage_) pieces_.Add("data: " + head_ + "],\"usage\":" + FinalUsage() + "}\n\n");
  pieces_.Add("data: [DONE]\n\n");
}

const char* OpenAiResponse::FinishName(const Choice& choice, FinishReason reason) const {
  return chat_ ? choice.chat->FinishName(reason) : OpenAiNameOf(reason);
}

std::string OpenAiResponse::FinalUsage() const {
  OrderedJson json = UsageJson(usage_);
  if (chat_form_.answer.reasoning != nullptr) {
    int64_t tokens = 0;
    for (const Choice& choice : choices_) tokens += choice.chat->reasoning_tokens();
    json["completion_tokens_details"] = OrderedJson{{"reasoning_tokens", tokens}};
  }
  return DumpUtf8(json);
}

std::string OpenAiResponse::RunningUsage() const {
  return DumpUtf8(UsageJson(prompt_tokens_, streamed_tokens_));
}

void OpenAiResponse::AddChunk(int index, const Chunk& chunk) {
  pieces_.Add("data: " + head_ + "{\"index\":" + std::to_string(index));
  if (!chat_) {
    pieces_.Add(",\"text\":");
    pieces_.AddQuoted(chunk.text);
  } else if (chunk.opens) {
    pieces_.Add(",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
  } else {
    pieces_.Add(",\"delta\":");
    AddChatDelta(*chunk.message, chat_form_, index, &pieces_);
  }
  static const std::vector<SampleResult> kNoTokens;
  const std::vector<SampleResult>& tokens = chunk.tokens == nullptr ? kNoTokens : *chunk.tokens;
  pieces_.Add(",\"logprobs\":");
  if (logprobs_ && chat_ && !tokens.empty())
    AddChatLogprobs({tokens, chunk.opening_tokens});
  else if (logprobs_ && !chat_)
    AddCompletionLogprobs(index, chunk.opens && echo_, {tokens, chunk.opening_tokens});
  else
    pieces_.Add("null");
  if (chunk.end == nullptr) {
    pieces_.Add(",\"finish_reason\":null");
  } else {
    const Choice& choice = choices_[static_cast<size_t>(index)];
    pieces_.Add(",\"finish_reason\":" + JsonQuoted(FinishName(choice, chunk.end->finish)) +
                ",\"stop_reason\":" + DumpUtf8(StopReasonJson(chunk.end->stop_reason)));
  }
  if (return_token_ids_ && chunk.tokens != nullptr) {
    pieces_.Add(",\"token_ids\":");
    AddIds(tokens);
  }
  if (return_token_ids_ && chunk.opens) {
    pieces_.Add(",\"prompt_token_ids\":");
    AddIds(PromptOf(index).token_ids);
  }
  if (prompt_logprobs_ >= 0 && chunk.opens) {
    pieces_.Add(",\"prompt_logprobs\":");
    AddPromptLogprobs(choices_[static_cast<size_t>(index)].prompt_scores, PromptOf(index));
  }
  pieces_.Add("}]");
  if (continuous_usage_)
    pieces_.Add(",\"usage\":" + RunningUsage());
  else if (include_usage_)
    pieces_.Add(",\"usage\":null");
  pieces_.Add("}\n\n");
}

// Each choice adds its pieces when its turn comes, and is released when they are written.
void OpenAiResponse::AddBody() {
  pieces_.Add(head_);
  pieces_.AddItems(choices_.size(), [this](size_t i, std::string* out) {
    if (i > 0) *out += ',';
    AddBodyChoice(i);
    if (chat_) return;  // the members after all choices need the first one's prompt
    pieces_.AddItems(1, [this, i](size_t, std::string*) { choices_[i] = {}; });
  });
  pieces_.Add("],\"usage\":" + FinalUsage());
  if (chat_ && prompt_logprobs_ >= 0 && !choices_.empty()) {
    pieces_.Add(",\"prompt_logprobs\":");
    AddPromptLogprobs(choices_.front().prompt_scores, prompts_.front());
  }
  if (chat_ && return_token_ids_) {
    pieces_.Add(",\"prompt_token_ids\":");
    AddIds(prompts_.front().token_ids);
  }
  pieces_.Add("}");
}

void OpenAiResponse::AddBodyChoice(size_t index) {
  const Choice& choice = choices_[index];
  const PromptInfo& prompt = PromptOf(static_cast<int>(index));
  pieces_.Add("{\"index\":" + std::to_string(index));
  if (chat_) {
    pieces_.Add(",\"message\":");
    AddChatMessage(choice.message, chat_form_, static_cast<int>(index), &pieces_);
  } else {
    if (echo_) choices_[index].text.insert(0, prompt.text);
    pieces_.Add(",\"text\":");
    pieces_.AddQuoted(choice.text);
  }
  pieces_.Add(",\"logprobs\":");
  if (!logprobs_)
    pieces_.Add("null");
  else if (chat_)
    AddChatLogprobs({choice.tokens, choice.opening_tokens});
  else
    AddCompletionLogprobs(static_cast<int>(index), echo_, {choice.tokens, choice.opening_tokens});
  const std::string finish = choice.finish == FinishReason::kNone
                                 ? "null"
                                 : JsonQuoted(FinishName(choice, choice.finish));
  pieces_.Add(",\"finish_reason\":" + finish +
              ",\"stop_reason\":" + DumpUtf8(StopReasonJson(choice.stop_reason)));
  if (!chat_ && prompt_logprobs_ >= 0) {
    pieces_.Add(",\"prompt_logprobs\":");
    AddPromptLogprobs(choice.prompt_scores, prompt);
  }
  if (return_token_ids_) {
    pieces_.Add(",\"token_ids\":");
    AddIds(choice.tokens);
  }
  if (return_token_ids_ && !chat_) {
    pieces_.Add(",\"prompt_token_ids\":");
    AddIds(prompt.token_ids);
  }
  pieces_.Add("}");
}

void OpenAiResponse::AddCompletionLogprobs(int index, bool echo, Generated generated) {
  struct Entry {
    int32_t token = 0;
    const SampleResult* score = nullptr;  // nullptr: a prompt's first token has none
    bool opens_text = false;
  };
  Choice& choice = choices_[static_cast<size_t>(index)];
  const PromptInfo& info = PromptOf(index);
  const SharedTokens prompt = echo ? info.token_ids : SharedTokens();
  const size_t first = prompt.empty() ? 0 : 1;
  const size_t of_prompt = first + (echo ? choice.prompt_scores->size() : 0);
  const auto entry = [&choice, &info, generated, prompt, first, of_prompt](size_t i) {
    if (i < first) return Entry{prompt[0], nullptr, i < info.opening_tokens};
    const SampleResult& score = i < of_prompt ? (*choice.prompt_scores)[i - first]
                                              : generated.tokens[i - of_prompt];
    return Entry{
        score.token, &score,
        i < of_prompt ? i < info.opening_tokens : i - of_prompt < generated.opening_tokens};
  };
  const size_t count = of_prompt + generated.tokens.size();
  pieces_.Add("{\"tokens\":");
  pieces_.AddList(count, [this, entry](size_t i, std::string* out) {
    AppendTokenName(entry(i).token, texts_.At(entry(i).opens_text), tokens_as_ids_, out);
  });
  pieces_.Add(",\"token_logprobs\":");
  pieces_.AddList(count, [entry](size_t i, std::string* out) {
    const SampleResult* const score = entry(i).score;
    if (score == nullptr)
      *out += "null";
    else
      AppendLogprob(score->logprob, out);
  });
  pieces_.Add(",\"top_logprobs\":");
  pieces_.AddList(count, [this, entry](size_t i, std::string* out) {
    const SampleResult* const score = entry(i).score;
    if (score == nullptr)
      *out += "null";
    else
      AppendTopLogprobs(*score, num_logprobs_, texts_.At(entry(i).opens_text), out, tokens_as_ids_);
  });
  pieces_.Add(",\"text_offset\":");
  pieces_.AddList(count, [this, entry, &choice, &info, of_prompt](size_t i, std::string* out) {
    *out += std::to_string(choice.text_offset);
    if (i < of_prompt)
      PassPromptToken(choice, info, i);
    else
      PassToken(choice, entry(i).token, entry(i).opens_text);
  });
  pieces_.Add("}");
}

// A special token counts as text if the client sent it in the prompt, and not if it was added.
void OpenAiResponse::PassPromptToken(Choice& choice, const PromptInfo& prompt, size_t i) const {
  const int32_t id = prompt.token_ids[i];
  const std::string bytes = texts_.At(i < prompt.opening_tokens)(id);
  const std::string_view rest =
      std::string_view(prompt.text).substr(std::min(choice.prompt_offset, prompt.text.size()));
  if (!texts_.is_special(id) || rest.starts_with(bytes)) {
    choice.prompt_offset += bytes.size();
    choice.text_offset += CharactersStartedIn(bytes);
  }
  // Whatever normalization removed, the answer begins where the prompt ends.
  if (i + 1 == prompt.token_ids.size()) choice.text_offset = CharactersStartedIn(prompt.text);
}

void OpenAiResponse::PassToken(Choice& choice, int32_t id, bool opens_text) const {
  if (skip_special_tokens_ && texts_.is_special(id)) return;
  choice.text_offset += CharactersStartedIn(texts_.At(opens_text)(id));
}

void OpenAiResponse::AddChatLogprobs(Generated generated) {
  pieces_.Add("{\"content\":");
  pieces_.AddList(generated.tokens.size(), [this, generated](size_t i, std::string* out) {
    AppendChatLogprobs(generated.tokens[i], num_logprobs_, texts_.At(i < generated.opening_tokens),
                       out, tokens_as_ids_);
  });
  pieces_.Add(",\"refusal\":null}");
}

// vLLM's form: null for the first token.
void OpenAiResponse::AddPromptLogprobs(const PromptScores& scores, const PromptInfo& prompt) {
  pieces_.AddList(scores->size() + 1, [this, scores, opening = prompt.opening_tokens](
                                          size_t i, std::string* out) {
    if (i == 0)
      *out += "null";
    else
      AppendPromptLogprobs((*scores)[i - 1], prompt_logprobs_, texts_.At(i < opening), out);
  });
}

void OpenAiResponse::AddIds(const std::vector<SampleResult>& tokens) {
  pieces_.AddList(tokens.size(), [&tokens](size_t i, std::string* out) {
    *out += std::to_string(tokens[i].token);
  });
}

void OpenAiResponse::AddIds(const SharedTokens& ids) {
  pieces_.AddList(ids.size(),
                  [ids](size_t i, std::string* out) { *out += std::to_string(ids[i]); });
}

namespace {

OrderedJson ModelJson(const ModelCard& card) {
  return OrderedJson{{"id", card.name},
                     {"object", "model"},
                     {"created", card.created},
                     {"owned_by", "diffserve"},
                     {"root", card.root},
                     {"parent", nullptr},
                     {"max_model_len", card.max_model_len}};
}

}  // namespace

std::string ModelBody(const ModelCard& card) { return DumpUtf8(ModelJson(card)); }

std::string ModelListBody(const std::vector<ModelCard>& cards) {
  OrderedJson data = OrderedJson::array();
  for (const ModelCard& card : cards) data.push_back(ModelJson(card));
  return DumpUtf8(OrderedJson{{"object", "list"}, {"data", data}});
}

std::string TokenizeBody(const std::vector<int32_t>& ids, int max_model_len,
                         const std::vector<std::string>* token_strs) {
  OrderedJson json{{"count", ids.size()},
                   {"max_model_len", max_model_len},
                   {"tokens", ids},
                   {"token_strs", nullptr}};
  if (token_strs != nullptr) json["token_strs"] = *token_strs;
  return DumpUtf8(json);
}

std::string DetokenizeBody(std::string_view text) {
  return DumpUtf8(OrderedJson{{"prompt", text}});
}

std::string VersionBody(std::string_view version, std::string_view commit) {
  return DumpUtf8(OrderedJson{{"version", version}, {"commit", commit}});
}

std::string LoadBody(int64_t requests) { return DumpUtf8(OrderedJson{{"server_load", requests}}); }

}  // namespace diffserve
