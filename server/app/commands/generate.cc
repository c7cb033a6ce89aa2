// SPDX-License-Identifier: Apache-2.0
// `diffserve generate`: one continuation through the engine, streamed to stdout or as one JSON
// object.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <span>

#include "engine/bounded_queue.h"
#include "engine/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/detokenizer.h"
#include "engine/text/given_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/process/terminal_text.h"
#include "server/app/chat/chat_history.h"
#include "server/app/commands/commands.h"
#include "server/app/commands/prompt_input.h"
#include "server/app/session/model_session.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr RequestId kRequest = 1;

struct Continuation {
  std::vector<int32_t> tokens;
  std::string text;
  std::string finish_reason;
  bool met_stop_string = false;
  int cached_tokens = 0;
  double first_token_s = 0;  // from the submission
  double total_s = 0;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The text itself, or the text as a user's message in the chat template.
Result<std::vector<int32_t>> TextTokens(const SessionOptions& options, const PromptOptions& prompt,
                                        const Tokenizer& tokenizer) {
  if (!prompt.chat) return tokenizer.Encode(prompt.text, /*add_special_tokens=*/true);
  const Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(
      options.model_dir, options.chat_template);
  if (!chat_template.ok()) return chat_template.status();
  if (*chat_template == nullptr) {
    return InvalidArgument("--chat: " + options.model_dir +
                               " has no chat template: add chat_template.jinja to the directory or "
                               "give --chat-template FILE",
                           "--chat");
  }
  const TemplateJson json = TemplateJsonOf(ChatHistory("").With(prompt.text),
                                           ContentFormsOf(chat_template->get()));
  const Result<RenderedChat> rendered =
      (*chat_template)
          ->Render({.messages_json = json.messages, .add_generation_prompt = true}, &tokenizer);
  if (!rendered.ok()) return rendered.status();
  return tokenizer.Encode(rendered->text, {.guard = rendered->guard});
}

Request MakeRequest(const GenerateOptions& options, const SessionPlan& plan,
                    const Tokenizer* tokenizer, std::vector<int32_t> prompt) {
  Request request;
  request.id = kRequest;
  request.prompt = std::move(prompt);
  request.sampling = options.sampling;
  request.sampling.seed = plan.model.seed;
  request.max_tokens = options.max_tokens;
  ModelConfig config = plan.summary.config;
  if (tokenizer != nullptr) config.AddEndOfText(tokenizer->eos_token_id());
  request.eos_token_ids = std::move(config.eos_token_ids);
  request.arrival = Clock::now();
  return request;
}

// Converts events to text as they arrive, and prints it if requested.
class Printer {
 public:
  Printer(const Tokenizer* tokenizer, std::span<const int32_t> prompt, const std::string& stop,
          bool prints)
      : prints_(prints) {
    if (tokenizer != nullptr)
      detokenizer_.emplace(*tokenizer, /*skip_special_tokens=*/true, prompt);
    if (!stop.empty())
      stop_.emplace(std::vector<std::string>{stop}, /*include_stop_in_output=*/false);
  }

  // True if a stop string ended the text.
  bool Push(int32_t token) {
    if (!detokenizer_) {
      if (!text_.empty()) Emit(" ");
      Emit(std::to_string(token));
      return false;
    }
    return Pass(detokenizer_->Push(token));
  }
  void Finish() {
    if (detokenizer_ && Pass(detokenizer_->Finish())) return;
    if (stop_) Emit(stop_->Finish());
  }
  const std::string& text() const { return text_; }

