// SPDX-License-Identifier: Apache-2.0
// The functions of the per-ISA kernel files, one table per level. Host code fills a plain argument
// struct and calls through the table.
#pragma once

#include <cstdint>

namespace diffserve {

enum class CpuIsa;   // kernels/base/cpu_isa.h
struct LinearSlice;  // kernels/ops/linear_kernel.h
struct LinearInputSlice;
struct QuantizedPanel;  // kernels/ops/weight_packer_kernel.h
enum class LinearInput : uint8_t;
enum class WeightFormat : uint8_t;  // kernels/ops/weight_format.h
struct RopeRow;                     // kernels/ops/rope_append_kernel.h
struct SampleLoops;                 // kernels/ops/sample_kernel.h
struct AttentionCall;               // kernels/attention/diff_attention_kernel.h
struct AttentionTask;               // kernels/attention/diff_attention_kernel.h

// kernels/mamba
template <typename T>
struct CausalConvArgs;
template <typename T>
struct SelectiveScanArgs;
template <typename T>
struct GatedMemoryArgs;

// kernels/ops/rowwise.h
template <typename T>
struct RmsNormArgs;
template <typename T>
struct LayerNormArgs;
template <typename T>
struct SiluMulArgs;
template <typename T>
struct PolyNormMulArgs;

// Instructions that multiply: float32 fused multiply-adds, dot products of bfloat16 pairs (only
// kAvx512Bf16), or dot products of int8 quads (one instruction from kAvx512Vnni on, three below).
enum class Arithmetic : uint8_t { kFma, kBFloat16Dot, kInt8Dot };

struct KernelTable {
  int panel_columns;                                 // output features in a panel of packed weights
  LinearInput (*linear_input)(WeightFormat format);  // what `linear` reads
  void (*pack_linear_input)(const LinearInputSlice& slice);
  void (*linear)(const LinearSlice& slice);
  // False if the format cannot hold one of the values; the panel is then unfinished.
  bool (*pack_quantized_panel)(const QuantizedPanel& to);
  // Row-wise, for tokens [begin, end).
  void (*rms_norm)(const RmsNormArgs<float>& args, int begin, int end);
  void (*layer_norm)(const LayerNormArgs<float>& args, int begin, int end);
  void (*silu_mul)(const SiluMulArgs<float>& args, int begin, int end);
  void (*poly_norm_mul)(const PolyNormMulArgs<float>& args, int begin, int end);
  void (*sigmoid)(float* x, int64_t count);  // in place
  void (*rope_row)(const RopeRow& row);
  const SampleLoops* sample;
  // For channels [begin, end), whose states no other worker touches.
  void (*causal_conv)(const CausalConvArgs<float>& args, int begin, int end);
  void (*selective_scan)(const SelectiveScanArgs<float>& args, int begin, int end);
  // For tokens [begin, end).
  void (*gated_memory)(const GatedMemoryArgs<float>& args, int begin, int end);
  // `workspace`: the calling worker's own AttentionSizes::WorkspaceFloats, 64-byte aligned.
  void (*attention)(const AttentionCall& call, const AttentionTask& task, float* workspace);
  // For machine_probe.h. Works only in registers; returns the number of operations.
  double (*flops)(Arithmetic arithmetic, int64_t iterations);
  float (*read_all)(const float* p, int64_t count);  // count: a multiple of 128
};

const KernelTable& KernelsFor(CpuIsa isa);

}  // namespace diffserve
