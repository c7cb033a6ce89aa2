// SPDX-License-Identifier: Apache-2.0
// Speed of the CPU kernels as a share of what the machine does at that moment: each figure is the
// median, over rounds, of the ratio to probes run right before and after: of memory's speed, or of
// multiply-adds of the kind that the kernel uses. With one thread the clock
// is the process's CPU time, so other processes disturb it less. Usage: kernel_bench [rounds]
// [threads] [isa] [part of the names to run]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/attention/attention_window.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/machine_probe.h"
#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/selective_scan.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"

namespace diffserve {
namespace {

double Seconds(clockid_t clock, const std::function<void()>& body) {
  timespec start;
  timespec end;
  clock_gettime(clock, &start);
  body();
  clock_gettime(clock, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) +
         static_cast<double>(end.tv_nsec - start.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Bench {
  int rounds;
  CpuIsa isa;
  ThreadPool& pool;
  ReadProbe read_probe;
  clockid_t clock;
  std::string_view filter;

  bool Wants(std::string_view name) const { return name.find(filter) != std::string_view::npos; }
  // `amount` per run of `body`, in bytes or floating-point operations, beside its probe.
  void Report(const char* name, const char* unit, double amount,
              const std::function<double()>& probe, const std::function<void()>& body) {
    if (!Wants(name)) return;
    std::vector<double> ratios;
    std::vector<double> rates;
    body();
    for (int round = 0; round < rounds; ++round) {
      const double before = probe();
      const double rate = amount / Seconds(clock, body);
      rates.push_back(rate);
      ratios.push_back(rate / (0.5 * (before + probe())));
    }
    std::printf("%-44s %8.1f G%s/s  ratio to probe %.3f\n", name, Median(rates) * 1e-9, unit,
                Median(ratios));
    std::fflush(stdout);
  }
  void ReportBytes(const char* name, double bytes, const std::function<void()>& body) {
    const auto probe = [this] {
      double rate = 0;
      const double seconds = Seconds(clock, [&] { rate = read_probe.MeasureBytesPerSecond(pool); });
      return pool.num_threads() == 1 ? ReadProbe::kBytesRead / seconds : rate;
    };
    Report(name, "B", bytes, probe, body);
  }
  double FlopProbe(Arithmetic arithmetic) const {
    double flops_done = 0;
    double rate = 0;
    const double seconds = Seconds(
        clock, [&] { rate = MeasureFlopsPerSecond(arithmetic, isa, pool, &flops_done); });
    return pool.num_threads() == 1 ? flops_done / seconds : rate;
  }
  void ReportFlops(const char* name, double flops, Arithmetic arithmetic,
                   const std::function<void()>& body) {
    Report(name, "FLOP", flops, [&] { return FlopProbe(arithmetic); }, body);
  }
};

std::vector<cpu::PackedLinear> Weights(int count, int n, int k, WeightFormat format, CpuIsa isa,
                                       ThreadPool& pool) {
  std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 251) * 0.004f - 0.5f;
  const LinearPart part{
      .weight = {values.data(), DType::kFloat32, {n, k}}, .row_order = {}, .bias = {}};
  cpu::WeightPacker packer(WeightFormat::kFloat32, format, isa, pool);
  std::vector<cpu::PackedLinear> weights;
  for (int i = 0; i < count; ++i) weights.push_back(packer.Linear(std::span(&part, 1)));
  return weights;
}

void LinearBench(Bench& bench, WeightFormat format) {
  constexpr int kIn = 1536;
  constexpr int kOut = 4096;
  const auto matrix_bytes = static_cast<double>(WeightBytes(format, kOut, kIn));
  const auto weights = Weights(static_cast<int>(200e6 / matrix_bytes), kOut, kIn, format, bench.isa,
                               bench.pool);
  std::vector<float> x(size_t{512} * kIn, 0.25f);
  std::vector<float> y(size_t{512} * kOut);
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}) {
    char name[80];
    std::snprintf(name, sizeof(name), "linear %s %d rows, 200 MB of weights", NameOf(format).data(),
                  rows);
    bench.ReportBytes(name, static_cast<double>(weights.size() * weights[0].weight_bytes()), [&] {
      for (const auto& weight : weights)
        cpu::Linear(weight, {.x = x.data(), .num_tokens = rows, .y = y.data()}, bench.pool);
    });
  }
  for (int rows : {8, 16, 64, 512}) {
    char name[80];
    std::snprintf(name, sizeof(name), "linear %s %d rows", NameOf(format).data(), rows);
    const size_t count = rows == 512 ? 1 : 4;
    bench.ReportFlops(
        name, 2.0 * kIn * kOut * rows * static_cast<double>(count),
        cpu::ArithmeticOf(format, bench.isa), [&] {
          for (size_t i = 0; i < count; ++i)
            cpu::Linear(weights[i], {.x = x.data(), .num_tokens = rows, .y = y.data()}, bench.pool);
        });
  }
}

struct AttentionShape {
  const char* name;
  DiffSpec spec;
};
// The paper's 830M and its plain twin: K and V of the same size, and the same multiply-adds.
constexpr AttentionShape kAttentionShapes[] = {
    {"diff",
     {.num_q1_heads = 8,
      .num_q2_heads = 8,
      .num_kv_groups = 8,
      .k_maps = 2,
      .head_dim = 96,
      .v_dim = 192,
      .lambda_kind = LambdaKind::kPerLayer,
      .sub_norm = SubNorm::kPlain}},
    {"plain", {.num_q1_heads = 16, .num_kv_groups = 16, .head_dim = 96, .v_dim = 96}}};

// Sequences with K and V of their own in as many layers as exceed the caches, if they decode.
class AttentionProblem {
 public:
  AttentionProblem(const DiffSpec& spec, DType dtype, int sequences, int position, int num_tokens,
                   int window = 0)
      : spec_(spec), format_(KvFormat::Of(spec, 16, dtype)), window_(window) {
    const int hidden = FirstSlotSeen(position, WindowSlots(window)) / 16;  // pages that none sees
    const int table = (position + num_tokens + 15) / 16;
    const int pages_each = table - hidden;
    layer_bytes_ = static_cast<size_t>(sequences * pages_each * spec.num_kv_groups) *
                   static_cast<size_t>(format_.PageBytes());
    layers_ = num_tokens > 1 ? 1 : std::clamp<size_t>((size_t{200} << 20) / layer_bytes_, 1, 64);
    kv_ = Buffer(layers_ * layer_bytes_);
    std::memset(kv_.data(), 0, kv_.size_bytes());  // memory of its own, or all reads would be of
                                                   // one page
    pages_.resize(static_cast<size_t>(sequences * table), -1);
    const auto num_pages = static_cast<size_t>(sequences * pages_each);
    for (size_t i = 0, page = 0; i < pages_.size(); ++i) {
      if (static_cast<int>(i) % table >= hidden)
        pages_[i] = static_cast<int32_t>((page++ * 7919) % num_pages);
    }
    for (int i = 0; i < sequences; ++i)
      rows_.push_back({i * num_tokens, num_tokens, position, pages_.data() + i * table});
    const auto floats = [&](int width) {
      return std::vector<float>(static_cast<size_t>(sequences * num_tokens * width), 0.1f);
    };
    q_ = floats(spec.q_width());
    out_ = floats(spec.out_width());
  }

