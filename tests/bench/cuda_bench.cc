// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/graph.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/read_stream_cuda.h"
#include "tests/bench/cuda_bench_few_rows.h"
#include "tests/bench/cuda_bench_host.h"
#include "tests/bench/cuda_bench_kernels.h"
#include "tests/bench/cuda_bench_problem.h"
#include "tests/bench/cuda_bench_prompts.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve::bench {
namespace {

using testing::DiffLlamaSpec;
using testing::PlainSpec;
using testing::V2Spec;

constexpr double kDecodeBytesMin = 256e6;  // of KV, for a share of the read bandwidth
constexpr double kCacheMultiple = 4;  // that the copies of one problem's pages exceed the L2 cache
                                      // by

class Bench {
 public:
  Bench(const cuda::DeviceInfo& device, const cuda::Stream& stream, bool smoke,
        const std::string& only)
      : device_(device), stream_(stream), timer_(stream, smoke), smoke_(smoke), only_(only) {}

  void Run() {
    MakeCalibration();
    Launches();
    PageReadSpeeds();
    const FewRowsFigures products = {
        .device = device_,
        .timer = timer_,
        .library = library_.get(),
        .read_gb_per_s = figures_.front().second,
        .wants = [&](const std::string& name) { return Wants(name); },
        .add = [&](const std::string& name, double value) { Add(name, value); }};
    MeasureFewRows(products);
    MeasurePromptProducts(products);
    Host();
    DecodeShares();
    for (const auto& [name, spec] : {std::pair{"v1_d128", DiffLlamaSpec(4, 1, 128)},
                                     {"v1_d64", DiffLlamaSpec(1, 1, 64)},
                                     {"v2_d128", V2Spec(4, 1, 128)},
                                     {"plain_d64", PlainSpec(4, 1, 64)}}) {
      BlockSpeed(name, spec);
    }
    ItemEnd("v1_d128_heads16_groups4_batch64_length2048", DiffLlamaSpec(16, 4, 128), 64);
    ItemEnd("v2_d64_heads32_groups8_batch64_length2048", V2Spec(32, 8, 64), 64);
    for (int splits : {4, 16, 64}) LastBlock(splits);
    for (int head_dim : {128, 64}) AgainstPlainCalls(head_dim);
    for (const auto& [name, spec] :
         {std::pair{"_us_v1_d128_heads16_groups4", DiffLlamaSpec(16, 4, 128)},
          {"_us_v1_d128_heads12_groups12", DiffLlamaSpec(12, 12, 128)}}) {
      const std::string at_4096 = std::string(name) + "_batch1_length4096";
      OneOperation("op" + at_4096, spec);
      OneOperation("op_early" + at_4096, spec, cuda::kSplitsByLength, /*starts_early=*/true);
      for (int split : {256, 512, 1024})
        OneOperation("op_split" + std::to_string(split) + name, spec, split);
    }
    for (int head_dim : {128, 64}) {
      const DiffSpec spec = DiffLlamaSpec(8 * 128 / head_dim, 8 * 128 / head_dim, head_dim);
      const std::string name = "prefill_v1_d" + std::to_string(head_dim);
      // 2,048 rows that attend to 16,384 slots each on average; the kernel has no form without a
      // causal mask.
      Prefill(name + "_full_2048_rows_after_15360", spec,
              {.position = 15360, .rows = 2048, .is_decode = false});
      Prefill(name + "_causal_16384", spec, {.rows = 16384, .is_decode = false});
    }
    PromptPages();
  }

  // These figures only.
  void Host() {
    if (!Wants("host")) return;
    AddHostFigures(smoke_, [&](const std::string& name, double value) { Add(name, value); });
  }

