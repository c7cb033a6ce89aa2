// SPDX-License-Identifier: Apache-2.0
#include "server/serving/frontend.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/process/random_bits.h"
#include "models/diagnostics/attention_capture.h"
#include "models/diagnostics/hidden_state_pool.h"
#include "server/serving/answer/answer_constraints.h"
#include "server/serving/answer/answer_price.h"
#include "server/serving/request/context_overflow.h"
#include "server/serving/request/generic_tools.h"
#include "server/serving/request/model_defaults.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/request/token_rules.h"
#include "server/serving/text_pool.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// Lower temperatures are greedy: dividing logits by less would leave float's range.
constexpr float kGreedyTemperature = 1e-4f;

// A request that was expected to start within --max-queue-wait, and so was let in, is refused only
// after this many times as long.
constexpr float kWaitsMax = 2;

// Whether a text that cannot fit the context is still tokenized to its end, to count its tokens.
enum class Length { kAny, kContext };

size_t PromptBytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
    return ids->size() * sizeof(int32_t);
  return std::get<Conversation>(prompt).TextBytes();
}

size_t TextBytes(const GenerateRequest& request) {
  size_t bytes = request.prediction.size();
  for (const Prompt& prompt : request.prompts) bytes += PromptBytes(prompt);
  return bytes;
}

// Names have no order here and equal ones are one client.
uint64_t ClientOf(const GenerateRequest& request) {
  return std::hash<std::string>()(request.client);
}

// Clients without keys can share an address, so their answers are not kept for each other.
std::string HistoryOwnerOf(const GenerateRequest& request) {
  if (!request.client.starts_with("key:")) return {};
  return request.client + '\n' + request.cache_salt;
}

const char* NameOf(const Prompt& prompt, const FieldNames& names) {
  return std::holds_alternative<Conversation>(prompt) ? names.messages : names.prompt;
}

Status WithParam(const Status& status, const char* param) {
  return Status(status.code(), status.message(), param);
}

Status ShuttingDown() { return Status(StatusCode::kUnavailable, "the server is shutting down"); }

Status TextQueueFull() {
  return Status(StatusCode::kResourceExhausted, "too many prompts are waiting to be tokenized");
}

}  // namespace

struct Frontend::Impl {
  Impl(FrontendOptions options_in, const ModelConfig& config_in, const Tokenizer& tokenizer_in,
       const ChatTemplate* template_in, Engine& engine_in, OutputLoop& output_in)
      : options(std::move(options_in)),
        config(config_in),
        tokenizer(tokenizer_in),
        chat_template(template_in),
        engine(engine_in),
        output(output_in),
        answers(options.max_answers_bytes),
        constraints(tokenizer, config, options.grammar),
        pool({.threads = options.text_threads,
              .max_tasks = static_cast<size_t>(options.max_text_queue),
              .max_bytes = options.max_text_queue_bytes}) {}

  RequestLimits limits() const {
    return {&options.names, config.vocab_size, MaxTokens(),
            engine.options().MaxWaitingRequestsPerClient(), tokenizer.max_token_bytes()};
  }
  int MaxTokens() const {
    const int64_t pool_tokens = int64_t{engine.options().num_pages} * engine.options().page_size;
    return static_cast<int>(std::min<int64_t>(engine.options().max_model_len, pool_tokens));
  }

  // Keeps a place in the queue for a request that is expected to start in time. nullptr for a
  // prompt that can never fit: it is refused for its length, even if the queue is long.
  using Place = std::shared_ptr<QueuePlace>;
  Result<Place> Announce(const GenerateRequest& request, TimePoint arrival) const {
    if (request.max_tokens && *request.max_tokens > MaxTokens()) return Place();
    return engine.Announce(ClientOf(request), StartBy(request, arrival, 1));
  }
  // `waits`: how many times --max-queue-wait.
  TimePoint StartBy(const GenerateRequest& request, TimePoint arrival, float waits) const {
    const std::chrono::duration<float> wait(waits * engine.options().max_queue_wait_s);
    return std::min(request.deadline.value_or(TimePoint::max()),
                    arrival + std::chrono::duration_cast<Clock::duration>(wait));
  }

