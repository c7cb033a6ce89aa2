#include "server/frontend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "kernels/base/log.h"
#include "kernels/base/split_mix.h"
#include "server/request_checks.h"
#include "server/text_pool.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// Below it a temperature is greedy: dividing logits by less would leave float's range.
constexpr float kGreedyTemperature = 1e-4f;

size_t PromptBytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
    return ids->size() * sizeof(int32_t);
  const auto& chat = std::get<ChatPrompt>(prompt);
  return chat.messages_json.size() + chat.template_kwargs_json.size();
}

const char* PromptParam(const Prompt& prompt) {
  return std::holds_alternative<ChatPrompt>(prompt) ? "messages" : "prompt";
}

Status WithParam(const Status& status, const char* param) {
  return status.param().empty() ? Status(status.code(), status.message(), param) : status;
}

uint64_t RandomBase() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// One response from Generate until its stream is gone.
struct LiveResponse {
  std::string request_id;
  std::weak_ptr<ResponseStream> stream;
  std::vector<RequestId> requests;  // known to engine and output loop; empty while the text work
                                    // waits
  std::optional<Status> ended;  // by us: cancelled, past its deadline, or its prompt is at fault
};

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
        seed_base(RandomBase()),
        pool(std::make_unique<TextPool>(
            TextPoolOptions{.threads = options.text_threads,
                            .max_tasks = static_cast<size_t>(options.max_text_queue),
                            .max_bytes = options.max_text_queue_bytes})) {}

  struct Work {
    GenerateRequest request;
    std::shared_ptr<ResponseStream> stream;
    std::shared_ptr<LiveResponse> live;
    Clock::time_point arrival;
  };

  RequestLimits limits() const {
    return {&options, config.vocab_size, MaxTokens(), engine.options().max_waiting_requests};
  }
  // What one sequence can hold: the model's context or the whole pool, whichever is less.
  int MaxTokens() const {
    const int64_t pool_tokens = int64_t{engine.options().num_pages} * engine.options().page_size;
    return static_cast<int>(std::min<int64_t>(engine.options().max_model_len, pool_tokens));
  }

  Result<std::vector<int32_t>> Tokens(const Prompt& prompt, std::optional<bool> add_special_tokens,
                                      std::string* text) const;
  Result<int> OutputBudget(const GenerateRequest& request, size_t prompt_tokens,
                           const char* param) const;
  Status Prepare(Work& work, std::vector<Request>* requests, ResponseSpec* spec,
                 ResponseStarted* started);
  void RunWork(Work& work);
  void SubmitAll(Work& work, std::vector<Request> requests, ResponseSpec spec,
                 ResponseStarted started);
  void End(const std::shared_ptr<LiveResponse>& live, const Status& status);
  void SweepLive();  // REQUIRES: mutex held

  const FrontendOptions options;
  const ModelConfig& config;
  const Tokenizer& tokenizer;
  const ChatTemplate* const chat_template;
  Engine& engine;
  OutputLoop& output;

  const uint64_t seed_base;
  mutable std::atomic<uint64_t> seeds_drawn{0};
  std::atomic<RequestId> next_request{1};

  std::mutex mutex;
  std::unordered_map<const ResponseStream*, std::shared_ptr<LiveResponse>> live_responses;
  size_t sweep_at = 256;  // entries; those of ended responses are dropped when there are so many
  std::unique_ptr<TextPool> pool;  // last: its threads use all of the above
};

Result<std::vector<int32_t>> Frontend::Impl::Tokens(const Prompt& prompt,
                                                    std::optional<bool> add_special_tokens,
                                                    std::string* text) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  bool special = true;
  if (const auto* plain = std::get_if<std::string>(&prompt)) {
    *text = *plain;
  } else {
    if (chat_template == nullptr)
      return InvalidArgument("this model has no chat template; use /v1/completions", "messages");
    const auto& chat = std::get<ChatPrompt>(prompt);
    Result<std::string> rendered = chat_template->Render(
        chat.messages_json, chat.add_generation_prompt, chat.template_kwargs_json);
    if (!rendered.ok()) return WithParam(rendered.status(), "messages");
    *text = std::move(rendered).value();
    special = false;
  }
  Result<std::vector<int32_t>> ids = tokenizer.Encode(*text, add_special_tokens.value_or(special));
  if (!ids.ok()) return WithParam(ids.status(), PromptParam(prompt));
  return ids;
}

