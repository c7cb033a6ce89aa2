// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/reply/answer_splitter.h"
#include "server/api/reply/codex_models.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

void AddStopReason(const std::variant<std::monostate, std::string, int32_t>& reason,
                   JsonWriter& json) {
  json.Key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&reason))
    json.Value(*text);
  else if (const auto* id = std::get_if<int32_t>(&reason))
    json.Value(*id);
  else
    json.Value(nullptr);
}

void AddIds(const char* name, const std::vector<SampleResult>& tokens, JsonWriter& json) {
  json.Key(name).List(tokens.size(),
                      [&tokens](size_t i, JsonWriter& item) { item.Value(tokens[i].token); });
}

void AddIds(const char* name, const SharedTokens& ids, JsonWriter& json) {
  json.Key(name).List(ids.size(), [ids](size_t i, JsonWriter& item) { item.Value(ids[i]); });
}

}  // namespace

OpenAiResponse::OpenAiResponse(const OpenAiRequest& request, OpenAiIdentity identity,
                               const TokenTexts& texts)
    : chat_(request.chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      echo_(request.echo),
      logprobs_(request.logprobs),
      return_token_ids_(request.return_token_ids),
      predicts_(request.predicts),
      timings_(request.timings),
      hides_eos_(request.hides_eos),
      skip_special_tokens_(request.generate.skip_special_tokens),
      n_(request.generate.n),
      identity_(std::move(identity)),
      chat_form_{request.answer, request.include_reasoning, identity_.id, identity_.created},
      logprob_form_{texts, request.generate.sampling.num_logprobs, request.prompt_logprobs,
                    request.tokens_as_ids || texts.are_missing} {
  const char* const object = !chat_    ? "text_completion"
                             : stream_ ? "chat.completion.chunk"
                                       : "chat.completion";
  JsonWriter(&head_)
      .Add("id", identity_.id)
      .Add("object", object)
      .Add("created", identity_.created)
      .Add("model", identity_.model)
      .Add("system_fingerprint", identity_.fingerprint);
}

const PromptInfo& OpenAiResponse::PromptOf(int choice) const {
  return prompts_[static_cast<size_t>(choice / n_)];
}

void OpenAiResponse::OnStarted(ResponseStarted event) {
  prompts_ = std::move(event.prompts);
  choices_.resize(prompts_.size() * static_cast<size_t>(n_));
  for (size_t i = 0; chat_ && i < choices_.size(); ++i) {
    choices_[i].chat = std::make_unique<ChatText>(chat_form_, PromptOf(static_cast<int>(i)));
  }
}

void OpenAiResponse::OnPromptLogprobs(ResponsePromptLogprobs event, AnswerState* answer) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  choices_[static_cast<size_t>(event.choice)].prompt_scores = std::move(event.tokens);
  if (!stream_) return;
  OpenChoice(event.choice, answer);
}

// The first chunk of each choice: the role for chat, the prompt for an echo, the prompt's ids and
// log-probabilities if they were asked for.
void OpenAiResponse::OpenChoice(int index, AnswerState* answer) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.opened) return;
  choice.opened = true;
  answer->started = true;
  if (!chat_ && !echo_ && !return_token_ids_ && logprob_form_.num_prompt_top < 0) return;
  Chunk chunk;
  chunk.opens = true;
  if (echo_) chunk.text = PromptOf(index).text;
  AddChunk(index, chunk, answer);
}