  void Print() const {
    std::printf("{\n  \"device\": {\"name\": \"%s\", \"compute_capability\": %d, \"num_sms\": %d, ",
                device_.name.c_str(), device_.compute_capability, device_.num_sms);
    std::printf("\"memory_bytes\": %zu, \"l2_bytes\": %zu},\n", device_.memory_bytes,
                device_.l2_bytes);
    std::printf("  \"smoke\": %s,\n  \"figures\": {", smoke_ ? "true" : "false");
    for (size_t i = 0; i < figures_.size(); ++i) {
      std::printf("%s\n    \"%s\": ", i == 0 ? "" : ",", figures_[i].first.c_str());
      if (smoke_) {
        std::printf("null");
      } else {
        std::printf("%.6g", figures_[i].second);
      }
    }
    std::printf("\n  }\n}\n");
  }

 private:
  bool Wants(const std::string& name) const { return name.starts_with(only_); }
  void Add(const std::string& name, double value) { figures_.emplace_back(name, value); }

  void MakeCalibration() {
    read_bytes_ = smoke_ ? size_t{1} << 16 : size_t{2} << 30;
    read_data_ = Must(cuda::DeviceBuffer::Allocate(read_bytes_));
    sink_ = Must(cuda::DeviceBuffer::Allocate(sizeof(uint32_t)));
    Must(cuda::FillBytes(read_data_, std::byte{1}, stream_));
    double best = 0;
    for (int per_sm : {2, 4, 8, 16}) {
      const int grid = per_sm * device_.num_sms;
      const double seconds = timer_.Seconds([&](int) { Read(grid); });
      if (static_cast<double>(read_bytes_) / seconds <= best) continue;
      best = static_cast<double>(read_bytes_) / seconds;
      read_grid_ = grid;
    }
    Add("hbm_read_gb_per_s", best * 1e-9);

    Result<std::unique_ptr<cuda::MatrixLibrary>> library = cuda::MatrixLibrary::Open();
    if (!library.ok()) {
      std::fprintf(stderr, "cuda_bench: no figure of cuBLASLt: %s\n",
                   library.status().message().c_str());
      return;
    }
    library_ = std::move(*library);
    product_width_ = smoke_ ? 16 : 8192;
    const size_t elements = static_cast<size_t>(product_width_) *
                            static_cast<size_t>(product_width_);
    for (cuda::DeviceBuffer& matrix : product_)
      matrix = Must(cuda::DeviceBuffer::Allocate(2 * elements));
    for (int i = 0; i < 2; ++i) {
      Must(FillRandom(product_[i].as<uint16_t>(), static_cast<size_t>(product_width_),
                      product_width_, i * product_width_, stream_.handle()));
    }
    Add("cublas_bf16_8192_tflop_per_s",
        ProductFlops() / timer_.Seconds([&](int) { Product(); }) * 1e-12);
  }

  void Read(int grid) {
    Must(cuda::ReadStream(read_data_.data(), read_bytes_, grid, sink_.as<uint32_t>(), stream_));
  }
  double ProductFlops() const { return 2.0 * std::pow(product_width_, 3); }
  void Product() {
    cuda::MatrixProduct product;
    product.weight = product_[0].data();
    product.in_features = product.out_features = product.num_rows = product_width_;
    product.x_stride = product_width_;
    product.x = product_[1].data();
    product.y = product_[2].data();
    Must(library_->Multiply(product, stream_));
  }

  // Kernels that do nothing, one after another: from the stream, and in a graph.
  void Launches() {
    const int count = smoke_ ? 2 : 100;
    const auto queue = [&] {
      for (int i = 0; i < count; ++i) Must(LaunchNothing(stream_.handle()));
      return Status();
    };
    Add("launch_us", timer_.Seconds([&](int) { Must(queue()); }) / count * 1e6);
    const cuda::Graph graph = Must(cuda::Graph::Capture(stream_, queue));
    Add("launch_in_graph_us",
        timer_.Seconds([&](int) { Must(graph.Launch(stream_)); }) / count * 1e6);
  }