 private:
  bool Pass(const std::string& delta) {
    if (!stop_) {
      Emit(delta);
      return false;
    }
    const StopMatcher::Piece piece = stop_->Push(delta);
    Emit(piece.text);
    return piece.matched.has_value();
  }
  void Emit(const std::string& text) {
    text_ += text;
    if (!prints_) return;
    const std::string shown = to_terminal_ ? terminal_.Push(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }

  const bool prints_;
  const bool to_terminal_ = isatty(STDOUT_FILENO) == 1;
  TerminalText terminal_;
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> stop_;
  std::string text_;
};

// Runs the request to its terminal event.
Result<Continuation> Follow(BoundedQueue<TokenEvent>& events, Printer& printer,
                            Clock::time_point start) {
  Continuation out;
  while (std::optional<TokenEvent> event = events.Pop()) {
    bool stopped = false;
    if (!event->tokens.empty() && out.tokens.empty()) out.first_token_s = SecondsSince(start);
    if (event->cached_tokens > 0) out.cached_tokens = event->cached_tokens;
    for (const int32_t token : event->tokens) {
      out.tokens.push_back(token);
      stopped = stopped || printer.Push(token);
    }
    if (event->finish == FinishReason::kNone && !stopped) continue;
    if (event->finish == FinishReason::kError) return event->error;
    if (!stopped) printer.Finish();
    out.met_stop_string = stopped;
    out.finish_reason = stopped ? "stop" : NameOf(event->finish);
    break;
  }
  out.total_s = SecondsSince(start);
  out.text = printer.text();
  return out;
}

void Report(bool json, const std::vector<int32_t>& prompt, const Continuation& done) {
  const size_t decoded = done.tokens.empty() ? 0 : done.tokens.size() - 1;
  const double decode_s = done.total_s - done.first_token_s;
  const double decode_rate = decode_s > 0 ? static_cast<double>(decoded) / decode_s : 0;
  if (!json) {
    std::printf("\n");
    std::fflush(stdout);  // before the line on stderr
    std::fprintf(
        stderr,
        "%zu prompt tokens, first token after %.1f ms, %zu tokens at %.1f tokens/s, finish: %s\n",
        prompt.size(), done.first_token_s * 1e3, done.tokens.size(), decode_rate,
        done.finish_reason.c_str());
    return;
  }
  const std::string object = JsonObjectOf([&](JsonWriter& out) {
    out.Add("prompt_token_ids", prompt).Add("token_ids", done.tokens).Add("text", done.text);
    out.Add("finish_reason", done.finish_reason).Key("timings").Begin('{');
    out.Add("prompt_tokens", prompt.size()).Add("cached_tokens", done.cached_tokens);
    out.Add("first_token_seconds", done.first_token_s).Add("total_seconds", done.total_s);
    out.Add("decode_tokens_per_second", decode_rate).End('}');
  });
  std::printf("%s\n", object.c_str());
}

// Reports what ended an empty answer, and what may help.
void ReportEmptyAnswer(const Continuation& done, const std::string& model_dir,
                       const PromptOptions& prompt, const Tokenizer* tokenizer) {
  std::string why = "--stop";
  if (!done.met_stop_string) {
    why = "its end token " + std::to_string(done.tokens.back());
    if (tokenizer != nullptr)
      why += " (" + QuotedOnTerminal(tokenizer->TokenBytes(done.tokens.back())) + ")";
  }
  std::string hint;
  if (!prompt.text.empty() && !prompt.chat) {
    const Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(model_dir);
    if (chat_template.ok() && *chat_template != nullptr)
      hint = "; the model has a chat template, which --chat puts around the prompt";
  }
  std::fprintf(stderr, "the answer is empty: %s ended it at once%s\n", why.c_str(), hint.c_str());
}

}  // namespace

Status RunGenerate(const SessionOptions& asked, const PromptOptions& prompt_options,
                   const GenerateOptions& generate, bool json) {
  SessionOptions options = asked;
  options.engine.max_num_seqs = 1;
  if (!options.chat_template.empty() && !prompt_options.chat) {
    return InvalidArgument("--chat-template needs --chat: without it the prompt is used as it is",
                           kChatTemplateFlag);
  }
  const bool needs_text = !prompt_options.text.empty() || !generate.stop.empty();
  Result<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(options.model_dir, needs_text);
  if (!tokenizer.ok()) return tokenizer.status();
  constexpr int kAnyId = std::numeric_limits<int32_t>::max();
  Result<std::vector<int32_t>> prompt = prompt_options.text.empty()
                                            ? PromptTokenIds(prompt_options, kAnyId)
                                            : TextTokens(options, prompt_options, **tokenizer);
  if (!prompt.ok()) return prompt.status();
  SessionNeeds needs;
  needs.kv = [needed = static_cast<int64_t>(prompt->size()) + generate.max_tokens](
                 int, int max_model_len) {
    const int64_t tokens = std::min<int64_t>(needed, max_model_len);
    return KvDemand{tokens, tokens};
  };
  Result<SessionPlan> plan = PlanSession(options, needs);
  if (!plan.ok()) return plan.status();
  DS_RETURN_IF_ERROR(CheckIds(*prompt, plan->summary.config.vocab_size,
                              prompt_options.text.empty() ? kTokensFlag : "--prompt"));
  Result<std::unique_ptr<ModelSession>> loaded = ModelSession::Load(options,
                                                                    std::move(plan).value());
  if (!loaded.ok()) return loaded.status();
  ModelSession& session = **loaded;

  // An outbox with room for every event, so the engine never finds it full.
  BoundedQueue<TokenEvent> events(static_cast<size_t>(generate.max_tokens) + 2);
  Engine engine(session.plan().engine, session.MakeExecutor(),
                [&](TokenEvent event) { events.TryPush(std::move(event)); });
  const Clock::time_point start = Clock::now();
  DS_RETURN_IF_ERROR(
      engine.Submit(MakeRequest(generate, session.plan(), tokenizer->get(), *prompt)));
  Printer printer(tokenizer->get(), *prompt, generate.stop, /*prints=*/!json);
  Result<Continuation> done = Follow(events, printer, start);
  if (!done.ok()) return engine.failure().ok() ? done.status() : engine.failure();
  engine.Cancel(kRequest);  // a stop string may have ended the text before the sequence
  Report(json, *prompt, *done);
  if (done->text.empty() && done->finish_reason == "stop")
    ReportEmptyAnswer(*done, options.model_dir, prompt_options, tokenizer->get());
  return {};
}

}  // namespace diffserve
