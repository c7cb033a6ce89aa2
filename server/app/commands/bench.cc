// SPDX-License-Identifier: Apache-2.0
// `diffserve bench`: prefill and decode speed of a model, compared with the machine's own limits,
// which are probed next to each sample. It drives the model, KV pages and sampler that the server
// uses, without the engine's queues.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <span>

#include "engine/model_executor.h"
#include "kernels/base/machine_probe.h"
#include "kernels/ops/device_probe.h"
#include "kernels/ops/linear.h"
#include "server/app/commands/commands.h"
#include "server/app/session/model_session.h"
#include "server/app/session/session_cost.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kComputedTokens = 1024;  // of a cache's depth

struct Spread {
  double min = 0, median = 0, max = 0;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

void AddSpread(std::string_view name, const Spread& spread, JsonWriter& json) {
  json.Key(name).Begin('{').Add("min", spread.min).Add("median", spread.median);
  json.Add("max", spread.max).End('}');
}

// Uses the session's pages: sequence s has pages [s * pages_per_sequence, (s + 1) *
// pages_per_sequence). Its window pages are reused in turn. Throws DeviceError.
class Runner {
 public:
  Runner(ModelSession& session, int step_tokens, uint64_t seed)
      : session_(session), step_tokens_(step_tokens), random_(seed * 2 + 1) {}

  // Computes positions [0, count) of sequence 0 in steps of step_tokens, and samples a token at the
  // end.
  void Prefill(int count) {
    UseTables(count, 1);
    for (int begin = 0; begin < count; begin += step_tokens_) {
      const int tokens = std::min(step_tokens_, count - begin);
      Batch batch;
      batch.sequences = {TokensOf(0, tokens, begin)};
      for (int i = 0; i < tokens; ++i) batch.tokens.push_back(RandomToken());
      if (begin + tokens == count) {
        batch.logit_rows = {tokens - 1};
        batch.sample_rows = {{.kind = SampleKind::kGreedy}};
      }
      Check(model().Forward(batch, session_.kv()));
    }
    Check(model().Collect().status());
  }

  // Gives each of `sequences` sequences `depth` tokens in the cache. The first sequence computes
  // the tokens that fill the pages of kComputedTokens. All other pages are copies of these; reading
  // them costs the same.
  void FillTo(int depth, int sequences, int room) {
    const int computed = PagesFor(std::min(depth, kComputedTokens));
    if (depth > 0) Prefill(std::min(depth, computed * session_.plan().engine.page_size));
    FillWindowPages(computed);
    UseTables(depth + room, sequences);
    const int pages = PagesFor(depth);
    for (int s = 0; s < sequences; ++s) {
      for (int p = s == 0 ? computed : 0; p < pages; ++p) {
        const int32_t from = tables_[0][static_cast<size_t>(p % computed)],
                      to = tables_[static_cast<size_t>(s)][static_cast<size_t>(p)];
        CopyPage(/*in_windows=*/false, from, to);
      }
      if (s > 0 && depth > 0) Check(session_.kv().CopyState(0, s));
    }
  }

  // `steps` steps of one greedy token for each sequence, from `depth` on; as many in flight as the
  // model takes.
  void Decode(int depth, int sequences, int steps) {
    std::vector<int32_t> tokens(static_cast<size_t>(sequences));
    for (int32_t& token : tokens) token = RandomToken();
    int in_flight = 0;
    for (int step = 0; step < steps; ++step) {
      Batch batch;
      batch.tokens = tokens;
      for (int s = 0; s < sequences; ++s) {
        batch.sequences.push_back(TokensOf(s, 1, depth + step));
        batch.logit_rows.push_back(s);
      }
      batch.num_prompt_tokens.assign(tokens.size(), 0);
      batch.sample_rows.assign(tokens.size(), {.kind = SampleKind::kGreedy});
      Check(model().Forward(batch, session_.kv()));
      if (++in_flight == model().steps_in_flight_max()) Collect(tokens, in_flight);
      if (in_flight > 0)
        std::iota(tokens.rbegin(), tokens.rend(), -sequences);  // tokens of the previous step
    }
    while (in_flight > 0) Collect(tokens, in_flight);
  }