  // Enough copies of the pages that no run finds its own in the L2 cache.
  ProblemShape Cold(const DiffSpec& spec, ProblemShape shape) const {
    if (smoke_) {
      shape.batch = std::min(shape.batch, 2);
      shape.position = std::min(shape.position, 70);
      shape.rows = std::min(shape.rows, 9);
    }
    const double needed = kCacheMultiple * static_cast<double>(device_.l2_bytes) /
                          Problem::BytesOfOneCopy(spec, shape);
    shape.copies = smoke_ ? 2 : std::clamp(static_cast<int>(std::ceil(needed)), 1, 256);
    return shape;
  }

  // Page ids in shuffled order; a page is one bulk copy. What this does not reach, decode attention
  // cannot reach either.
  void PageReadSpeeds() {
    if (device_.compute_capability < cuda::kHopperComputeCapability) return;
    constexpr uint32_t kPageBytes = 65536;  // of (128, 256, 2) in bfloat16
    std::vector<int32_t> pages(read_bytes_ / kPageBytes);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
    const cuda::DeviceBuffer table = Must(
        cuda::DeviceBuffer::Allocate(pages.size() * sizeof(int32_t)));
    Must(cuda::CopyToDevice(std::as_bytes(std::span(pages)), table, 0, stream_));
    for (int stages : {1, 2, 3}) {
      const std::string name = "page_read_gb_per_s_stages" + std::to_string(stages);
      if (!Wants(name)) continue;
      const PageReads reads = {read_data_.as<std::byte>(), table.as<int32_t>(),
                               static_cast<int>(pages.size()), kPageBytes, stages};
      const double seconds = timer_.Seconds(
          [&](int) { Must(ReadPages(reads, device_.num_sms, stream_.handle())); });
      Add(name, static_cast<double>(read_bytes_) / seconds * 1e-9);
    }
    Must(stream_.Synchronize());
  }

  // How fast one thread block streams: one item of 2,048 slots takes longer than one of 1,024.
  void BlockSpeed(const std::string& shape_name, const DiffSpec& spec) {
    const std::string name = "decode_block_gb_per_s_" + shape_name;
    if (!Wants(name)) return;
    const int split = cuda::kSplitSlotsMax;
    const Problem whole(spec, Cold(spec, {.position = split - 1, .split_slots = split}), stream_);
    const Problem half(spec, Cold(spec, {.position = split / 2 - 1, .split_slots = split}),
                       stream_);
    const auto seconds = timer_.Rounds(
        {[&](int run) { whole.Queue(run); }, [&](int run) { half.Queue(run); }});
    Add(name,
        (whole.KvBytes() - half.KvBytes()) / (Median(seconds[0]) - Median(seconds[1])) * 1e-9);
  }

  // What an item's end costs a multiprocessor: the same slots in items of 256 and of 2,048.
  void ItemEnd(const std::string& shape_name, const DiffSpec& spec, int batch) {
    const std::string name = "decode_item_end_us_" + shape_name;
    if (!Wants(name)) return;
    const auto problem = [&](int split) {
      return Problem(spec, Cold(spec, {.batch = batch, .position = 2047, .split_slots = split}),
                     stream_);
    };
    const Problem small = problem(256), large = problem(2048);
    const auto seconds = timer_.Rounds(
        {[&](int run) { small.Queue(run); }, [&](int run) { large.Queue(run); }});
    const double items = 7.0 * batch * spec.num_kv_groups / device_.num_sms;
    Add(name, (Median(seconds[0]) - Median(seconds[1])) / items * 1e6);
  }

