// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics_exporter.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "kernels/process/log.h"

namespace diffserve {
namespace {

constexpr size_t kMaxRequestSeries = 1024;  // of one transport; more would mean that a name came
                                            // from a client

using Labels = std::vector<prometheus::ClientMetric::Label>;

constexpr std::string_view kMissReasons[] = {"no_prefix", "evicted", "partial_page", "disabled",
                                             "no_snapshot"};
static_assert(std::size(kMissReasons) == static_cast<size_t>(MissReason::kCount));
constexpr FinishReason kEnds[] = {FinishReason::kStop, FinishReason::kLength,
                                  FinishReason::kCancelled, FinishReason::kError};
constexpr std::string_view kRefusalReasons[] = {
    "too_long", "queue_full", "tokens_full", "queue_wait", "deadline", "draining", "memory_full"};
static_assert(std::size(kRefusalReasons) == static_cast<size_t>(RefusalReason::kCount));

// Collects families. `prefix` is put before each name, `common` labels are added to each series.
class FamilyList {
 public:
  FamilyList(std::string prefix, Labels common)
      : prefix_(std::move(prefix)), common_(std::move(common)) {}

  // Further series of the last family are added with the same name.
  void Gauge(std::string_view name, std::string_view help, double value, Labels labels = {}) {
    Add(name, help, prometheus::MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  void Counter(std::string_view name, std::string_view help, double value, Labels labels = {}) {
    Add(name, help, prometheus::MetricType::Counter, std::move(labels)).counter.value = value;
  }
  template <size_t kBounds>
  void Distribution(std::string_view name, std::string_view help, const Histogram<kBounds>& values,
                    Labels labels = {}) {
    auto& out = Add(name, help, prometheus::MetricType::Histogram, std::move(labels)).histogram;
    uint64_t total = 0;
    for (size_t i = 0; i < kBounds; ++i)
      out.bucket.push_back({total += values.counts[i], values.bounds[i]});
    out.sample_count = total + values.counts[kBounds];
    out.sample_sum = values.sum;
  }

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(std::string_view name, std::string_view help,
                                prometheus::MetricType type, Labels labels) {
    const std::string full = prefix_ + std::string(name);
    if (families_.empty() || families_.back().name != full)
      families_.push_back({full, std::string(help), type, {}});
    prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = common_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  const std::string prefix_;
  const Labels common_;
  std::vector<prometheus::MetricFamily> families_;
};

void AddBySource(FamilyList& list, std::string_view name, std::string_view help,
                 const GuessCounts& counts) {
  for (size_t i = 0; i < counts.by_source.size(); ++i) {
    list.Counter(name, help, static_cast<double>(counts.by_source[i]),
                 {{"source", kGuessSourceNames[i]}});
  }
}

// The second tier of the prefix cache: the disk, or host memory for a GPU.
void AddTier(FamilyList& list, const EngineStats& s) {
  const TierStats& tier = *s.tier;
  list.Gauge("kv_tier_bytes", "Size of the prefix cache's second tier.",
             static_cast<double>(tier.bytes));
  list.Gauge("kv_tier_bytes_max", "Its maximum size.", static_cast<double>(tier.bytes_max));
  list.Gauge("kv_tier_pages", "KV pages in it.", static_cast<double>(tier.pages));
  list.Gauge("kv_tier_sibling_pages", "KV pages of other processes in the same directory.",
             static_cast<double>(tier.sibling_pages));
  list.Gauge("kv_tier_loads", "Prompts whose pages are being read from it.", s.tier_loads);
  list.Counter("kv_tier_hit_tokens_total",
               "Prompt tokens found in it; the other tokens found were in memory.",
               static_cast<double>(s.tier_hits));
  list.Counter("kv_tier_saved_seconds_total",
               "Tokens from it, times the measured cost of a token in a step.",
               s.tier_seconds_saved);
  list.Counter("kv_tier_read_bytes_total", "Bytes of pages read from it.",
               static_cast<double>(tier.bytes_read));
  list.Counter("kv_tier_written_bytes_total", "Bytes of pages written to it.",
               static_cast<double>(tier.bytes_written));
  list.Counter("kv_tier_lost_pages_total",
               "KV pages that left memory before they could be written.",
               static_cast<double>(s.tier_pages_lost));
  list.Counter("kv_tier_slow_loads_total",
               "Prompts that were computed because reading their pages took longer.",
               static_cast<double>(s.tier_slow_loads));
  list.Counter("kv_tier_errors_total", "KV pages that could not be read or written.",
               static_cast<double>(tier.read_errors), {{"operation", "read"}});
  list.Counter("kv_tier_errors_total", "KV pages that could not be read or written.",
               static_cast<double>(tier.write_errors), {{"operation", "write"}});
}

void AddLoad(FamilyList& list, const EngineStats& s) {
  list.Gauge("requests_running", "Continuations in the running batch.", s.running);
  list.Gauge("requests_waiting", "Continuations waiting for admission.", s.waiting);
  list.Gauge("waiting_tokens", "Tokens of the waiting continuations.",
             static_cast<double>(s.waiting_tokens));
  list.Gauge("kv_pages", "KV pages by state.", s.pages_free, {{"state", "free"}});
  list.Gauge("kv_pages", "", s.pages_cached, {{"state", "cached"}});
  list.Gauge("kv_pages", "", s.pages_used, {{"state", "used"}});
  if (s.state_slots_total > 0) {
    const auto add = [&](std::string_view name, std::string_view help, int total, int free,
                         int used) {
      list.Gauge(name, help, free, {{"state", "free"}});
      list.Gauge(name, "", total - free - used, {{"state", "snapshot"}});
      list.Gauge(name, "", used, {{"state", "used"}});
    };
    add("state_slots", "Slots for sequences' states, by state.", s.state_slots_total,
        s.state_slots_free, s.state_slots_used);
    add("window_pages", "Pages of layers with a window, by state.", s.window_pages_total,
        s.window_pages_free, s.window_pages_used);
  }
  list.Gauge("last_step_rows", "Tokens computed in the last step.", s.last_step_tokens);
  list.Gauge("last_step_sequences", "Sequences in the last step.", s.last_step_sequences);
  list.Gauge("stalled_seconds", "Time since the last finished step while there is work, else 0.",
             s.seconds_since_progress);
  list.Gauge("draining", "1 while the server refuses new work.", s.draining ? 1 : 0);
  list.Counter("log_lines_dropped_total",
               "Log lines dropped because stderr was not read in time or could not be written.",
               static_cast<double>(DroppedLogLines()));
  list.Counter("steps_total", "Steps finished.", static_cast<double>(s.steps));
}

void AddWork(FamilyList& list, const EngineStats& s) {
  list.Counter("prompt_tokens_total", "Prompt tokens of admitted continuations.",
               static_cast<double>(s.prompt_tokens));
  list.Counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
               static_cast<double>(s.prompt_tokens_cached));
  list.Counter("generation_tokens_total", "Tokens generated.",
               static_cast<double>(s.generation_tokens));
  list.Counter("prefix_query_tokens_total", "Prompt tokens looked up in the prefix cache.",
               static_cast<double>(s.prefix_queries));
  list.Counter("prefix_hit_tokens_total", "Prompt tokens found in the prefix cache.",
               static_cast<double>(s.prefix_hits));
  if (s.state_slots_total > 0) {
    list.Counter("state_snapshots_taken_total", "State snapshots taken for the prefix cache.",
                 static_cast<double>(s.snapshots_taken));
    list.Counter("state_snapshots_resumed_total", "Sequences that resumed from a state snapshot.",
                 static_cast<double>(s.snapshots_resumed));
    list.Counter("state_snapshots_evicted_total",
                 "State snapshots evicted to make room for others.",
                 static_cast<double>(s.snapshots_evicted));
  }
  if (s.tier) AddTier(list, s);
  for (size_t i = 0; i < s.prefix_misses.size(); ++i) {
    list.Counter("prefix_misses_total", "Lookups that found nothing, by reason.",
                 static_cast<double>(s.prefix_misses[i]),
                 {{"reason", std::string(kMissReasons[i])}});
  }
  for (size_t i = 0; i < s.refused.size(); ++i) {
    list.Counter("requests_refused_total", "Requests refused before they ran, by reason.",
                 static_cast<double>(s.refused[i]), {{"reason", std::string(kRefusalReasons[i])}});
  }
  for (const FinishReason reason : kEnds) {
    list.Counter("requests_finished_total", "Continuations ended, by reason.",
                 static_cast<double>(s.num_finished(reason)), {{"reason", NameOf(reason)}});
  }
  list.Counter("proposals_total", "Times that tokens were proposed (--speculative).",
               static_cast<double>(s.proposals));
  AddBySource(list, "proposed_tokens_total",
              "Tokens proposed, each of which is computed and verified, by source.",
              s.proposed_tokens);
  AddBySource(list, "accepted_tokens_total", "Proposed tokens that were accepted, by source.",
              s.accepted_tokens);
  list.Gauge("speculative_history_bytes", "Memory of past answers that guesses are taken from.",
             static_cast<double>(s.history_bytes));
  list.Counter("preemptions_total", "Sequences returned to the queue because KV pages ran out.",
               static_cast<double>(s.preemptions));
  list.Counter("requests_corrupted_total",
               "Continuations ended because their logits were not finite.",
               static_cast<double>(s.corrupted));
  list.Counter("requests_cut_by_form_total",
               "Continuations ended as by length because their form needed too much work.",
               static_cast<double>(s.constraints_failed));
}

void AddResponses(FamilyList& list, const ResponseStats& responses) {
  list.Distribution("request_choices", "Continuations of a prompt (n).", responses.choices);
  list.Distribution("request_longest_generation_tokens",
                    "Tokens generated by the longest of a prompt's continuations.",
                    responses.longest_generation_tokens);
}

void AddTimes(FamilyList& list, const EngineStats& s) {
  list.Distribution("queue_seconds", "From arrival to first admission.", s.queue_seconds);
  list.Distribution("time_to_first_token_seconds", "From arrival to the first token.",
                    s.time_to_first_token_seconds);
  list.Distribution("inter_token_seconds", "Between two tokens of a sequence.",
                    s.inter_token_seconds);
  list.Distribution("request_seconds", "From arrival to the last token.", s.e2e_seconds);
  list.Distribution("prefill_seconds", "From first admission to the first token.",
                    s.prefill_seconds);
  list.Distribution("decode_seconds", "From the first token to the last.", s.decode_seconds);
  list.Distribution("inference_seconds", "From first admission to the last token.",
                    s.inference_seconds);
  list.Distribution("mean_token_seconds", "Mean time between the tokens of a continuation.",
                    s.mean_token_seconds);
  list.Distribution("step_phase_seconds", "Phases of a step.", s.plan_seconds, {{"phase", "plan"}});
  list.Distribution("step_phase_seconds", "", s.execute_seconds, {{"phase", "execute"}});
  list.Distribution("step_phase_seconds", "", s.commit_seconds, {{"phase", "commit"}});
  list.Distribution("step_rows", "Tokens computed in a step.", s.step_tokens);
  list.Distribution("request_prompt_tokens", "Prompt length of a continuation.",
                    s.request_prompt_tokens);
  list.Distribution("request_generation_tokens", "Tokens generated by a continuation.",
                    s.request_generation_tokens);
  list.Distribution("request_max_tokens", "Tokens that a continuation may generate at most.",
                    s.request_max_tokens);
}

void AddKvEvents(FamilyList& list, const KvEventCounts& events) {
  list.Counter("kv_events_published_total", "KV pages published as stored or removed, by event.",
               static_cast<double>(events.published));
  list.Counter("kv_events_dropped_total",
               "KV events dropped because the publisher's queue was full.",
               static_cast<double>(events.dropped));
}

void AddModel(FamilyList& list, const ServedModelInfo& info) {
  list.Gauge("build_info", "Always 1; the labels name the version, device and model.", 1,
             {{"version", info.version},
              {"commit", info.commit},
              {"device", info.device},
              {"gpu_uuid", info.gpu_uuid},
              {"cpu_isa", info.cpu_isa},
              {"dtype", info.dtype},
              {"kv_cache_dtype", info.kv_cache_dtype},
              {"model_name", info.model_name}});
  list.Gauge("page_slots", "Tokens that one KV page holds.", info.page_size);
  list.Gauge("max_model_len_tokens", "Tokens of prompt and output together.", info.max_model_len);
  for (size_t i = 0; i < info.lambdas.size(); ++i) {
    list.Gauge("layer_lambda", "Weight of the second attention map, by layer.", info.lambdas[i],
               {{"layer", std::to_string(i)}});
  }
  for (size_t i = 0; i < info.lambda_inits.size(); ++i) {
    list.Gauge("layer_lambda_init",
               "Constant part of layer_lambda, its value before training, by layer.",
               info.lambda_inits[i], {{"layer", std::to_string(i)}});
  }
}

// The names and help texts of vLLM's own exporter, with our buckets.
void AddVllmNames(FamilyList& list, const ServerStats& stats, const ServedModelInfo& info) {
  const EngineStats& s = stats.engine;
  list.Gauge("num_requests_running", "Number of requests in model execution batches.", s.running);
  list.Gauge("num_requests_waiting", "Number of requests waiting to be processed.", s.waiting);
  list.Gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
             s.kv_cache_usage());
  list.Gauge("cache_config_info", "Information of the KV cache.", 1,
             {{"block_size", std::to_string(info.page_size)},
              {"num_gpu_blocks", std::to_string(info.num_pages)},
              {"cache_dtype", info.kv_cache_dtype},
              {"enable_prefix_caching", info.prefix_caching ? "True" : "False"}});
  list.Gauge("lora_requests_info", "Running stats on lora requests.", 0,
             {{"max_lora", "0"}, {"waiting_lora_adapters", ""}, {"running_lora_adapters", ""}});
  list.Counter("prompt_tokens_total", "Number of prefill tokens processed.",
               static_cast<double>(s.prompt_tokens));
  list.Counter("prompt_tokens_cached_total", "Number of cached prompt tokens.",
               static_cast<double>(s.prompt_tokens_cached));
  list.Counter("generation_tokens_total", "Number of generation tokens processed.",
               static_cast<double>(s.generation_tokens));
  list.Counter("num_preemptions_total", "Cumulative number of preemptions.",
               static_cast<double>(s.preemptions));
  list.Counter("prefix_cache_queries_total", "Prefix cache queries, in tokens.",
               static_cast<double>(s.prefix_queries));
  list.Counter("prefix_cache_hits_total", "Prefix cache hits, in tokens.",
               static_cast<double>(s.prefix_hits));
  list.Counter("spec_decode_num_drafts_total", "Number of spec decoding drafts.",
               static_cast<double>(s.proposals));
  list.Counter("spec_decode_num_draft_tokens_total", "Number of draft tokens.",
               static_cast<double>(s.proposed_tokens.total()));
  list.Counter("spec_decode_num_accepted_tokens_total", "Number of accepted tokens.",
               static_cast<double>(s.accepted_tokens.total()));
  list.Counter("corrupted_requests_total", "Requests with NaNs in logits.",
               static_cast<double>(s.corrupted));
  for (const FinishReason reason : kEnds) {
    list.Counter("request_success_total", "Count of processed requests.",
                 static_cast<double>(s.num_finished(reason)),
                 {{"finished_reason", OpenAiNameOf(reason)}});
  }
  list.Distribution("time_to_first_token_seconds", "Time to first token.",
                    s.time_to_first_token_seconds);
  list.Distribution("inter_token_latency_seconds", "Inter-token latency.", s.inter_token_seconds);
  list.Distribution("e2e_request_latency_seconds", "End-to-end request latency.", s.e2e_seconds);
  list.Distribution("request_queue_time_seconds", "Time spent in WAITING phase.", s.queue_seconds);
  list.Distribution("request_prefill_time_seconds", "Time spent in PREFILL phase.",
                    s.prefill_seconds);
  list.Distribution("request_decode_time_seconds", "Time spent in DECODE phase.", s.decode_seconds);
  list.Distribution("request_inference_time_seconds", "Time spent in RUNNING phase.",
                    s.inference_seconds);
  list.Distribution("request_time_per_output_token_seconds",
                    "Mean time per output token of a request.", s.mean_token_seconds);
  list.Distribution("request_prompt_tokens", "Number of prefill tokens processed.",
                    s.request_prompt_tokens);
  list.Distribution("request_generation_tokens", "Number of generation tokens processed.",
                    s.request_generation_tokens);
  list.Distribution("request_max_num_generation_tokens",
                    "Maximum number of generation tokens among the n of a request.",
                    stats.responses.longest_generation_tokens);
  list.Distribution("request_params_n", "The n request parameter.", stats.responses.choices);
  list.Distribution("request_params_max_tokens", "The max_tokens request parameter.",
                    s.request_max_tokens);
  list.Distribution("iteration_tokens_total", "Number of tokens per engine step.", s.step_tokens);
}

int64_t OpenFileDescriptors() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error))
    ++count;
  return count;
}