Result<int> Frontend::Impl::OutputBudget(const GenerateRequest& request, size_t prompt_tokens,
                                         const char* param) const {
  const int context = MaxTokens();
  const std::string found = "the prompt has " + std::to_string(prompt_tokens) + " tokens";
  const std::string allowed = "the context is " + std::to_string(context) + " tokens";
  if (prompt_tokens == 0) return InvalidArgument("a prompt has no tokens", param);
  if (prompt_tokens > static_cast<size_t>(context))
    return InvalidArgument(found + "; " + allowed, param);
  const int left = context - static_cast<int>(prompt_tokens);
  if (request.max_tokens) {
    if (*request.max_tokens <= left) return *request.max_tokens;
    return InvalidArgument(
        found + " and max_tokens is " + std::to_string(*request.max_tokens) + "; " + allowed,
        "max_tokens");
  }
  if (left == 0)
    return InvalidArgument(found + " and leaves no room for an answer; " + allowed, param);
  const int budget = request.max_tokens_default > 0 ? std::min(request.max_tokens_default, left)
                                                    : left;
  if (request.min_tokens <= budget) return budget;
  return InvalidArgument("min_tokens is " + std::to_string(request.min_tokens) + "; at most " +
                             std::to_string(budget) + " tokens will be generated",
                         "min_tokens");
}

Status Frontend::Impl::Prepare(Work& work, std::vector<Request>* requests, ResponseSpec* spec,
                               ResponseStarted* started) {
  GenerateRequest& request = work.request;
  const bool keep_prompts = request.prompt_logprobs >= 0;
  for (const Prompt& prompt : request.prompts) {
    PromptInfo info;
    Result<std::vector<int32_t>> ids = Tokens(prompt, request.add_special_tokens, &info.text);
    if (!ids.ok()) return ids.status();
    DS_RETURN_IF_ERROR(CheckTokenIds(*ids, config.vocab_size, PromptParam(prompt)));
    Result<int> budget = OutputBudget(request, ids->size(), PromptParam(prompt));
    if (!budget.ok()) {
      engine.CountRefusal(RefusalReason::kTooLong);
      return budget.status();
    }
    if (request.want_prompt_text && std::holds_alternative<std::vector<int32_t>>(prompt)) {
      Result<std::string> text = tokenizer.Decode(*ids, request.skip_special_tokens);
      if (!text.ok()) return WithParam(text.status(), "prompt");
      info.text = std::move(text).value();
    }
    for (int i = 0; i < request.n; ++i) {
      Request& r = requests->emplace_back();
      r.id = next_request.fetch_add(1, std::memory_order_relaxed);
      r.prompt = *ids;
      r.sampling = request.sampling;
      r.sequence = static_cast<uint64_t>(i);
      r.max_tokens = *budget;
      r.min_tokens = request.min_tokens;
      r.ignore_eos = request.ignore_eos;
      r.eos_token_ids = config.eos_token_ids;
      r.stop_token_ids = request.stop_token_ids;
      r.prompt_logprobs = request.prompt_logprobs;
      r.cache_salt = request.cache_salt;
      r.arrival = work.arrival;
      spec->requests.push_back(r.id);
      spec->prompt_tokens.push_back(static_cast<int>(ids->size()));
      if (keep_prompts) spec->prompts.push_back(*ids);
    }
    info.token_ids = std::move(ids).value();
    started->prompts.push_back(std::move(info));
  }
  spec->stream = work.stream;
  spec->choices_per_prompt = request.n;
  spec->stop = std::move(request.stop);
  spec->include_stop_in_output = request.include_stop_str_in_output;
  spec->skip_special_tokens = request.skip_special_tokens;
  spec->logprobs = request.sampling.num_logprobs >= 0;
  spec->min_tokens = request.min_tokens;
  return {};
}

void Frontend::Impl::RunWork(Work& work) {
  {
    std::lock_guard lock(mutex);
    if (work.live->ended) return;  // its end has been told already
  }
  std::vector<Request> requests;
  ResponseSpec spec;
  ResponseStarted started;
  const Status status = Prepare(work, &requests, &spec, &started);
  if (!status.ok()) {
    End(work.live, status);
    return;
  }
  SubmitAll(work, std::move(requests), std::move(spec), std::move(started));
}