  struct Tokenization {
    std::optional<bool> add_special_tokens;
    Length length = Length::kAny;
    const FieldNames& names;
  };
  Result<SharedTokens> Tokens(Prompt& prompt, const Tokenization& how, PromptInfo* info) const;
  Result<SharedTokens> PredictedTokens(const std::string& text) const;
  Result<int> OutputBudget(const GenerateRequest& request, size_t prompt_tokens,
                           const char* param) const;
  // Reserves the answer's maximum memory, after a check against both limits.
  using Share = std::shared_ptr<AnswerBudget::Share>;
  Result<AnswerPrice> Price(GenerateRequest& request, std::span<const PromptSize> prompts) const;
  Result<Share> SetAside(GenerateRequest& request) const;
  // Called when the prompts' tokens are known, and with them the room for output.
  Status SettlePrice(GenerateRequest& request, const TokenizedRequest& tokenized,
                     AnswerBudget::Share& share, ResponseStream& stream) const;
  Status AnswersFull(size_t bytes) const;
  Status Check(GenerateRequest& request) const;
  Result<TokenizedRequest> Prepare(GenerateRequest& request, Clock::time_point arrival) const;

  const FrontendOptions options;
  const ModelConfig& config;
  const Tokenizer& tokenizer;
  const ChatTemplate* const chat_template;
  Engine& engine;
  OutputLoop& output;
  const AnswerBudget answers;
  mutable AnswerConstraints constraints;
  TextPool pool;  // last: its threads use all of the above
};

// Takes token ids out of the prompt; `info` gets all but its tokens.
Result<SharedTokens> Frontend::Impl::Tokens(Prompt& prompt, const Tokenization& how,
                                            PromptInfo* info) const {
  if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return SharedTokens(std::move(*ids));
  EncodeOptions encode;
  RenderedChat rendered;
  if (tokenizer.is_missing()) return NoTokenizer("text", NameOf(prompt, how.names));
  auto* const chat = std::get_if<Conversation>(&prompt);
  if (chat != nullptr) {
    if (chat_template == nullptr) {
      return InvalidArgument(
          "this model has no chat template: add chat_template.jinja to its directory or start with "
          "--chat-template FILE; /v1/completions continues a text",
          how.names.messages);
    }
    if (const ToolFormat* tools = options.formats.tools; tools != nullptr && tools->in_messages)
      WriteToolsAsText(options.template_roles.system, chat);
    const TemplateJson json = TemplateJsonOf(*chat, options.content_forms);
    Result<RenderedChat> made = chat_template->Render(
        {json.messages, json.kwargs, chat->add_generation_prompt, json.tools,
         chat->continues_final_message},
        &tokenizer);
    if (!made.ok()) return WithParam(made.status(), how.names.messages);
    rendered = std::move(made).value();
    encode.guard = rendered.guard;
    info->reasoning = StartOfAnswer(
        options.formats.reasoning,
        {.prompt = rendered.text,
         .continued = ContinuedText(*chat),
         .thinking_off = chat->own_thinking_off || chat->enable_thinking == false});
  } else {
    info->text = std::get<std::string>(prompt);
    encode.add_special_tokens = true;
  }
  const std::string& whole = chat != nullptr ? rendered.text : info->text;
  encode.add_special_tokens = how.add_special_tokens.value_or(encode.add_special_tokens);
  // Guards are bytes that no token has.
  const bool bounded = how.length == Length::kContext && encode.guard == 0;
  if (Status fits = bounded ? CheckTextFits(whole, limits(), NameOf(prompt, how.names)) : Status();
      !fits.ok()) {
    engine.CountRefusal(RefusalReason::kTooLong);
    return fits;
  }
  const bool counted = how.length == Length::kAny || whole.size() <= kShortTextBytes;
  encode.max_tokens = counted ? 0 : static_cast<size_t>(MaxTokens());
  Result<std::vector<int32_t>> ids = tokenizer.Encode(whole, encode);
  if (!ids.ok()) return WithParam(ids.status(), how.names.prompt);
  if (!counted && ids->size() > encode.max_tokens) {
    engine.CountRefusal(RefusalReason::kTooLong);
    return PromptTooLong(encode.max_tokens + 1, MaxTokens(), MaxTokens(),
                         " (counting stopped there)", NameOf(prompt, how.names));
  }
  return SharedTokens(std::move(ids).value());
}

Result<int> Frontend::Impl::OutputBudget(const GenerateRequest& request, size_t prompt_tokens,
                                         const char* param) const {
  const int context = MaxTokens();
  if (prompt_tokens == 0)
    return NotAllowed(std::string(param) + " has no tokens", "at least 1", param);
  if (prompt_tokens > static_cast<size_t>(context))
    return PromptTooLong(prompt_tokens, context, context, "", param);
  const int left = context - static_cast<int>(prompt_tokens);
  if (request.max_tokens) {
    if (*request.max_tokens <= left) return *request.max_tokens;
    return AnswerTooLong(prompt_tokens, *request.max_tokens, context, request.names.max_tokens);
  }
  if (left == 0) {
    return PromptTooLong(prompt_tokens, context - 1, context, " (an answer needs at least one)",
                         param);
  }
  const int budget = request.max_tokens_default > 0 ? std::min(request.max_tokens_default, left)
                                                    : left;
  if (request.sampling.min_tokens <= budget) return budget;
  return NotAllowed("min_tokens is " + std::to_string(request.sampling.min_tokens),
                    "at most " + std::to_string(budget) + ", which will be generated",
                    "min_tokens");
}