void OpenAiResponse::OnDelta(ResponseDelta event, AnswerState* answer) {
  DS_CHECK(event.choice >= 0 && static_cast<size_t>(event.choice) < choices_.size(),
           "an event names an unknown choice");
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  const bool ends = event.finish != FinishReason::kNone;
  AnswerMessage message;
  if (chat_) {
    const std::string_view text = ShownText(event, hides_eos_, logprob_form_.texts.bytes);
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
  OpenChoice(event.choice, answer);
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
  AddChunk(delta_.choice, chunk, answer);
}

void OpenAiResponse::OnDone(AnswerState* answer) {
  if (!answer->status.ok()) {
    if (answer->started) answer->AddEvent("", OpenAiErrorBody(answer->status));
    return;
  }
  if (!stream_) return AddBody(*answer, JsonWriter(&answer->pieces));
  answer->started = true;
  if (include_usage_) {
    answer->AddEvent("", [&](JsonWriter& json) {
      json.Members(head_).Key("choices").Begin('[').End(']');
      AddFinalUsage(*answer, json);
    });
  }
  answer->AddEvent("", "[DONE]");
}

const char* OpenAiResponse::FinishName(const Choice& choice, FinishReason reason) const {
  return chat_ ? choice.chat->FinishName(reason) : OpenAiNameOf(reason);
}

void OpenAiResponse::AddFinalUsage(const AnswerState& answer, JsonWriter& json) const {
  const Usage& usage = answer.usage;
  BeginOpenAiUsage(usage, /*with_cached=*/true, &json);
  const bool reasons = chat_form_.answer.reasoning != nullptr;
  if (reasons || predicts_) json.Key("completion_tokens_details").Begin('{');
  if (reasons) {
    int64_t tokens = 0;
    for (const Choice& choice : choices_) tokens += choice.chat->reasoning_tokens();
    json.Add("reasoning_tokens", tokens);
  }
  if (predicts_) {
    json.Add("accepted_prediction_tokens", usage.prediction.accepted);
    json.Add("rejected_prediction_tokens", usage.prediction.rejected);
  }
  if (reasons || predicts_) json.End('}');
  json.End('}');
  if (timings_) AddTimings(usage, answer.times, choices_.size(), &json);
}

void OpenAiResponse::AddChunk(int index, const Chunk& chunk, AnswerState* answer) {
  answer->AddEvent("", [&](JsonWriter& json) {
    json.Members(head_).Key("choices").Begin('[');
    AddChunkChoice(index, chunk, json);
    json.End(']');
    if (continuous_usage_) {
      BeginOpenAiUsage(answer->usage, /*with_cached=*/false, &json);
      json.End('}');
    } else if (include_usage_) {
      json.Add("usage", nullptr);
    }
    if (timings_) AddTimings(answer->usage, answer->times, choices_.size(), &json);
  });
}

void OpenAiResponse::AddChunkChoice(int index, const Chunk& chunk, JsonWriter& json) {
  json.Begin('{').Add("index", index).Key(chat_ ? "delta" : "text");
  if (!chat_)
    json.LongText(chunk.text);
  else if (chunk.opens)
    json.Begin('{').Add("role", "assistant").Add("content", "").End('}');
  else
    AddChatDelta(*chunk.message, chat_form_, index, &json);
  static const std::vector<SampleResult> kNoTokens;
  const std::vector<SampleResult>& tokens = chunk.tokens == nullptr ? kNoTokens : *chunk.tokens;
  json.Key("logprobs");
  if (logprobs_ && chat_ && !tokens.empty())
    AddChatLogprobs({tokens, chunk.opening_tokens}, json);
  else if (logprobs_ && !chat_)
    AddCompletionLogprobs(index, chunk.opens && echo_, {tokens, chunk.opening_tokens}, json);
  else
    json.Value(nullptr);
  const Choice& choice = choices_[static_cast<size_t>(index)];
  json.Add("finish_reason", chunk.end == nullptr ? nullptr : FinishName(choice, chunk.end->finish));
  if (chunk.end != nullptr) AddStopReason(chunk.end->stop_reason, json);
  if (return_token_ids_ && chunk.tokens != nullptr) AddIds("token_ids", tokens, json);
  const PromptInfo& prompt = PromptOf(index);
  if (return_token_ids_ && chunk.opens) AddIds("prompt_token_ids", prompt.token_ids, json);
  if (logprob_form_.num_prompt_top >= 0 && chunk.opens) {
    json.Key("prompt_logprobs");
    WritePromptLogprobs(choice.prompt_scores, prompt.opening_tokens, logprob_form_, &json);
  }
  json.End('}');
}

// Each choice adds its pieces when its turn comes, and is released when they are written.
void OpenAiResponse::AddBody(const AnswerState& answer, JsonWriter json) {
  json.Begin('{').Members(head_).Key("choices");
  json.List(choices_.size(), [this](size_t i, JsonWriter& item) {
    AddBodyChoice(i, item);
    // The members after all choices of a chat need the first one's prompt.
    if (!chat_) item.Then([this, i] { choices_[i] = {}; });
  });
  AddFinalUsage(answer, json);
  if (chat_ && logprob_form_.num_prompt_top >= 0 && !choices_.empty()) {
    json.Key("prompt_logprobs");
    WritePromptLogprobs(choices_.front().prompt_scores, prompts_.front().opening_tokens,
                        logprob_form_, &json);
  }
  if (chat_ && return_token_ids_) AddIds("prompt_token_ids", prompts_.front().token_ids, json);
  json.End('}');
}

void OpenAiResponse::AddBodyChoice(size_t index, JsonWriter& json) {
  const Choice& choice = choices_[index];
  const PromptInfo& prompt = PromptOf(static_cast<int>(index));
  json.Begin('{').Add("index", index).Key(chat_ ? "message" : "text");
  if (chat_) {
    AddChatMessage(choice.message, chat_form_, static_cast<int>(index), &json);
  } else {
    if (echo_) choices_[index].text.insert(0, prompt.text);
    json.LongText(choice.text);
  }
  const GeneratedTokens generated{choice.tokens, choice.opening_tokens};
  json.Key("logprobs");
  if (!logprobs_)
    json.Value(nullptr);
  else if (chat_)
    AddChatLogprobs(generated, json);
  else
    AddCompletionLogprobs(static_cast<int>(index), echo_, generated, json);
  const bool ended = choice.finish != FinishReason::kNone;
  json.Add("finish_reason", ended ? FinishName(choice, choice.finish) : nullptr);
  AddStopReason(choice.stop_reason, json);
  if (!chat_ && logprob_form_.num_prompt_top >= 0) {
    json.Key("prompt_logprobs");
    WritePromptLogprobs(choice.prompt_scores, prompt.opening_tokens, logprob_form_, &json);
  }
  if (return_token_ids_) AddIds("token_ids", choice.tokens, json);
  if (return_token_ids_ && !chat_) AddIds("prompt_token_ids", prompt.token_ids, json);
  json.End('}');
}

void OpenAiResponse::AddCompletionLogprobs(int index, bool echo, GeneratedTokens generated,
                                           JsonWriter& json) {
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
  json.Begin('{').Key("tokens").List(count, [this, entry](size_t i, JsonWriter& item) {
    const Entry at = entry(i);
    item.Value(TokenName(at.token, logprob_form_.texts.At(at.opens_text), logprob_form_.as_ids));
  });
  json.Key("token_logprobs").List(count, [entry](size_t i, JsonWriter& item) {
    const SampleResult* const score = entry(i).score;
    score == nullptr ? item.Value(nullptr) : item.Value(LogprobNumber(score->logprob));
  });
  json.Key("top_logprobs").List(count, [this, entry](size_t i, JsonWriter& item) {
    const Entry at = entry(i);
    if (at.score == nullptr)
      item.Value(nullptr);
    else
      WriteTopLogprobs(*at.score, logprob_form_, at.opens_text, &item);
  });
  json.Key("text_offset");
  json.List(count, [this, entry, &choice, &info, of_prompt](size_t i, JsonWriter& item) {
    item.Value(choice.text_offset);
    if (i < of_prompt)
      PassPromptToken(choice, info, i);
    else
      PassToken(choice, entry(i).token, entry(i).opens_text);
  });
  json.End('}');
}

// A special token counts as text if the client sent it in the prompt, and not if it was added.
void OpenAiResponse::PassPromptToken(Choice& choice, const PromptInfo& prompt, size_t i) const {
  const int32_t id = prompt.token_ids[i];
  const std::string bytes = logprob_form_.texts.At(i < prompt.opening_tokens)(id);
  const std::string_view rest =
      std::string_view(prompt.text).substr(std::min(choice.prompt_offset, prompt.text.size()));
  if (!logprob_form_.texts.is_special(id) || rest.starts_with(bytes)) {
    choice.prompt_offset += bytes.size();
    choice.text_offset += CharactersStartedIn(bytes);
  }
  // Whatever normalization removed, the answer begins where the prompt ends.
  if (i + 1 == prompt.token_ids.size()) choice.text_offset = CharactersStartedIn(prompt.text);
}

void OpenAiResponse::PassToken(Choice& choice, int32_t id, bool opens_text) const {
  if (skip_special_tokens_ && logprob_form_.texts.is_special(id)) return;
  choice.text_offset += CharactersStartedIn(logprob_form_.texts.At(opens_text)(id));
}

void OpenAiResponse::AddChatLogprobs(GeneratedTokens generated, JsonWriter& json) const {
  json.Begin('{').Key("content");
  WriteChatLogprobs(generated, logprob_form_, &json);
  json.Add("refusal", nullptr).End('}');
}

std::string ModelBody(const ModelCard& card) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("id", card.name).Add("object", "model").Add("created", card.created);
    json.Add("owned_by", "diffserve").Add("root", card.root).Add("parent", nullptr);
    json.Add("max_model_len", card.max_model_len);
  });
}

std::string ModelListBody(const std::vector<ModelCard>& cards) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("object", "list").Key("data").Begin('[');
    std::vector<CodexModel> models;
    for (const ModelCard& card : cards) {
      json.Json(ModelBody(card));
      models.push_back({card.name, card.max_model_len});
    }
    json.End(']');
    AddCodexModels(models, &json);
  });
}

std::string TokenizeBody(const std::vector<int32_t>& ids, int max_model_len,
                         const std::vector<std::string>* token_strs) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("count", ids.size()).Add("max_model_len", max_model_len).Add("tokens", ids);
    json.Key("token_strs");
    token_strs == nullptr ? json.Value(nullptr) : json.Value(*token_strs);
  });
}

}  // namespace diffserve
