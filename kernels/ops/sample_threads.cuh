// SPDX-License-Identifier: Apache-2.0
// How the threads of a thread block cooperate on one row of logits: reductions and scans, a
// histogram and a short list in shared memory, and the walk over a row.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/sample.h"

namespace diffserve::cuda {

constexpr int kSampleBuckets = 2048;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct FoundBucket {
  int bucket;
  uint64_t count_before;
  uint64_t count;
  uint64_t mass_before;
  uint64_t mass;
};

struct ListedLogit {
  uint32_t key;
  int32_t token;
  float logit;
};

struct SampleShared {
  uint32_t counts[kSampleBuckets];
  uint32_t mass_low[kSampleBuckets];
  uint32_t mass_high[kSampleBuckets];
  uint64_t of_warp[2][32];
  FoundBucket found;
  uint32_t list_size;
  ListedLogit list[kTopLogprobsMax];
};

struct IdRange {
  int begin;
  int end;
};

// A thread among those that share a walk.
struct Walker {
  int thread;
  int num_threads;
};

// Calls use(id, logit) for each id of the range, 16 aligned bytes per access where possible. The
// next ones are prefetched.
template <typename Use>
__device__ __forceinline__ void ForEachLogit(const float* logits, IdRange ids, Walker walker,
                                             Use use) {
  const int before_aligned = static_cast<int>(
      (0 - (reinterpret_cast<uintptr_t>(logits + ids.begin) >> 2)) & 3);
  const int begin = ids.begin + before_aligned < ids.end ? ids.begin + before_aligned : ids.end;
  if (walker.thread < begin - ids.begin)
    use(ids.begin + walker.thread, logits[ids.begin + walker.thread]);
  const int end = begin + (ids.end - begin) / 4 * 4;
  const int stride = 4 * walker.num_threads;
  int i = begin + 4 * walker.thread;
  float4 next = {};
  if (i < end) next = *reinterpret_cast<const float4*>(logits + i);
  for (; i < end; i += stride) {
    const float4 now = next;
    if (i + stride < end) next = *reinterpret_cast<const float4*>(logits + i + stride);
    use(i, now.x);
    use(i + 1, now.y);
    use(i + 2, now.z);
    use(i + 3, now.w);
  }
  if (walker.thread < ids.end - end) use(end + walker.thread, logits[end + walker.thread]);
}

// One thread's view of its thread block. All threads make the same calls in the same order, except
// those marked "any thread".
template <int kThreads>
class SampleThreads {
 public:
  static constexpr int kWarps = kThreads / 32;
  static_assert(kWarps * 32 == kThreads && 32 % kWarps == 0 && kSampleBuckets % kThreads == 0);

  __device__ SampleThreads() : shared_(*reinterpret_cast<SampleShared*>(DynamicShared())) {}

  __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ Walker AsWalker() const {
    return {static_cast<int>(threadIdx.x), kThreads};
  }
  __device__ __forceinline__ void Synchronize() const { __syncthreads(); }

  // logits[t] = -infinity where t is not in the mask. A warp shares a mask word and writes
  // neighbours.
  __device__ __forceinline__ void BanUnmasked(float* logits, const uint32_t* mask,
                                              int vocab) const {
    for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kThreads) {
      if (!MaskHas(mask, i)) logits[i] = -std::numeric_limits<float>::infinity();
    }
    __syncthreads();
  }

  __device__ __forceinline__ uint64_t Max(uint64_t value) {
    value = Exchange(WarpMax(value));
    return WarpMax<kWarps>(value);
  }
  // The n-th largest of the warps' own maxima that the last call of Max compared; 0 if there are
  // fewer. REQUIRES: no call in between.
  __device__ __forceinline__ uint64_t LargestOfWarps(int n) const {
    const uint64_t* of_warp = shared_.of_warp[turn_ ^ 1];
    const uint64_t mine = of_warp[lane() % kWarps];
    int rank = 0;
    for (int i = 0; i < kWarps; ++i) rank += of_warp[i] > mine ? 1 : 0;
    const int source = __ffs(static_cast<int>(__ballot_sync(kAllLanes, rank == n - 1)));
    const uint64_t value = __shfl_sync(kAllLanes, mine, source == 0 ? 0 : source - 1);
    return source == 0 ? 0 : value;
  }