Result<AnswerPrice> Frontend::Impl::Price(GenerateRequest& request,
                                          std::span<const PromptSize> prompts) const {
  AnswerPrice price = PriceOf(request, prompts, static_cast<size_t>(MaxTokens()),
                              options.max_stream_bytes);
  price.prompts += TokenRuleBytes(request, config.vocab_size);
  const Status fits = FitAnswer(price, options.max_answer_bytes, request);
  if (fits.ok()) return price;
  engine.CountRefusal(RefusalReason::kTooLong);
  return fits;
}

Status Frontend::Impl::AnswersFull(size_t bytes) const {
  engine.CountRefusal(RefusalReason::kMemoryFull);
  return Status(StatusCode::kResourceExhausted,
                "the running answers take too much memory: this one could take " +
                    std::to_string(bytes) + " bytes, and of " +
                    std::to_string(answers.max_bytes()) + " bytes " +
                    std::to_string(answers.taken_bytes()) + " are taken");
}

Result<Frontend::Impl::Share> Frontend::Impl::SetAside(GenerateRequest& request) const {
  std::vector<PromptSize> sizes;
  for (const Prompt& prompt : request.prompts)
    sizes.push_back(BoundOf(prompt, request, static_cast<size_t>(MaxTokens())));
  const Result<AnswerPrice> price = Price(request, sizes);
  if (!price.ok()) return price.status();
  Share share = answers.Take(price->total());
  return share != nullptr ? Result<Share>(std::move(share)) : AnswersFull(price->total());
}

Status Frontend::Impl::SettlePrice(GenerateRequest& request, const TokenizedRequest& tokenized,
                                   AnswerBudget::Share& share, ResponseStream& stream) const {
  std::vector<PromptSize> sizes;
  for (const PromptInfo& prompt : tokenized.prompts)
    sizes.push_back({prompt.token_ids.size(), prompt.text.size()});
  request.max_tokens =
      std::ranges::max(tokenized.continuations, {}, &Request::max_tokens).max_tokens;
  const Result<AnswerPrice> price = Price(request, sizes);
  if (!price.ok()) return price.status();
  if (!share.Resize(price->total())) return AnswersFull(price->total());
  stream.Allow(price->prompts);
  return {};
}

Result<SharedTokens> Frontend::Impl::PredictedTokens(const std::string& text) const {
  if (text.empty()) return SharedTokens();
  const auto most = static_cast<size_t>(MaxTokens());
  Result<std::vector<int32_t>> ids = tokenizer.Encode(text, {.max_tokens = most});
  if (!ids.ok()) return WithParam(ids.status(), "prediction");
  ids->resize(std::min(ids->size(), most));
  return SharedTokens(std::move(ids).value());
}