  double kv_bytes() const { return static_cast<double>(kv_.size_bytes()); }
  void Run(CpuIsa isa, ThreadPool& pool) {
    for (size_t layer = 0; layer < layers_; ++layer) {
      cpu::DiffAttention({.spec = spec_,
                          .batch = rows_,
                          .kv = {kv_.as<std::byte>() + layer * layer_bytes_, format_},
                          .q = q_.data(),
                          .out = out_.data(),
                          .scale = 0.1f,
                          .lambda = 0.3f,
                          .window = window_},
                         workspace_, isa, pool);
    }
  }

 private:
  DiffSpec spec_;
  KvFormat format_;
  int window_;
  size_t layers_ = 0;
  size_t layer_bytes_ = 0;
  Buffer kv_;
  std::vector<int32_t> pages_;
  std::vector<SequenceTokens> rows_;
  std::vector<float> q_;
  std::vector<float> out_;
  cpu::AttentionWorkspace workspace_;
};

// One decode through a window, at depths of which the window is all, or a part.
void WindowBench(Bench& bench, const AttentionShape& shape, DType dtype) {
  constexpr int kWindow = 512;
  char name[80];
  for (int depth : {kWindow, 4096, 4200}) {
    std::snprintf(name, sizeof(name), "attention %s %s decode 1 x %d, window %d", shape.name,
                  NameOf(dtype).data(), depth, kWindow);
    if (!bench.Wants(name)) continue;
    AttentionProblem problem(shape.spec, dtype, 1, depth - 1, 1, kWindow);
    bench.ReportBytes(name, problem.kv_bytes(), [&] { problem.Run(bench.isa, bench.pool); });
  }
}

void AttentionBench(Bench& bench, const AttentionShape& shape, DType dtype) {
  const DiffSpec& spec = shape.spec;
  char name[80];
  for (int depth : {128, 1024, 4096, 16384, 65536}) {
    for (int sequences : {1, 4, 16}) {
      if (depth * sequences > 65536) continue;
      std::snprintf(name, sizeof(name), "attention %s %s decode %d x %d", shape.name,
                    NameOf(dtype).data(), sequences, depth);
      if (!bench.Wants(name)) continue;
      AttentionProblem problem(spec, dtype, sequences, depth - 1, 1);
      bench.ReportBytes(name, problem.kv_bytes(), [&] { problem.Run(bench.isa, bench.pool); });
    }
  }
  WindowBench(bench, shape, dtype);
  constexpr struct {
    int position, rows;
  } kChunks[] = {{0, 512}, {1536, 512}, {7936, 256}, {16128, 256}};
  for (const auto& [position, rows] : kChunks) {
    std::snprintf(name, sizeof(name), "attention %s %s prefill %d from %d", shape.name,
                  NameOf(dtype).data(), rows, position);
    if (!bench.Wants(name)) continue;
    AttentionProblem problem(spec, dtype, 1, position, rows);
    const double pairs = rows * (position + 0.5 * rows);
    const double flops = pairs * 2 * (spec.q_width() + spec.out_width());
    const auto run = [&] { problem.Run(bench.isa, bench.pool); };
    const bool has_dots = bench.isa == CpuIsa::kAvx512Bf16 && dtype == DType::kBFloat16;
    const bool has_codes = KvFormat::Of(spec, 16, dtype).codec.scale_bits > 0;
    const Arithmetic arithmetic = has_codes  ? Arithmetic::kInt8Dot
                                  : has_dots ? Arithmetic::kBFloat16Dot
                                             : Arithmetic::kFma;
    bench.ReportFlops(name, flops, arithmetic, run);
  }
}

// Tokens drawn from rows of logits that are close to a normal distribution, as a model's are.
void SampleBench(Bench& bench) {
  constexpr int kVocab = 100288;
  constexpr int kRows = 16;
  std::vector<float> logits(size_t{kRows} * kVocab);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (float& logit : logits) logit = normal(random);
  const struct {
    const char* name;
    SamplingParams params;
  } kCases[] = {{"greedy", {.temperature = 0}},
                {"temperature", {.temperature = 0.8f}},
                {"top_p", {.temperature = 0.8f, .top_p = 0.95f}},
                {"top_k, top_p, 20 logprobs",
                 {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .num_logprobs = 20}}};
  for (const auto& [title, params] : kCases) {
    char name[80];
    std::snprintf(name, sizeof(name), "sample %d rows, %s", kRows, title);
    std::vector<LogitAdjustment> adjustments;
    std::vector<SampleTask> tasks;
    for (int row = 0; row < kRows; ++row) {
      DrawContext context;
      context.params = &params;
      context.vocab_size = kVocab;
      context.sequence = static_cast<uint64_t>(row);
      tasks.push_back(PackDraw(context, &adjustments));
    }
    std::vector<SampledToken> sampled(kRows);
    bench.ReportBytes(name, static_cast<double>(logits.size() * sizeof(float)), [&] {
      cpu::Sample({.logits = logits.data(),
                   .vocab_size = kVocab,
                   .num_rows = kRows,
                   .tasks = tasks.data(),
                   .adjustments = adjustments.data(),
                   .sampled = sampled.data()},
                  bench.isa, bench.pool);
    });
  }
}

// A Mamba layer of Phi-4-mini-flash: sequences with states of their own in as many layers as exceed
// the caches, if they decode.
class MambaProblem {
 public:
  MambaProblem(int sequences, int num_tokens) {
    layers_ = num_tokens > 1 ? 1 : std::max<size_t>(1, 256 / static_cast<size_t>(sequences));
    const auto rows = static_cast<size_t>(sequences * num_tokens);
    for (int i = 0; i < sequences; ++i) sequences_.push_back({i * num_tokens, num_tokens, i, i});
    batch_ = {sequences_.data(), sequences, sequences * num_tokens};
    states_.assign(layers_ * static_cast<size_t>(sequences) * kStates * kChannels, 0.1f);
    rows_.assign(static_cast<size_t>(sequences) * (kWidth - 1) * kChannels, 0.1f);
    x_.assign(rows * 2 * kChannels, 0.3f);
    dt_.assign(rows * kChannels, -2.0f);
    bc_.assign(rows * 2 * kStates, 0.2f);
    out_.assign(rows * kChannels, 0.0f);
    per_channel_.assign(kChannels, 0.1f);
    rates_.assign(size_t{kStates} * kChannels, -1.0f);
  }