  int PagesFor(int tokens) const { return static_cast<int>(session_.plan().PagesFor(tokens)); }

 private:
  Model& model() { return session_.model(); }

  static void Check(const Status& status) {
    if (!status.ok()) throw DeviceError(status);
  }

  // The tokens of the sequence in `row`.
  SequenceTokens TokensOf(int row, int num_tokens, int position) const {
    const auto sequence = static_cast<size_t>(row);
    return {row, num_tokens, position, tables_[sequence].data(),
            has_window_pages() ? window_tables_[sequence].data() : nullptr};
  }
  bool has_window_pages() const { return session_.plan().engine.num_window_pages > 0; }

  // Over the layers whose window has its own page ids, or over the others.
  void CopyPage(bool in_windows, int32_t from, int32_t to) {
    for (const LayerConfig& layer : session_.plan().summary.config.layers) {
      const bool is_apart = layer.window > 0 && has_window_pages();
      if (layer.writes_kv() && is_apart == in_windows)
        Check(session_.kv().CopyPage(layer.kv, from, to));
    }
  }

  // The pages after the first `computed` become copies of those.
  void FillWindowPages(int computed) {
    if (computed == 0) return;
    for (int page = computed; page < session_.plan().engine.num_window_pages; ++page)
      CopyPage(/*in_windows=*/true, page % computed, page);
  }

  void UseTables(int tokens, int sequences) {
    const int pages = PagesFor(tokens);
    window_tables_.assign(static_cast<size_t>(sequences),
                          std::vector<int32_t>(static_cast<size_t>(pages)));
    const int each = session_.plan().engine.num_window_pages / sequences;
    for (int s = 0; s < sequences && has_window_pages(); ++s) {
      for (int page = 0; page < pages; ++page) {
        window_tables_[static_cast<size_t>(s)][static_cast<size_t>(page)] = s * each + page % each;
      }
    }
    tables_.assign(static_cast<size_t>(sequences),
                   std::vector<int32_t>(static_cast<size_t>(pages)));
    for (int s = 0; s < sequences; ++s)
      std::iota(tables_[static_cast<size_t>(s)].begin(), tables_[static_cast<size_t>(s)].end(),
                s * pages);
  }

  void Collect(std::vector<int32_t>& tokens, int& in_flight) {
    const Result<std::vector<SampledToken>> rows = model().Collect();
    Check(rows.status());
    for (size_t s = 0; s < tokens.size(); ++s)
      tokens[s] = (*rows)[s].finite != 0 ? (*rows)[s].token : 0;
    --in_flight;
  }

  int32_t RandomToken() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((random_ >> 33) %
                                static_cast<uint64_t>(session_.plan().summary.config.vocab_size));
  }

  ModelSession& session_;
  const int step_tokens_;
  uint64_t random_;
  std::vector<std::vector<int32_t>> tables_, window_tables_;
};