Result<TokenizedRequest> Frontend::Impl::Prepare(GenerateRequest& request,
                                                 Clock::time_point arrival) const {
  TokenizedRequest tokenized;
  const Result<TokenRules> rules = MakeTokenRules(request, tokenizer, config.vocab_size);
  if (!rules.ok()) return rules.status();
  const Result<SharedTokens> prediction = PredictedTokens(request.prediction);
  if (!prediction.ok()) return prediction.status();
  const Length length = request.truncate_prompt_tokens ? Length::kAny : Length::kContext;
  for (Prompt& prompt : request.prompts) {
    PromptInfo& info = tokenized.prompts.emplace_back();
    const char* const name = NameOf(prompt, request.names);
    Result<SharedTokens> ids = Tokens(prompt, {request.add_special_tokens, length, request.names},
                                      &info);
    if (!ids.ok()) return ids.status();
    const size_t found = ids->size();
    ids = Truncated(std::move(ids).value(), request, MaxTokens());
    info.token_ids = *ids;
    DS_RETURN_IF_ERROR(CheckTokenIds(ids->ids(), config.vocab_size, name));
    Result<int> budget = OutputBudget(request, ids->size(), name);
    if (!budget.ok()) {
      engine.CountRefusal(RefusalReason::kTooLong);
      return budget.status();
    }
    if (request.want_prompt_text &&
        (std::holds_alternative<std::vector<int32_t>>(prompt) || ids->size() < found)) {
      DS_RETURN_IF_ERROR(
          Assign(&info.text, TextBefore(tokenizer, ids->ids(), request.skip_special_tokens)));
    }
    if (!request.want_prompt_text) info.text = {};
    info.opening_tokens = tokenizer.table().OpeningTokens(ids->ids(), request.skip_special_tokens);
    Request continuation;
    continuation.prompt = std::move(ids).value();
    continuation.sampling = request.sampling;
    continuation.prediction = *prediction;
    continuation.max_tokens = *budget;
    continuation.eos_token_ids = config.eos_token_ids;
    if (request.capture != nullptr) continuation.AddObserver(request.capture);
    continuation.allowed_tokens = rules->allowed;
    continuation.bad_words = rules->bad_words;
    continuation.priority = request.priority;
    if (!request.pools.empty())
      continuation.AddObserver(request.pools[tokenized.prompts.size() - 1]);
    continuation.cache_salt = request.cache_salt;
    continuation.arrival = arrival;
    continuation.client = ClientOf(request);
    continuation.history_owner = HistoryOwnerOf(request);
    continuation.start_by = tokenized.continuations.empty() ? StartBy(request, arrival, kWaitsMax)
                                                            : TimePoint::max();
    for (int i = 0; i < request.n; ++i) {
      continuation.sequence = static_cast<uint64_t>(i);
      // The first one scores the prompt for all; without output there must be something to do.
      if (i == 1 && request.sampling.prompt_logprobs >= 0)
        continuation.sampling.prompt_logprobs = *budget > 0 ? -1 : 0;
      tokenized.continuations.push_back(continuation);
      continuation.start_by = TimePoint::max();
    }
  }
  DS_RETURN_IF_ERROR(constraints.Constrain(request, tokenized));
  tokenized.stop = std::move(request.stop);
  tokenized.include_stop_in_output = request.include_stop_str_in_output;
  tokenized.skip_special_tokens = request.skip_special_tokens;
  return tokenized;
}

Frontend::Frontend(FrontendOptions options, const ModelConfig& config, const Tokenizer& tokenizer,
                   const ChatTemplate* chat_template, Engine& engine, OutputLoop& output)
    : impl_(std::make_unique<Impl>(std::move(options), config, tokenizer, chat_template, engine,
                                   output)) {}

Frontend::~Frontend() = default;

// Checks that need no text work.
Status Frontend::Impl::Check(GenerateRequest& request) const {
  DS_RETURN_IF_ERROR(CheckRequest(request, limits()));
  if (tokenizer.is_missing()) DS_RETURN_IF_ERROR(CheckNeedsNoTokenizer(request));
  if (Status status = CheckTextsFit(request, limits()); !status.ok()) {
    engine.CountRefusal(RefusalReason::kTooLong);
    return status;
  }
  if (request.sampling.temperature < kGreedyTemperature) request.sampling.temperature = 0;
  if (engine.options().speculative_tokens == 0) request.prediction.clear();
  SetDefaultLength(config, &request);
  return {};
}

Result<ResponseId> Frontend::Generate(GenerateRequest request,
                                      std::shared_ptr<ResponseStream> stream) {
  Impl& impl = *impl_;
  DS_RETURN_IF_ERROR(impl.Check(request));
  const Clock::time_point arrival = Clock::now();
  const Clock::time_point deadline = request.deadline.value_or(Clock::time_point::max());
  if (deadline <= arrival) {
    impl.engine.CountRefusal(RefusalReason::kDeadline);
    return Status(StatusCode::kDeadlineExceeded, "the deadline passed before the request was read");
  }
  Result<Impl::Place> place = impl.Announce(request, arrival);
  if (!place.ok()) return place.status();
  Result<Impl::Share> share = impl.SetAside(request);
  if (!share.ok()) return share.status();
  stream->Keep(*share);
  const size_t bytes = TextBytes(request);
  auto shared = std::make_shared<GenerateRequest>(std::move(request));
  const ResponseId id = impl.output.Open({.owner = shared->client,
                                          .request_id = shared->request_id,
                                          .stream = stream,
                                          .deadline = deadline});
  auto work = [&impl, id, stream, shared, arrival, place = std::move(place).value(),
               share = std::move(share).value()](bool run) mutable {
    if (!run) return impl.output.End(id, ShuttingDown());
    if (!stream->is_open()) return impl.output.Abandon(id);  // its client is gone
    Result<TokenizedRequest> tokenized = impl.Prepare(*shared, arrival);
    if (!tokenized.ok()) return impl.output.End(id, tokenized.status());
    const Status settled = impl.SettlePrice(*shared, *tokenized, *share, *stream);
    if (!settled.ok()) return impl.output.End(id, settled);
    for (size_t i = 0; i < shared->pools.size(); ++i)
      shared->pools[i]->Reserve(tokenized->prompts[i].token_ids.size());
    if (shared->capture != nullptr) shared->capture->Reserve();
    tokenized->continuations.front().place = std::move(place);
    impl.output.Submit(id, std::move(tokenized).value());
  };
  if (!impl.pool.TrySubmit(shared->client, bytes, std::move(work))) {
    impl.engine.CountRefusal(RefusalReason::kQueueFull);
    impl.output.End(id, TextQueueFull());
  }
  return id;
}