void Frontend::Impl::SubmitAll(Work& work, std::vector<Request> requests, ResponseSpec spec,
                               ResponseStarted started) {
  const std::vector<RequestId> ids = spec.requests;
  {
    std::lock_guard lock(mutex);
    if (work.live->ended) return;
    work.live->requests = ids;  // from here on it is the output loop that ends the stream
  }
  work.stream->Push(std::move(started));
  output.Register(std::move(spec));
  for (Request& request : requests) {
    const RequestId id = request.id;
    const Status status = engine.Submit(std::move(request));
    if (status.ok()) continue;
    output.Abort(id, status);  // cancels the others too
    break;
  }
  // Whoever ended it meanwhile may have spoken before the output loop and the engine knew the
  // requests.
  std::optional<Status> ended;
  {
    std::lock_guard lock(mutex);
    ended = work.live->ended;
  }
  if (!ended) return;
  output.Abort(ids.front(), *ended);
  for (const RequestId id : ids) engine.Cancel(id);
}

// Whoever comes first (the text work's own failure, Cancel, the deadline) ends the response; the
// others find it ended.
void Frontend::Impl::End(const std::shared_ptr<LiveResponse>& live, const Status& status) {
  std::vector<RequestId> requests;
  {
    std::lock_guard lock(mutex);
    if (live->ended) return;
    live->ended = status;
    requests = live->requests;
  }
  if (requests.empty()) {
    if (const auto stream = live->stream.lock()) stream->Push(ResponseDone{status, {}});
    return;
  }
  output.Abort(requests.front(), status);
  for (const RequestId id : requests) engine.Cancel(id);
}

void Frontend::Impl::SweepLive() {
  std::erase_if(live_responses, [](const auto& entry) { return entry.second->stream.expired(); });
  sweep_at = std::max<size_t>(256, live_responses.size() * 2);
}

Frontend::Frontend(FrontendOptions options, const ModelConfig& config, const Tokenizer& tokenizer,
                   const ChatTemplate* chat_template, Engine& engine, OutputLoop& output)
    : impl_(std::make_unique<Impl>(std::move(options), config, tokenizer, chat_template, engine,
                                   output)) {}

Frontend::~Frontend() = default;

Status Frontend::Generate(GenerateRequest request, std::shared_ptr<ResponseStream> stream) {
  Impl& impl = *impl_;
  DS_RETURN_IF_ERROR(CheckRequest(request, impl.limits()));
  if (request.sampling.temperature < kGreedyTemperature) request.sampling.temperature = 0;
  if (request.deadline && *request.deadline <= Clock::now()) {
    return Status(StatusCode::kDeadlineExceeded, "the deadline passed before the request was read");
  }
  size_t bytes = 0;
  for (const Prompt& prompt : request.prompts) bytes += PromptBytes(prompt);

  auto live = std::make_shared<LiveResponse>();
  live->request_id = request.request_id;
  live->stream = stream;
  const ResponseStream* const key = stream.get();
  const std::optional<Clock::time_point> deadline = request.deadline;
  {
    std::lock_guard lock(impl.mutex);
    if (impl.live_responses.size() >= impl.sweep_at) impl.SweepLive();
    impl.live_responses[key] = live;
  }
  auto work = std::make_shared<Impl::Work>(
      Impl::Work{std::move(request), stream, live, Clock::now()});
  const bool queued = impl.pool->TrySubmit(bytes, [&impl, work](TextPool::Outcome outcome) {
    if (outcome == TextPool::Outcome::kAbandoned) {
      impl.End(work->live, Status(StatusCode::kUnavailable, "the server is shutting down"));
      return;
    }
    try {
      impl.RunWork(*work);
    } catch (const std::exception&) {  // only memory can run out here
      Log(LogLevel::kError, "text_work_failed", {{"request_id", work->live->request_id}});
      impl.End(work->live, Status(StatusCode::kInternal, "the prompt could not be prepared"));
    }
  });
  if (!queued) {
    std::lock_guard lock(impl.mutex);
    impl.live_responses.erase(key);
    impl.engine.CountRefusal(RefusalReason::kQueueFull);
    return Status(StatusCode::kResourceExhausted, "too many prompts wait to be tokenized");
  }
  if (deadline) {
    impl.pool->At(*deadline, stream, [&impl, live] {
      impl.End(live, Status(StatusCode::kDeadlineExceeded, "the request's deadline has passed"));
    });
  }
  return {};
}