template <typename Body>
double SecondsOf(const Body& body) {
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The device's limits, measured next to each sample. Throws DeviceError.
class MachineLimits {
 public:
  explicit MachineLimits(ModelSession& session)
      : session_(session),
        read_probe_(session.plan().model.isa),
        arithmetic_(
            cpu::ArithmeticOf(session.plan().summary.linear_format, session.plan().model.isa)) {
    if (session.plan().on_gpu()) gpu_ = Checked(cuda::DeviceProbe::Open(session.plan().model.gpu));
  }

  double FlopsPerSecond() {
    if (gpu_ != nullptr) return Checked(gpu_->MeasureMatrixFlopsPerSecond());
    return MeasureFlopsPerSecond(arithmetic_, session_.plan().model.isa, session_.pool());
  }
  double BytesPerSecond() {
    if (gpu_ != nullptr) return Checked(gpu_->MeasureReadBytesPerSecond());
    return read_probe_.MeasureBytesPerSecond(session_.pool());
  }
  const char* flops_name() const {
    if (gpu_ != nullptr) return "cuBLAS";
    switch (arithmetic_) {
      case Arithmetic::kFma:
        break;
      case Arithmetic::kBFloat16Dot:
        return "bfloat16_dot";
      case Arithmetic::kInt8Dot:
        return "int8_dot";
    }
    return "FMA";
  }
  std::string flops_key() const {
    if (gpu_ != nullptr) return "cublas_flops_per_s";
    return (arithmetic_ == Arithmetic::kFma ? "fma" : flops_name()) + std::string("_flops_per_s");
  }

 private:
  template <typename T>
  static T Checked(Result<T> result) {
    if (!result.ok()) throw DeviceError(result.status());
    return std::move(*result);
  }

  ModelSession& session_;
  ReadProbe read_probe_;
  const Arithmetic arithmetic_;  // of linear layers
  std::unique_ptr<cuda::DeviceProbe> gpu_;
};

// "155.9 GFLOP/s", "7.9 GB/s", "1.2 TFLOP/s".
std::string Rate(double per_s, const char* unit) {
  const bool tera = per_s >= 1e12;
  char text[40];
  std::snprintf(text, sizeof(text), "%.1f %c%s/s", per_s / (tera ? 1e12 : 1e9), tera ? 'T' : 'G',
                unit);
  return text;
}

// One line of the report: its samples and the probe that they are compared with.
struct Figure {
  std::string name = {};
  int batch = 1;
  std::vector<double> tokens_per_s = {}, ratio = {}, probe = {};  // [repeat]
  double per_token = 0;  // FLOPs (prefill) or bytes (decode)
  // Decode: the same with FLOPs, which are its limit when many sequences share the weights.
  std::vector<double> arithmetic_ratio = {};
  double flops_per_token = 0;

  void Add(double seconds, double tokens, double probed_per_s) {
    tokens_per_s.push_back(tokens / seconds);
    probe.push_back(probed_per_s);
    ratio.push_back(per_token * tokens / seconds / probed_per_s);
  }
};

class Bench {
 public:
  Bench(const BenchOptions& options, bool json, ModelSession& session)
      : options_(options),
        json_(json),
        session_(session),
        cost_(session.plan().summary.config),
        runner_(session, session.plan().engine.max_num_batched_tokens, session.plan().model.seed),
        machine_(session) {}

  Status Run() {
    const ModelConfig& config = session_.plan().summary.config;
    if (!json_) {
      std::printf("%s, %s, %s parameters, %s, %d threads\n\n", config.family.c_str(),
                  NameOf(session_.plan().summary.linear_format).data(),
                  ParametersText(session_.plan().summary.num_parameters).c_str(),
                  session_.plan().on_gpu() ? session_.plan().device_name.c_str()
                                           : std::string(NameOf(session_.plan().model.isa)).c_str(),
                  session_.pool().num_threads());
      std::printf("%-28s %32s  %-13s %18s\n", "", "tokens/s", "of one token", "share of the limit");
      std::printf("%-28s %10s %10s %10s  %-13s %5s %6s %5s   %s\n", "case", "min", "median", "max",
                  "computed, read", "min", "median", "max", "limit");
    }
    for (const int prompt : options_.prompt) RunPrefill(prompt);
    for (const int depth : options_.depth) {
      const size_t first = decode_.size();
      for (const int batch : options_.batch) RunDecode(depth, batch);
      if (!json_) PrintCurve(std::span(decode_).subspan(first));
    }
    if (json_) PrintJson();
    return {};
  }

 private:
  // A case must fit the model's length and the pages; otherwise it is skipped with a message.
  bool Fits(const std::string& name, int tokens, int sequences) {
    std::string reason;
    if (tokens > session_.plan().engine.max_model_len) {
      reason = std::to_string(tokens) + " tokens, the model's length is " +
               std::to_string(session_.plan().engine.max_model_len);
    } else if (int64_t{runner_.PagesFor(tokens)} * sequences > session_.plan().engine.num_pages) {
      reason = std::to_string(int64_t{runner_.PagesFor(tokens)} * sequences) +
               " KV pages, there are " + std::to_string(session_.plan().engine.num_pages);
    } else {
      return true;
    }
    std::fprintf(stderr, "%s left out: %s\n", name.c_str(), reason.c_str());
    return false;
  }

  void RunPrefill(int prompt) {
    Figure figure{.name = "prefill " + std::to_string(prompt)};
    if (!Fits(figure.name, prompt, 1)) return;
    figure.per_token = cost_.all_tokens.linear + cost_.all_tokens.attention * (prompt + 1) / 2.0 +
                       cost_.wanted_tokens.linear / prompt + cost_.wanted_tokens.attention;
    runner_.Prefill(prompt);
    for (int i = 0; i < options_.repeat; ++i) {
      const double before = machine_.FlopsPerSecond();
      const double seconds = SecondsOf([&] { runner_.Prefill(prompt); });
      figure.Add(seconds, prompt, (before + machine_.FlopsPerSecond()) / 2);
    }
    Print(figure, "FLOP", 1e9, machine_.flops_name());
    prefill_.push_back(std::move(figure));
  }

  void RunDecode(int depth, int batch) {
    const int steps = options_.generate;
    Figure figure{
        .name = "decode depth " + std::to_string(depth) + " batch " + std::to_string(batch),
        .batch = batch};
    if (!Fits(figure.name, depth + steps, batch)) return;
    // A step reads the weights once and each sequence's earlier tokens.
    const double context = depth + (steps + 1) / 2.0;
    figure.per_token = static_cast<double>(session_.model().weight_bytes()) / batch +
                       SequenceBytes(session_.plan(), context);
    figure.flops_per_token = cost_.all_tokens.linear + cost_.wanted_tokens.linear +
                             (cost_.all_tokens.attention + cost_.wanted_tokens.attention) * context;
    runner_.FillTo(depth, batch, steps);
    runner_.Decode(depth, batch, std::min(steps, 4));
    for (int i = 0; i < options_.repeat; ++i) {
      const double flops_before = machine_.FlopsPerSecond(), before = machine_.BytesPerSecond();
      const double seconds = SecondsOf([&] { runner_.Decode(depth, batch, steps); });
      figure.Add(seconds, static_cast<double>(steps) * batch,
                 (before + machine_.BytesPerSecond()) / 2);
      const double flops_probed = (flops_before + machine_.FlopsPerSecond()) / 2;
      figure.arithmetic_ratio.push_back(figure.flops_per_token * figure.tokens_per_s.back() /
                                        flops_probed);
    }
    Print(figure, "B", 1e6, "memory");
    decode_.push_back(std::move(figure));
  }

  // `unit`: of the work, "FLOP" or "B". Faster than memory are weights that a cache holds.
  void Print(const Figure& figure, const char* unit, double scale, const char* probe_name) const {
    if (json_) return;
    const Spread speed = SpreadOf(figure.tokens_per_s), ratio = SpreadOf(figure.ratio);
    const std::string limit = Rate(SpreadOf(figure.probe).median, unit);
    const bool reads_a_cache = unit == std::string_view("B") && ratio.median > 1;
    std::printf("%-28s %10.1f %10.1f %10.1f  %8.4f %c%-4s %5.2f %6.2f %5.2f   %s, %s%s\n",
                figure.name.c_str(), speed.min, speed.median, speed.max, figure.per_token / scale,
                scale == 1e9 ? 'G' : 'M', unit, ratio.min, ratio.median, ratio.max, probe_name,
                limit.c_str(), reads_a_cache ? " (weights in a cache)" : "");
    std::fflush(stdout);
  }

  // How the speed grows with the batch, and which limit it comes near.
  void PrintCurve(std::span<const Figure> figures) const {
    if (figures.size() < 2) return;
    std::printf("\n%8s %10s %20s %20s %20s\n", "batch", "tokens/s", "tokens/s/sequence",
                "share of memory", ("share of " + std::string(machine_.flops_name())).c_str());
    for (const Figure& figure : figures) {
      const double speed = SpreadOf(figure.tokens_per_s).median;
      std::printf("%8d %10.1f %20.1f %20.2f %20.2f\n", figure.batch, speed, speed / figure.batch,
                  SpreadOf(figure.ratio).median, SpreadOf(figure.arithmetic_ratio).median);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void PrintJson() const {
    const SessionPlan& plan = session_.plan();
    const std::string text = JsonObjectOf([&](JsonWriter& json) {
      json.Add("device", plan.device_name).Add("family", plan.summary.config.family);
      json.Add("dtype", NameOf(plan.summary.weight_format));
      json.Add("linear_format", NameOf(plan.summary.linear_format));
      json.Add("kv_cache_dtype", NameOf(plan.layout.codec.dtype));
      json.Add("parameters", plan.summary.num_parameters);
      json.Add("weight_bytes", plan.summary.weight_bytes);
      json.Add("cpu_isa", NameOf(plan.model.isa)).Add("threads", session_.pool().num_threads());
      json.Key("prefill").Begin('[');
      for (const Figure& figure : prefill_) {
        AddFigure(figure, machine_.flops_key(), json);
        json.Add("flops_per_token", figure.per_token).End('}');
      }
      json.End(']').Key("decode").Begin('[');
      for (const Figure& figure : decode_) {
        AddFigure(figure, "read_bytes_per_s", json);
        AddSpread("ratio_to_arithmetic", SpreadOf(figure.arithmetic_ratio), json);
        json.Add("batch", figure.batch).Add("bytes_per_token", figure.per_token);
        json.Add("flops_per_token", figure.flops_per_token).End('}');
      }
      json.End(']');
    });
    std::printf("%s\n", text.c_str());
  }

  // An object, which the caller ends.
  static void AddFigure(const Figure& figure, std::string_view probe_name, JsonWriter& json) {
    json.Begin('{').Add("name", figure.name);
    AddSpread("tokens_per_s", SpreadOf(figure.tokens_per_s), json);
    AddSpread(probe_name, SpreadOf(figure.probe), json);
    AddSpread("ratio_to_probe", SpreadOf(figure.ratio), json);
  }

  const BenchOptions& options_;
  const bool json_;
  ModelSession& session_;
  const StepFlops cost_;
  Runner runner_;
  MachineLimits machine_;
  std::vector<Figure> prefill_, decode_;
};

// The lengths that are asked for, else the defaults that the model has room for.
BenchOptions WithLengths(BenchOptions options, int max_model_len) {
  if (options.prompt.empty()) {
    options.prompt = {std::min(512, max_model_len)};
    if (max_model_len > 512) options.prompt.push_back(std::min(2048, max_model_len));
  }
  if (options.depth.empty()) {
    options.depth = {0};
    if (max_model_len > options.generate)
      options.depth.push_back(std::min(4096, max_model_len - options.generate));
  }
  return options;
}

SessionNeeds BenchNeeds(const BenchOptions& options) {
  SessionNeeds needs;
  needs.step_sequences = needs.sequences = *std::ranges::max_element(options.batch);
  needs.kv = [&options, sequences = needs.step_sequences](int page_size, int max_model_len) {
    const BenchOptions lengths = WithLengths(options, max_model_len);
    int64_t wanted = *std::ranges::max_element(lengths.prompt);
    for (const int depth : lengths.depth) {
      const int64_t tokens = int64_t{depth} + options.generate;
      if (tokens > max_model_len) continue;
      wanted = std::max(wanted, (tokens + page_size - 1) / page_size * page_size * sequences);
    }
    return KvDemand{1, wanted};
  };
  return needs;
}

}  // namespace

Status RunBench(const SessionOptions& options, const BenchOptions& bench, bool json) {
  Result<SessionPlan> plan = PlanSession(options, BenchNeeds(bench));
  if (!plan.ok()) return plan.status();
  const BenchOptions lengths = WithLengths(bench, plan->engine.max_model_len);
  Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                     std::move(plan).value());
  if (!session.ok()) return session.status();
  try {
    return Bench(lengths, json, **session).Run();
  } catch (const DeviceError& error) {
    return error.status();
  }
}

}  // namespace diffserve
