// Speed of the CPU kernels as a share of what the machine does at that moment: each figure is the
// median, over rounds, of the ratio to probes run right before and after. With one thread the clock
// is the process's CPU time, so other processes disturb it less. Usage: kernel_bench [rounds]
// [threads] [isa] [part of the names to run]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/machine_probe.h"
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

  // `amount` per run of `body`, in bytes or floating-point operations, beside its probe.
  void Report(const char* name, const char* unit, double amount,
              const std::function<double()>& probe, const std::function<void()>& body) {
    if (std::string_view(name).find(filter) == std::string_view::npos) return;
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
  void ReportFlops(const char* name, double flops, const std::function<void()>& body) {
    const auto probe = [this] {
      double flops_done = 0;
      double rate = 0;
      const double seconds = Seconds(
          clock, [&] { rate = MeasureFmaFlopsPerSecond(isa, pool, &flops_done); });
      return pool.num_threads() == 1 ? flops_done / seconds : rate;
    };
    Report(name, "FLOP", flops, probe, body);
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
  const auto weights = Weights(format == WeightFormat::kFloat32 ? 8 : 16, kOut, kIn, format,
                               bench.isa,
                               bench.pool);  // 200 MB
  std::vector<float> x(size_t{512} * kIn, 0.25f);
  std::vector<float> y(size_t{512} * kOut);
  for (int rows : {1, 2, 4, 6, 8, 16}) {
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
    bench.ReportFlops(name, 2.0 * kIn * kOut * rows * static_cast<double>(count), [&] {
      for (size_t i = 0; i < count; ++i)
        cpu::Linear(weights[i], {.x = x.data(), .num_tokens = rows, .y = y.data()}, bench.pool);
    });
  }
}

void AttentionBench(Bench& bench, DType dtype, int position, int num_tokens) {
  const DiffSpec spec = {.num_q1_heads = 8,
                         .num_q2_heads = 8,
                         .num_kv_groups = 8,
                         .k_maps = 2,
                         .head_dim = 96,
                         .v_dim = 192,
                         .lambda_kind = LambdaKind::kPerLayer,
                         .sub_norm = SubNorm::kPlain};
  constexpr int kLayers = 8;
  const KvFormat format = KvFormat::Of(spec, 16, dtype);
  const int num_pages = (position + num_tokens + 15) / 16;
  const int copies = num_tokens == 1 ? kLayers : 1;
  Buffer kv(static_cast<size_t>(copies) * static_cast<size_t>(num_pages) * 8 *
            static_cast<size_t>(format.PageBytes()));
  std::memset(kv.data(), 0, kv.size_bytes());  // memory of its own, or all reads would be of one
                                               // page
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  for (size_t i = 0; i < pages.size(); ++i)
    pages[i] = static_cast<int32_t>((i * 7919) % pages.size());
  std::vector<float> q(static_cast<size_t>(num_tokens) * static_cast<size_t>(spec.q_width()), 0.1f);
  std::vector<float> out(static_cast<size_t>(num_tokens) * static_cast<size_t>(spec.out_width()));
  const SequenceTokens rows{0, num_tokens, position, pages.data()};
  const auto run = [&] {
    for (int layer = 0; layer < copies; ++layer) {
      const PagedKv part{kv.as<std::byte>() + static_cast<size_t>(layer) * kv.size_bytes() /
                                                  static_cast<size_t>(copies),
                         format};
      cpu::DiffAttention({.spec = spec,
                          .batch = {&rows, 1},
                          .kv = part,
                          .q = q.data(),
                          .out = out.data(),
                          .scale = 0.1f,
                          .lambda = 0.3f},
                         bench.isa, bench.pool);
    }
  };
  char name[80];
  std::snprintf(name, sizeof(name), "attention %s %d rows from %d", NameOf(dtype).data(),
                num_tokens, position);
  if (num_tokens == 1) {
    bench.ReportBytes(name, static_cast<double>(kv.size_bytes()), run);
  } else {
    const double pairs = num_tokens * (position + 0.5 * num_tokens);
    bench.ReportFlops(name, pairs * 2.0 * 2 * (spec.head_dim + spec.v_dim) * spec.num_q1_heads,
                      run);
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
              MeasureFmaFlopsPerSecond(isa, pool) * 1e-9);
  for (WeightFormat format : kFloatFormats) LinearBench(bench, format);
  for (WeightFormat format : kQuantizedFormats) LinearBench(bench, format);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    AttentionBench(bench, dtype, 4095, 1);
    AttentionBench(bench, dtype, 0, 512);
  }
  return 0;
}

}  // namespace
}  // namespace diffserve

int main(int argc, char** argv) { return diffserve::Main(argc, argv); }