  // What the merge of a row's splits adds: a sequence of `splits` items against as many sequences
  // of one item each.
  void LastBlock(int splits) {
    const std::string name = "decode_last_block_us_splits" + std::to_string(splits);
    if (!Wants(name)) return;
    const DiffSpec spec = DiffLlamaSpec(4, 1, 128);
    const Problem merged(spec, Cold(spec, {.position = 256 * splits - 1, .split_slots = 256}),
                         stream_);
    const Problem separate(spec, Cold(spec, {.batch = splits, .position = 255}), stream_);
    const auto seconds = timer_.Rounds(
        {[&](int run) { merged.Queue(run); }, [&](int run) { separate.Queue(run); }});
    Add(name, (Median(seconds[0]) - Median(seconds[1])) * 1e6);
  }

  void DecodeShares() {
    DecodeShare("v1_d128_heads12_groups12_batch16_length4096", DiffLlamaSpec(12, 12, 128),
                {.batch = 16, .position = 4095});
    DecodeShare("v1_d128_heads16_groups4_batch64_length2048", DiffLlamaSpec(16, 4, 128),
                {.batch = 64, .position = 2047});
    DecodeShare("v1_d128_heads16_groups4_batch1_length131072", DiffLlamaSpec(16, 4, 128),
                {.batch = 1, .position = 131071});
    DecodeShare("v1_d64_heads16_groups16_batch16_length8192", DiffLlamaSpec(16, 16, 64),
                {.batch = 16, .position = 8191});
    DecodeShare("v2_d128_heads32_groups8_batch32_length4096", V2Spec(32, 8, 128),
                {.batch = 32, .position = 4095});
    DecodeShare("v2_d64_heads32_groups8_batch64_length4096", V2Spec(32, 8, 64),
                {.batch = 64, .position = 4095});
    DecodeShare("plain_d128_heads32_groups8_batch32_length4096", PlainSpec(32, 8, 128),
                {.batch = 32, .position = 4095});
    DecodeShare("plain_d64_heads32_groups8_batch64_length4096", PlainSpec(32, 8, 64),
                {.batch = 64, .position = 4095});
    // The portable kernel, whose warps fetch strips: what the warp that fetches pages brings. And
    // twice the queries, which are two tiles of columns.
    DecodeShare("v1_d128_heads16_groups4_batch64_length2048", DiffLlamaSpec(16, 4, 128),
                {.batch = 64, .position = 2047, .allow_bulk_copies = false}, "strips_");
    DecodeShare("v1_d128_heads16_groups4_batch64_length2048", DiffLlamaSpec(16, 4, 128),
                {.batch = 64, .position = 2046, .rows = 2}, "rows2_");
    // More of the same: what a launch costs beside its bytes falls out.
    for (int batch : {128, 256}) {
      DecodeShare("v1_d128_heads16_groups4_batch" + std::to_string(batch) + "_length2048",
                  DiffLlamaSpec(16, 4, 128), {.batch = batch, .position = 2047}, "long_");
    }
    for (const auto& [name, pages] :
         {std::pair{"int8_", DType::kInt8}, {"int4_", DType::kInt4}, {"fp8_", DType::kFp8E4M3}}) {
      DecodeShare("v1_d128_heads16_groups4_batch256_length2048", DiffLlamaSpec(16, 4, 128),
                  {.batch = 256, .position = 2047, .pages = pages}, name);
    }
  }

  void DecodeShare(const std::string& shape_name, const DiffSpec& spec, const ProblemShape& shape,
                   const std::string& kind = "") {
    const std::string name = "decode_" + kind + "share_" + shape_name;
    if (!Wants(name)) return;
    const Problem problem(spec, Cold(spec, shape), stream_);
    if (!smoke_ && problem.KvBytes() < kDecodeBytesMin)
      Must(Status(StatusCode::kInternal, name + " has too little KV"));
    const auto seconds = timer_.Rounds(
        {[&](int run) { problem.Queue(run); }, [&](int) { Read(read_grid_); }});
    const double read_bytes = static_cast<double>(read_bytes_);
    Add(name, Speedup(seconds[0], seconds[1]) * problem.KvBytes() / read_bytes);
  }

