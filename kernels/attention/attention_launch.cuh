// SPDX-License-Identifier: Apache-2.0
// The host side of an attention launch: turns DiffAttentionArgs into kernel arguments, and declares
// the three kernels that DiffAttention chooses from.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/attention/attention_warp.cuh"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/launch.cuh"

namespace diffserve::cuda {

struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes_max = 0;
  // Whether our code for the device has bulk copies. In that of sm_80 the bulk kernels are empty.
  bool has_bulk_copies = false;
  bool is_hopper = false;  // wgmma
};

inline Status ReadLimits(DeviceLimits* limits) {
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&limits->multiprocessors, cudaDevAttrMultiProcessorCount,
                                   device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&limits->shared_bytes_max,
                                   cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  limits->has_bulk_copies = 10 * major >= kHopperComputeCapability;
  limits->is_hopper = major == 9;
  return error == cudaSuccess ? Status() : ToStatus(error, "reading the device's limits");
}

// The shapes that a kernel is compiled for with one codec. A kernel's table has one row per codec.
template <typename Instance>
struct CodecInstances {
  DType dtype;
  std::span<const Instance> instances;
};

// The head shapes that the portable kernels are compiled for. Instance::Of<Codec, head_dim, v_dim,
// k_maps>() makes one row.
template <typename Codec, typename Instance>
const Instance kHeadShapes[] = {
    Instance::template Of<Codec, 16, 16, 1>(),   Instance::template Of<Codec, 16, 32, 2>(),
    Instance::template Of<Codec, 32, 32, 1>(),   Instance::template Of<Codec, 32, 64, 2>(),
    Instance::template Of<Codec, 48, 48, 1>(),   Instance::template Of<Codec, 48, 96, 2>(),
    Instance::template Of<Codec, 64, 64, 1>(),   Instance::template Of<Codec, 64, 128, 2>(),
    Instance::template Of<Codec, 64, 64, 2>(),   Instance::template Of<Codec, 64, 128, 1>(),
    Instance::template Of<Codec, 80, 80, 1>(),   Instance::template Of<Codec, 80, 160, 2>(),
    Instance::template Of<Codec, 96, 96, 1>(),   Instance::template Of<Codec, 96, 192, 2>(),
    Instance::template Of<Codec, 112, 112, 1>(), Instance::template Of<Codec, 112, 224, 2>(),
    Instance::template Of<Codec, 128, 128, 1>(), Instance::template Of<Codec, 128, 256, 2>(),
    Instance::template Of<Codec, 128, 128, 2>(), Instance::template Of<Codec, 128, 256, 1>(),
    Instance::template Of<Codec, 256, 256, 1>(), Instance::template Of<Codec, 256, 512, 2>(),
};

// Returns nullptr if there is no such instance. Instance has head_dim, v_dim and k_maps.
template <typename Instance, size_t kCount>
const Instance* FindInstance(const CodecInstances<Instance> (&table)[kCount], const DiffSpec& spec,
                             DType dtype) {
  for (const CodecInstances<Instance>& codec : table) {
    if (codec.dtype != dtype) continue;
    for (const Instance& instance : codec.instances) {
      if (instance.head_dim == spec.head_dim && instance.v_dim == spec.v_dim &&
          instance.k_maps == spec.k_maps) {
        return &instance;
      }
    }
  }
  return nullptr;
}

inline AttentionLaunch LaunchOf(const DiffAttentionArgs<BFloat16>& args,
                                const AttentionSchedule& schedule, int num_stages) {
  const DiffSpec& spec = args.spec;
  const bool has_sub_norm = spec.sub_norm != SubNorm::kNone;
  return {
      .finish = {.out = args.out,
                 .num_q1_heads = spec.num_q1_heads,
                 .has_second_map = spec.has_second_map(),
                 .lambda = args.lambda,
                 .lambda_rows = spec.lambda_kind == LambdaKind::kPerTokenHead ? args.lambda_rows
                                                                              : nullptr,
                 .has_sub_norm = has_sub_norm,
                 .sub_norm_eps = spec.sub_norm_eps,
                 .sub_norm_weight = spec.sub_norm == SubNorm::kAffine ? args.sub_norm_weight
                                                                      : nullptr,
                 .out_scale = args.out_scale},
      .batch = args.batch,
      .tiling = schedule.tiling,
      .plan = schedule.plan,
      .kv = args.kv,
      .q = args.q,
      .partials = schedule.partials,
      .counters = schedule.counters,
      .num_q2_heads = spec.num_q2_heads,
      .num_groups = spec.num_kv_groups,
      .head_dim = spec.head_dim,
      .scale_log2 = args.scale * 1.4426950408889634f,
      .num_stages = num_stages,
      .logits = args.logit_quant.is_on() ? ScoreQuant::Of(args.logit_quant, args.scale)
                                         : ScoreQuant{},
      .extents = schedule.extents,
  };
}

// Launches `num_thread_blocks` thread blocks, which together walk the plan's items.
inline Status LaunchAttention(std::string_view name, void (*kernel)(AttentionLaunch),
                              const LaunchShape& shape, const Stream& stream,
                              const AttentionLaunch& call) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  if (error != cudaSuccess) return ToStatus(error, "shared memory of " + std::string(name));
  return Launch(name, shape, stream, kernel, call);
}

// Unreachable for a loaded model on its own device: DiffAttentionUnsupported refuses such shapes.
inline Status NoKernel() {
  return Status(StatusCode::kInternal, "no attention kernel for this shape, tiling and device");
}

Status DiffDecode(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                  const Stream& stream);
Status DiffPrefill(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                   const Stream& stream);

// The kernels that quantise logits, of a shape and format that the others take too. The extents'
// shared memory is less than decode's.
struct QuantisedDecode {
  void (*extents)(AttentionLaunch) = nullptr;  // first
  void (*decode)(AttentionLaunch) = nullptr;
};
QuantisedDecode FindQuantisedDecode(const DiffSpec& spec, DType dtype);
void (*FindQuantisedPrefill(const DiffSpec& spec, DType dtype))(AttentionLaunch);

// Queries per tile of the Hopper kernel for this spec and this device. 0: there is no such kernel.
int HopperPrefillQueries(const DiffSpec& spec, const DeviceLimits& limits);
// REQUIRES: HopperPrefillQueries is schedule.tiling.rows_per_tile.
Status LaunchHopperPrefill(const DiffAttentionArgs<BFloat16>& args,
                           const AttentionSchedule& schedule, const DeviceLimits& limits,
                           const Stream& stream);

// Groups [first, first + count).
struct GroupRange {
  int first;
  int count;
};
// Writes the pages of these groups that rows attend to as bfloat16: page i of `widened` is entry
// to.first_page + i of PagedBatch::pages.
Status WidenPages(const DiffAttentionArgs<BFloat16>& args, const GroupRange& groups,
                  const WidenedPages& to, const PagedKv& widened, const Stream& stream);

}  // namespace diffserve::cuda