  __device__ __forceinline__ uint64_t Sum(uint64_t value) {
    value = Exchange(WarpSum(value));
    return WarpSum<kWarps>(value);
  }

  // Lane l < kWarps: the sum of the values of warps up to l. `value` is the warp's.
  __device__ __forceinline__ uint64_t SumUpToWarp(uint64_t value) {
    value = Exchange(value);
    return WarpScan<kWarps>(value);
  }

  // ---- The histogram.
  __device__ __forceinline__ void ClearBuckets() {
#pragma unroll
    for (int i = 0; i < kSampleBuckets / kThreads; ++i) {
      const int bucket = i * kThreads + static_cast<int>(threadIdx.x);
      shared_.counts[bucket] = shared_.mass_low[bucket] = shared_.mass_high[bucket] = 0;
    }
    __syncthreads();
  }

  // Any thread. Two 32-bit additions, as a 64-bit one in shared memory is a loop: the addition that
  // wraps the low word carries.
  __device__ __forceinline__ void AddToBucket(int bucket, uint64_t mass) {
    atomicAdd(&shared_.counts[bucket], 1u);
    const uint32_t low = static_cast<uint32_t>(mass);
    uint32_t high = static_cast<uint32_t>(mass >> 32);
    if (low != 0) high += atomicAdd(&shared_.mass_low[bucket], low) + low < low ? 1 : 0;
    if (high != 0) atomicAdd(&shared_.mass_high[bucket], high);
  }

  // The bucket in which the running sum of masses or counts reaches limit_of(overall sum).
  template <typename LimitOf>
  __device__ __forceinline__ FoundBucket FindBucket(bool by_mass, bool with_masses,
                                                    LimitOf limit_of) {
    constexpr int kOwn = kSampleBuckets / kThreads;  // per thread, adjacent
    const int first = static_cast<int>(threadIdx.x) * kOwn;
    uint64_t own_count = 0, own_mass = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      own_count += shared_.counts[first + i];
      own_mass += MassOfBucket(first + i);
    }
    uint64_t total_count, total_mass = 0;
    uint64_t count = ScanThreads(own_count, &total_count);
    uint64_t mass = with_masses ? ScanThreads(own_mass, &total_mass) : 0;
    const uint64_t limit = limit_of(by_mass ? total_mass : total_count);
    const uint64_t before = by_mass ? mass : count;
    if (before < limit && limit <= before + (by_mass ? own_mass : own_count)) {
      int bucket = first;
      while ((by_mass ? mass + MassOfBucket(bucket) : count + shared_.counts[bucket]) < limit) {
        count += shared_.counts[bucket];
        mass += MassOfBucket(bucket++);
      }
      shared_.found = {bucket, count, shared_.counts[bucket], mass, MassOfBucket(bucket)};
    }
    __syncthreads();
    return shared_.found;
  }

  // ---- The list.
  __device__ __forceinline__ void ClearList() {
    if (threadIdx.x == 0) shared_.list_size = 0;
    __syncthreads();
  }
  // Any thread; at most kTopLogprobsMax entries.
  __device__ __forceinline__ void AddToList(const ListedLogit& listed) {
    shared_.list[atomicAdd(&shared_.list_size, 1u)] = listed;
  }
  __device__ __forceinline__ void WriteSorted(int count, SampledToken* out) const {
    const int mine = static_cast<int>(threadIdx.x);
    if (mine >= count) return;
    const ListedLogit listed = shared_.list[mine];
    int rank = 0;
    for (int i = 0; i < count; ++i) {
      const ListedLogit other = shared_.list[i];
      rank += other.key < listed.key || (other.key == listed.key && other.token < listed.token) ? 1
                                                                                                : 0;
    }
    out->top_tokens[rank] = listed.token;
    out->top_logits[rank] = listed.logit;
  }

  // ---- Within each kLanes lanes of the warp.
  template <int kLanes = 32>
  __device__ static __forceinline__ uint64_t WarpMax(uint64_t value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, value, distance);
      value = other > value ? other : value;
    }
    return value;
  }
  template <int kLanes = 32>
  __device__ static __forceinline__ uint64_t WarpSum(uint64_t value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      value += __shfl_xor_sync(kAllLanes, value, distance);
    return value;
  }
  // Inclusive scan: sums the lanes up to this one.
  template <int kLanes = 32>
  __device__ static __forceinline__ uint64_t WarpScan(uint64_t value) {
#pragma unroll
    for (unsigned distance = 1; distance < kLanes; distance *= 2) {
      const uint64_t other = __shfl_up_sync(kAllLanes, value, distance);
      if (threadIdx.x % kLanes >= distance) value += other;
    }
    return value;
  }

 private:
  // Lane l gets the value of warp l % kWarps. The two buffers alternate: before a thread writes
  // one, all others have synchronized since they read it.
  __device__ __forceinline__ uint64_t Exchange(uint64_t value) {
    uint64_t* of_warp = shared_.of_warp[turn_];
    turn_ ^= 1;
    if (lane() == 0) of_warp[warp()] = value;
    __syncthreads();
    return of_warp[lane() % kWarps];
  }

  // The sum over the threads before this one.
  __device__ __forceinline__ uint64_t ScanThreads(uint64_t value, uint64_t* total) {
    const uint64_t in_warp = WarpScan(value);
    const uint64_t warps = SumUpToWarp(__shfl_sync(kAllLanes, in_warp, 31));
    *total = __shfl_sync(kAllLanes, warps, kWarps - 1);
    const uint64_t before = __shfl_sync(kAllLanes, warps, (warp() + 31) % 32);
    return (warp() == 0 ? 0 : before) + in_warp - value;
  }

  __device__ __forceinline__ uint64_t MassOfBucket(int bucket) const {
    return (uint64_t{shared_.mass_high[bucket]} << 32) + shared_.mass_low[bucket];
  }

  SampleShared& shared_;
  int turn_ = 0;
};