bool Frontend::Cancel(const std::string& request_id) {
  std::vector<std::shared_ptr<LiveResponse>> found;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [key, live] : impl_->live_responses) {
      if (live->request_id == request_id && !live->ended && !live->stream.expired())
        found.push_back(live);
    }
  }
  for (const auto& live : found)
    impl_->End(live, Status(StatusCode::kCancelled, "the request was cancelled"));
  return !found.empty();
}

void Frontend::CancelStream(const std::shared_ptr<ResponseStream>& stream) {
  stream->Close();
  std::shared_ptr<LiveResponse> live;
  {
    std::lock_guard lock(impl_->mutex);
    auto entry = impl_->live_responses.extract(stream.get());
    if (!entry.empty()) live = std::move(entry.mapped());
  }
  if (live) impl_->End(live, Status(StatusCode::kCancelled, "the client went away"));
}

SamplingParams Frontend::DefaultSampling() const {
  const ModelConfig& config = impl_->config;
  SamplingParams sampling;
  sampling.temperature = config.default_temperature.value_or(sampling.temperature);
  sampling.top_p = config.default_top_p.value_or(sampling.top_p);
  sampling.top_k = config.default_top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = config.default_repetition_penalty.value_or(
      sampling.repetition_penalty);
  sampling.seed = SplitMix64(impl_->seed_base +
                             impl_->seeds_drawn.fetch_add(1, std::memory_order_relaxed));
  return sampling;
}

Status Frontend::Tokenize(Prompt prompt, bool add_special_tokens,
                          std::function<void(Result<std::vector<int32_t>>)> done) {
  const size_t bytes = PromptBytes(prompt);
  auto shared = std::make_shared<Prompt>(std::move(prompt));
  const bool queued = impl_->pool->TrySubmit(
      bytes, [impl = impl_.get(), shared, add_special_tokens,
              done = std::move(done)](TextPool::Outcome outcome) {
        if (outcome == TextPool::Outcome::kAbandoned) {
          done(Status(StatusCode::kUnavailable, "the server is shutting down"));
          return;
        }
        std::string text;
        done(impl->Tokens(*shared, add_special_tokens, &text));
      });
  return queued ? Status()
                : Status(StatusCode::kResourceExhausted, "too many prompts wait to be tokenized");
}

Result<std::string> Frontend::Detokenize(const std::vector<int32_t>& ids) const {
  const Status status = CheckTokenIds(ids, impl_->tokenizer.vocab_size(), "tokens");
  if (!status.ok()) return status;
  return impl_->tokenizer.Decode(ids, /*skip_special_tokens=*/false);
}

Status Frontend::Detokenize(std::vector<int32_t> ids,
                            std::function<void(Result<std::string>)> done) {
  const size_t bytes = ids.size() * sizeof(int32_t);
  auto shared = std::make_shared<std::vector<int32_t>>(std::move(ids));
  const bool queued = impl_->pool->TrySubmit(
      bytes, [this, shared, done = std::move(done)](TextPool::Outcome outcome) {
        if (outcome == TextPool::Outcome::kAbandoned) {
          done(Status(StatusCode::kUnavailable, "the server is shutting down"));
        } else {
          done(Detokenize(*shared));
        }
      });
  return queued ? Status()
                : Status(StatusCode::kResourceExhausted, "too many prompts wait to be tokenized");
}

Status Frontend::RunOnTextThread(size_t bytes, std::function<void(bool run)> work) {
  const bool queued = impl_->pool->TrySubmit(bytes,
                                             [work = std::move(work)](TextPool::Outcome outcome) {
                                               work(outcome == TextPool::Outcome::kRun);
                                             });
  return queued ? Status()
                : Status(StatusCode::kResourceExhausted, "too many requests wait to be read");
}

const FrontendOptions& Frontend::options() const { return impl_->options; }
const ModelConfig& Frontend::model_config() const { return impl_->config; }
const Tokenizer& Frontend::tokenizer() const { return impl_->tokenizer; }
Engine& Frontend::engine() { return impl_->engine; }

}  // namespace diffserve