  // The same K, V and q in pages of the layouts that plain attention needs: (K1 | K2) x (left |
  // right half of V), or K1, K2 each with V.
  // Their concatenation, subtraction and norm, which the fused call includes, are left out of the
  // calls' time.
  void AgainstPlainCalls(int head_dim) {
    const std::string name = "_v1_d" + std::to_string(head_dim) + "_batch16_length4096";
    const std::string over_four = "decode_over_four_calls" + name,
                      over_two = "decode_over_two_calls" + name;
    if (!Wants(over_four) && !Wants(over_two)) return;
    const int heads = 12 * 128 / head_dim;
    DiffSpec fused_spec = DiffLlamaSpec(heads, heads, head_dim);
    const DiffSpec four_spec = PlainSpec(heads, heads, head_dim);
    DiffSpec two_spec = four_spec;
    two_spec.v_dim = 2 * head_dim;
    const ProblemShape shape = Cold(fused_spec, {.batch = 16, .position = 4095});
    const Problem fused(fused_spec, shape, stream_);
    fused_spec.sub_norm = SubNorm::kNone;
    const Problem unnormed(fused_spec, shape, stream_);
    std::vector<std::unique_ptr<Problem>> two, four;
    for (int map = 0; map < 2; ++map) {
      ProblemShape part = shape;
      part.first_map = map;
      part.first_q_column = map * heads * head_dim;
      two.push_back(std::make_unique<Problem>(two_spec, part, stream_));
      for (int half = 0; half < 2; ++half) {
        part.first_v_column = half * head_dim;
        four.push_back(std::make_unique<Problem>(four_spec, part, stream_));
      }
    }
    const auto all = [](const std::vector<std::unique_ptr<Problem>>& problems) {
      return [&problems](int run) {
        for (const std::unique_ptr<Problem>& problem : problems) problem->Queue(run);
      };
    };
    const auto seconds = timer_.Rounds({[&](int run) { fused.Queue(run); }, all(four), all(two)});
    CheckSameResult(unnormed, two, four);
    Add(over_four, Speedup(seconds[0], seconds[1]));
    Add(over_two, Speedup(seconds[0], seconds[2]));
  }

  static void CheckSameResult(const Problem& fused,
                              const std::vector<std::unique_ptr<Problem>>& two,
                              const std::vector<std::unique_ptr<Problem>>& four) {
    fused.Queue(0);
    for (const auto& problem : two) problem->Queue(0);
    for (const auto& problem : four) problem->Queue(0);
    const std::vector<uint16_t> out = fused.Out();
    std::vector<std::vector<uint16_t>> parts;
    for (const auto& problem : two) parts.push_back(problem->Out());
    for (const auto& problem : four) parts.push_back(problem->Out());
    const size_t d = static_cast<size_t>(fused.spec().head_dim);
    float worst = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto value = [&](size_t part, size_t at) { return BFloat16ToFloat(parts[part][at]); };
      const size_t half = i / d % 2, in_half = i / (2 * d) * d + i % d;
      const float by_two = value(0, i) - 0.5f * value(1, i);
      const float by_four = value(2 + half, in_half) - 0.5f * value(4 + half, in_half);
      worst = std::max({worst, std::abs(BFloat16ToFloat(out[i]) - by_two),
                        std::abs(BFloat16ToFloat(out[i]) - by_four)});
    }
    if (!(worst < 0.02f))
      Must(Status(StatusCode::kInternal,
                  "the plain calls' result is another one: " + std::to_string(worst)));
  }