Status Frontend::Render(GenerateRequest request,
                        std::function<void(Result<TokenizedRequest>)> done) {
  Impl& impl = *impl_;
  DS_RETURN_IF_ERROR(impl.Check(request));
  Result<Impl::Share> share = impl.SetAside(request);
  if (!share.ok()) return share.status();
  const size_t bytes = TextBytes(request);
  const std::string client = request.client;
  auto shared = std::make_shared<GenerateRequest>(std::move(request));
  auto work = [&impl, shared, done = std::move(done), share = std::move(share).value()](bool run) {
    if (!run) return done(ShuttingDown());
    done(impl.Prepare(*shared, Clock::now()));
  };
  return impl.pool.TrySubmit(client, bytes, std::move(work)) ? Status() : TextQueueFull();
}

bool Frontend::Cancel(const std::string& client, const std::string& request_id) {
  return impl_->output.EndByName(client, request_id,
                                 Status(StatusCode::kCancelled, "the request was cancelled"));
}

void Frontend::Abandon(ResponseId response) { impl_->output.Abandon(response); }

void Frontend::WaitForAnswers(Clock::time_point deadline) const {
  impl_->answers.WaitUntilFree(deadline);
}

int Frontend::MaxTokens() const { return impl_->MaxTokens(); }

SamplingSpec Frontend::DefaultSampling() const {
  SamplingSpec sampling = SamplingDefaults(impl_->config);
  sampling.seed = RandomBits();
  return sampling;
}

Status Frontend::Tokenize(const std::string& client, Prompt prompt, const TokenizeOptions& options,
                          std::function<void(Result<std::vector<int32_t>>)> done) {
  const size_t bytes = PromptBytes(prompt);
  auto shared = std::make_shared<Prompt>(std::move(prompt));
  const bool queued = impl_->pool.TrySubmit(
      client, bytes, [impl = impl_.get(), shared, options, done = std::move(done)](bool run) {
        if (!run) return done(ShuttingDown());
        PromptInfo info;
        const auto ids = impl->Tokens(
            *shared, {options.add_special_tokens, Length::kAny, options.names}, &info);
        ids.ok() ? done(ids->ids()) : done(ids.status());
      });
  return queued ? Status() : TextQueueFull();
}

Result<std::string> Frontend::Detokenize(const std::vector<int32_t>& ids, const char* param) const {
  if (impl_->tokenizer.is_missing()) return NoTokenizer("text", param);
  const Status status = CheckTokenIds(ids, impl_->tokenizer.vocab_size(), param);
  if (!status.ok()) return status;
  return impl_->tokenizer.Decode(ids, /*skip_special_tokens=*/false);
}

Status Frontend::Detokenize(const std::string& client, std::vector<int32_t> ids, const char* param,
                            std::function<void(Result<std::string>)> done) {
  const size_t bytes = ids.size() * sizeof(int32_t);
  auto shared = std::make_shared<std::vector<int32_t>>(std::move(ids));
  const bool queued = impl_->pool.TrySubmit(
      client, bytes, [this, shared, param, done = std::move(done)](bool run) {
        done(run ? Detokenize(*shared, param) : ShuttingDown());
      });
  return queued ? Status() : TextQueueFull();
}

Status Frontend::RunOnTextThread(const std::string& client, size_t bytes,
                                 std::function<void(bool run)> work) {
  return impl_->pool.TrySubmit(client, bytes, std::move(work))
             ? Status()
             : Status(StatusCode::kResourceExhausted, "too many requests are waiting to be read");
}

const FrontendOptions& Frontend::options() const { return impl_->options; }
const ModelConfig& Frontend::model_config() const { return impl_->config; }
const Tokenizer& Frontend::tokenizer() const { return impl_->tokenizer; }
Engine& Frontend::engine() { return impl_->engine; }

}  // namespace diffserve