// The names that every Prometheus client library gives its process.
void AddProcess(FamilyList& list, std::chrono::system_clock::time_point start) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  int64_t size_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> size_pages >> resident_pages;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  list.Counter("cpu_seconds_total", "User and system CPU time.",
               seconds(usage.ru_utime) + seconds(usage.ru_stime));
  list.Gauge("resident_memory_bytes", "Resident memory.",
             static_cast<double>(resident_pages * sysconf(_SC_PAGESIZE)));
  list.Gauge("open_fds", "Open file descriptors.", static_cast<double>(OpenFileDescriptors()));
  list.Gauge("max_fds", "Maximum number of open file descriptors.",
             static_cast<double>(files.rlim_cur));
  list.Gauge("start_time_seconds", "Start time of the server, in Unix seconds.",
             std::chrono::duration<double>(start.time_since_epoch()).count());
}

std::string TextOf(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

MetricsExporter::MetricsExporter(ServedModelInfo info, std::function<ServerStats()> snapshot)
    : info_(std::move(info)),
      snapshot_(std::move(snapshot)),
      start_(std::chrono::system_clock::now()) {}

std::string MetricsExporter::OwnNames(const ServerStats& stats) const {
  FamilyList own("diffserve_", {});
  AddModel(own, info_);
  AddLoad(own, stats.engine);
  AddWork(own, stats.engine);
  AddKvEvents(own, stats.kv_events);
  AddTimes(own, stats.engine);
  AddResponses(own, stats.responses);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, count] : http_) {
      own.Counter("http_requests_total", "HTTP requests answered, by route and status.",
                  static_cast<double>(count),
                  {{"route", key.first}, {"code", std::to_string(key.second)}});
    }
    for (const auto& [key, count] : grpc_) {
      own.Counter("grpc_requests_total", "RPCs ended, by method and status code.",
                  static_cast<double>(count),
                  {{"method", key.first}, {"code", std::to_string(key.second)}});
    }
    if (grpc_calls_) {
      const GrpcCallCounts calls = grpc_calls_();
      own.Counter("grpc_calls_total",
                  "gRPC calls of all services, by stage; a call that arrived and never began was "
                  "reset or passed its deadline.",
                  static_cast<double>(calls.arrived), {{"stage", "arrived"}});
      own.Counter("grpc_calls_total", "", static_cast<double>(calls.begun), {{"stage", "begun"}});
    }
  }
  constexpr char kCutHelp[] = "HTTP replies that were cut after they began, by how they ended.";
  own.Counter("http_replies_cut_total", kCutHelp,
              static_cast<double>(num_cut(HttpCut::kErrorEvent)), {{"end", "error_event"}});
  own.Counter("http_replies_cut_total", "", static_cast<double>(num_cut(HttpCut::kReset)),
              {{"end", "reset"}});
  FamilyList process("process_", {});
  AddProcess(process, start_);
  return TextOf(own.Take()) + TextOf(process.Take());
}

std::string MetricsExporter::RenderOwnNames() const { return OwnNames(snapshot_()); }

std::string MetricsExporter::Render() const {
  const ServerStats stats = snapshot_();
  FamilyList vllm("vllm:", {{"model_name", info_.model_name}, {"engine", "0"}});
  AddVllmNames(vllm, stats, info_);
  return OwnNames(stats) + TextOf(vllm.Take());
}

void MetricsExporter::Count(RequestCounts& counts, std::string_view name, int code) {
  std::lock_guard lock(mutex_);
  const auto key = std::make_pair(std::string(name), code);
  if (const auto found = counts.find(key); found != counts.end()) {
    ++found->second;
  } else if (counts.size() < kMaxRequestSeries) {
    counts.emplace(key, 1);
  }
}

void MetricsExporter::WatchGrpc(std::function<GrpcCallCounts()> calls) {
  std::lock_guard lock(mutex_);
  grpc_calls_ = std::move(calls);
}

void MetricsExporter::CountHttp(std::string_view route, int code) { Count(http_, route, code); }
void MetricsExporter::CountGrpc(std::string_view method, int code) { Count(grpc_, method, code); }

}  // namespace diffserve