  double updates() const { return double{kStates} * kChannels * batch_.num_tokens; }
  // Read and written.
  double state_bytes() const { return 2.0 * sizeof(float) * static_cast<double>(states_.size()); }
  double conv_bytes() const { return 2.0 * sizeof(float) * static_cast<double>(out_.size()); }

  void Scan(CpuIsa isa, ThreadPool& pool) {
    const size_t layer_floats = states_.size() / layers_;
    for (size_t layer = 0; layer < layers_; ++layer) {
      cpu::SelectiveScan({.batch = batch_,
                          .x = x_.data(),
                          .dt = dt_.data(),
                          .dt_bias = per_channel_.data(),
                          .b = bc_.data(),
                          .c = bc_.data() + kStates,
                          .bc_stride = 2 * kStates,
                          .rates = rates_.data(),
                          .skip = per_channel_.data(),
                          .z = x_.data() + kChannels,
                          .z_stride = 2 * kChannels,
                          .out = out_.data(),
                          .state = {states_.data() + layer * layer_floats, kStates * kChannels},
                          .channels = kChannels,
                          .states = kStates},
                         isa, pool);
    }
  }
  void Conv(CpuIsa isa, ThreadPool& pool) {
    cpu::CausalConv({.batch = batch_,
                     .x = x_.data(),
                     .x_stride = 2 * kChannels,
                     .taps = rates_.data(),
                     .bias = per_channel_.data(),
                     .out = out_.data(),
                     .state = {rows_.data(), (kWidth - 1) * kChannels},
                     .channels = kChannels,
                     .width = kWidth},
                    isa, pool);
  }