// The first id at which the running sum of amount_of(id, logit) exceeds target_of(overall sum).
template <int kThreads, typename AmountOf, typename TargetOf>
__device__ __forceinline__ int32_t FindFirst(SampleThreads<kThreads>& threads, const float* logits,
                                             int vocab, AmountOf amount_of, TargetOf target_of) {
  using Threads = SampleThreads<kThreads>;
  // Each warp sums a part; repeats until the relevant part is one access of a warp.
  IdRange ids = {0, vocab};
  uint64_t target = 0;
  for (bool is_first = true; is_first || ids.end - ids.begin > 32; is_first = false) {
    const int part = ((ids.end - ids.begin + Threads::kWarps - 1) / Threads::kWarps + 3) / 4 * 4;
    const auto part_of = [&](int warp) {
      const int begin = ids.begin + warp * part;
      return IdRange{begin < ids.end ? begin : ids.end,
                     begin + part < ids.end ? begin + part : ids.end};
    };
    uint64_t sum = 0;
    ForEachLogit(logits, part_of(threads.warp()), {threads.lane(), 32},
                 [&](int i, float logit) { sum += amount_of(i, logit); });
    const uint64_t sums = threads.SumUpToWarp(Threads::WarpSum(sum));
    if (is_first) target = target_of(__shfl_sync(kAllLanes, sums, Threads::kWarps - 1));
    const int warp = __ffs(static_cast<int>(__ballot_sync(kAllLanes, sums > target))) - 1;
    const uint64_t before = __shfl_sync(kAllLanes, sums, (warp + 31) % 32);
    target -= warp == 0 ? 0 : before;
    ids = part_of(warp);
  }
  const int id = ids.begin + threads.lane();
  const uint64_t sums = Threads::WarpScan(id < ids.end ? amount_of(id, logits[id]) : 0);
  return ids.begin + __ffs(static_cast<int>(__ballot_sync(kAllLanes, sums > target))) - 1;
}

}  // namespace diffserve::cuda