  // Operations of a model's layers one after another in a graph, each with pages of its own.
  // starts_early: each before the one before it ends.
  void OneOperation(const std::string& name, const DiffSpec& spec,
                    int split_slots = cuda::kSplitsByLength, bool starts_early = false) {
    if (!Wants(name)) return;
    const ProblemShape shape = Cold(spec,
                                    {.batch = 1, .position = 4095, .split_slots = split_slots});
    const Problem problem(spec, shape, stream_);
    const int count = std::max(shape.copies, smoke_ ? 2 : 32);
    const cuda::Graph graph = Must(cuda::Graph::Capture(stream_, [&] {
      for (int i = 0; i < count; ++i) problem.Queue(i, starts_early && i > 0);
      return Status();
    }));
    Add(name, timer_.Seconds([&](int) { Must(graph.Launch(stream_)); }) / count * 1e6);
  }

  // 12 d operations a pair: two maps of Q K with d, and of P V with 2 d.
  void Prefill(const std::string& name, const DiffSpec& spec, const ProblemShape& shape) {
    if (!Wants(name)) return;
    ProblemShape small = shape;
    if (smoke_)
      small.position = std::min(shape.position, 64), small.rows = std::min(shape.rows, 33);
    const Problem problem(spec, small, stream_);
    std::vector<Work> works = {[&](int run) { problem.Queue(run); }};
    if (library_ != nullptr) works.push_back([&](int) { Product(); });
    const auto seconds = timer_.Rounds(works);
    const double flops = 12.0 * spec.head_dim * problem.Pairs();
    Add(name + "_tflop_per_s", flops / Median(seconds[0]) * 1e-12);
    if (library_ != nullptr)
      Add(name + "_of_cublas", Speedup(seconds[0], seconds[1]) * flops / ProductFlops());
  }

  // What a layer of Diff-3B does with the pages of a prompt of 2,048 tokens, by their format:
  // rotation and append, and attention with what comes before it.
  void PromptPages() {
    const DiffSpec spec = DiffLlamaSpec(12, 12, 128);
    for (const DType pages : cuda::kPageTypes) {
      const std::string format = std::string(NameOf(pages)) + "_us";
      const std::string append = "prompt_append_" + format, attend = "prompt_attention_" + format;
      if (!Wants(append) && !Wants(attend)) continue;
      const Problem problem(spec, {.rows = smoke_ ? 70 : 2048, .is_decode = false, .pages = pages},
                            stream_);
      const auto seconds = timer_.Rounds(
          {[&](int run) { problem.QueueAppend(run); }, [&](int run) { problem.Queue(run); }});
      Add(append, Median(seconds[0]) * 1e6);
      Add(attend, Median(seconds[1]) * 1e6);
    }
  }

  const cuda::DeviceInfo& device_;
  const cuda::Stream& stream_;
  Timer timer_;
  bool smoke_;
  std::string only_;
  std::vector<std::pair<std::string, double>> figures_;
  cuda::DeviceBuffer read_data_, sink_;
  size_t read_bytes_ = 0;
  int read_grid_ = 1;
  std::unique_ptr<cuda::MatrixLibrary> library_;
  int product_width_ = 0;
  cuda::DeviceBuffer product_[3];
};

}  // namespace

int RunCudaBench(int argc, char** argv) {
  const bool smoke = argc == 2 && std::strcmp(argv[1], "--smoke") == 0;
  const bool host = argc == 2 && std::strcmp(argv[1], "--host") == 0;
  const char* const only = argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  if (argc > 1 && !smoke && !host && *only == '\0') {
    std::fprintf(stderr, "usage: cuda_bench [--smoke | --host | --only NAME]\n");
    return 2;
  }
#if defined(DIFFSERVE_CUDA_ON_CPU)
  if (!smoke && !host) {
    std::fprintf(stderr,
                 "cuda_bench: this build runs the kernels on the CPU: only --smoke and --host\n");
    return 1;
  }
#endif
  const cuda::DeviceInfo device = Must(cuda::OpenDevice(0));
  const cuda::Stream stream = Must(cuda::Stream::Create());
  Bench bench(device, stream, smoke, only);
  if (host) {
    bench.Host();
  } else {
    bench.Run();
  }
  bench.Print();
  return 0;
}

}  // namespace diffserve::bench
