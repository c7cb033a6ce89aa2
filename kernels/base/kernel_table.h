// The functions of the per-ISA kernel files, one table a level. Host code fills a plain argument
// struct and calls through it.
#pragma once

#include <cstdint>

namespace diffserve {

enum class CpuIsa;     // kernels/base/cpu_isa.h
struct LinearSlice;    // kernels/ops/linear_kernel.h
struct RopeRow;        // kernels/ops/rope_append_kernel.h
struct AttentionCall;  // kernels/attention/diff_attention_kernel.h
struct AttentionTask;  // kernels/attention/diff_attention_kernel.h

// kernels/ops/rowwise.h
template <typename T>
struct RmsNormArgs;
template <typename T>
struct SiluMulArgs;
template <typename T>
struct PolyNormMulArgs;

struct KernelTable {
  int panel_columns;  // output features in a panel of packed weights
  void (*linear)(const LinearSlice& slice);
  // Row-wise: of tokens [begin, end).
  void (*rms_norm)(const RmsNormArgs<float>& args, int begin, int end);
  void (*silu_mul)(const SiluMulArgs<float>& args, int begin, int end);
  void (*poly_norm_mul)(const PolyNormMulArgs<float>& args, int begin, int end);
  void (*sigmoid)(float* x, int64_t count);  // in place
  void (*rope_row)(const RopeRow& row);
  // `workspace`: AttentionSizes::WorkspaceFloats of the calling worker's own, 64-byte aligned.
  void (*attention)(const AttentionCall& call, const AttentionTask& task, float* workspace);
  // For machine_probe.h. Register-only FMAs: returns how many floating-point operations were done.
  double (*fma_flops)(int64_t iterations);
  float (*read_all)(const float* p, int64_t count);  // count: a multiple of 128
};

const KernelTable& KernelsFor(CpuIsa isa);

}  // namespace diffserve