 private:
  static constexpr int kChannels = 5120, kStates = 16, kWidth = 4;
  size_t layers_ = 1;
  std::vector<StateSequence> sequences_;
  StateBatch batch_;
  std::vector<float> states_, rows_, x_, dt_, bc_, out_, per_channel_, rates_;
};

void MambaBench(Bench& bench) {
  char name[80];
  for (int tokens : {64, 512}) {
    MambaProblem problem(1, tokens);
    std::snprintf(name, sizeof(name), "scan prefill %d, of multiply-adds", tokens);
    bench.Report(
        name, "update", problem.updates(), [&] { return 0.5 * bench.FlopProbe(Arithmetic::kFma); },
        [&] { problem.Scan(bench.isa, bench.pool); });
    std::snprintf(name, sizeof(name), "convolution prefill %d", tokens);
    bench.ReportBytes(name, problem.conv_bytes(), [&] { problem.Conv(bench.isa, bench.pool); });
  }
  for (int sequences : {1, 16}) {
    MambaProblem problem(sequences, 1);
    std::snprintf(name, sizeof(name), "scan decode %d", sequences);
    bench.ReportBytes(name, problem.state_bytes(), [&] { problem.Scan(bench.isa, bench.pool); });
  }
}

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  ThreadPool pool({.num_threads = argc > 2 ? std::atoi(argv[2]) : 0});
  const CpuIsa isa = ChooseCpuIsa(argc > 3 ? argv[3] : "auto").value();
  const clockid_t clock = pool.num_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  Bench bench{rounds, isa, pool, ReadProbe(isa), clock, argc > 4 ? argv[4] : ""};
  std::printf("%d threads, %s; probes now: %.1f GB/s, %.1f GFLOP/s\n", pool.num_threads(),
              NameOf(isa).data(), bench.read_probe.MeasureBytesPerSecond(pool) * 1e-9,
              MeasureFlopsPerSecond(Arithmetic::kFma, isa, pool) * 1e-9);
  if (bench.filter.empty() || bench.filter.starts_with("linear")) {
    for (WeightFormat format : kWeightFormats) LinearBench(bench, format);
  }
  for (DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kInt8KInt4V, DType::kInt4}) {
    for (const AttentionShape& shape : kAttentionShapes) AttentionBench(bench, shape, dtype);
  }
  SampleBench(bench);
  MambaBench(bench);
  return 0;
}

}  // namespace
}  // namespace diffserve

int main(int argc, char** argv) { return diffserve::Main(argc, argv); }
