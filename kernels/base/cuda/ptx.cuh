// SPDX-License-Identifier: Apache-2.0
// The instructions for which CUDA C++ has no name, one function each (PTX ISA 8.0; sm_80, bulk
// copies and their barriers sm_90). "shared" addresses are 32-bit offsets in the shared window.
// Without nvcc, CPU functions of the same names and meanings replace them (on the include path of
// the tests that run kernels there).
#pragma once

#if !defined(__CUDACC__)
#include <ptx_on_cpu.h>
#else

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve::cuda {

// The block's dynamic shared memory, 1024-byte aligned.
__device__ __forceinline__ std::byte* DynamicShared() {
  extern __shared__ __align__(1024) std::byte dynamic_shared[];
  return dynamic_shared;
}
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Loads and stores by shared address, a multiple of their size.
__device__ __forceinline__ float LoadShared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void LoadShared2(uint32_t (&value)[2], uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value[0]), "=r"(value[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t address, const uint32_t (&value)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[0]),
               "r"(value[1]), "r"(value[2]), "r"(value[3])
               : "memory");
}

// ---- cp.async: 16 bytes per thread, bypassing the L1 cache.
__device__ __forceinline__ void CpAsync16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}
__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroupsInFlight>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsInFlight) : "memory");
}

// Asks for the 128 bytes around `source`, in global memory, to be brought into the L2 cache.
__device__ __forceinline__ void PrefetchL2(const void* source) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}

// ---- Dependent launch, sm_90 (LaunchShape::is_dependent): the kernel may run before the one
// before it on the stream ends. Every thread waits for that one before it reads what kernels write,
// and before it writes to global memory. Without such a launch the wait is over at once.
__device__ __forceinline__ void WaitForPrevious() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From where on a dependent kernel may start, once every thread block has come here or ended. After
// WaitForPrevious, so that no more than two kernels run at a time.
__device__ __forceinline__ void LaunchDependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Transaction barriers (mbarrier) and bulk copies, sm_90.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After BarrierInit and before the first asynchronous use.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// True in one lane of the warp, the same each time. Called by all lanes. The compiler sees that one
// lane runs, as it does not with a comparison, and then makes no loop over the lanes for what is
// the same in a warp (BulkCopy).
__device__ __forceinline__ bool ElectedLane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}
// Waits until the phase with that parity is over.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Called by one thread, an ElectedLane. `bytes` and both addresses are multiples of 16. The barrier
// counts `bytes` when the copy is done.
__device__ __forceinline__ void BulkCopy(uint32_t destination, const void* source, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// The same for bytes that are not read again soon: they leave the L2 cache before other data.
__device__ __forceinline__ void BulkCopyOnce(uint32_t destination, const void* source,
                                             uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], policy;\n"
      "}\n" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// Orders this thread's ordinary accesses to shared memory before later asynchronous ones.
__device__ __forceinline__ void ProxyFence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
__device__ __forceinline__ void BarrierInit(uint32_t, int) { __trap(); }
__device__ __forceinline__ void BarrierInitFence() {}
__device__ __forceinline__ void BarrierArriveExpect(uint32_t, uint32_t) { __trap(); }
__device__ __forceinline__ void BarrierArrive(uint32_t) { __trap(); }
__device__ __forceinline__ bool ElectedLane() {
  __trap();
  return false;
}
__device__ __forceinline__ void BarrierWait(uint32_t, uint32_t) { __trap(); }
__device__ __forceinline__ void BulkCopy(uint32_t, const void*, uint32_t, uint32_t) { __trap(); }
__device__ __forceinline__ void BulkCopyOnce(uint32_t, const void*, uint32_t, uint32_t) {
  __trap();
}
__device__ __forceinline__ void ProxyFence() {}
#endif

// Barrier 1..15 of the block.
__device__ __forceinline__ void NamedBarrier(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// ---- Between thread blocks.
// Counts *counter, in global memory, from 0 to `last` and then from 0 again; returns the count
// before.
__device__ __forceinline__ uint32_t CountInTurn(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}
// The same; and what this block wrote before its last barrier is visible to a block that counts
// later, after that one's next barrier.
__device__ __forceinline__ uint32_t CountAndPublish(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}
// Two neighbours in global memory, past the L1 cache, which does not see what other
// multiprocessors write.
__device__ __forceinline__ float2 LoadPastL1(const float* address) {
  float2 pair;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "l"(address)
               : "memory");
  return pair;
}

// ---- Matrices. Four 8x8 tiles of 16-bit elements: lane l gives the address of row l % 8 of tile l
// / 8.
__device__ __forceinline__ void LdMatrix4(uint32_t (&fragments)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void LdMatrix4Transposed(uint32_t (&fragments)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(row)
               : "memory");
}
// Transposes an 8x8 tile of 16-bit elements, of which each lane holds a pair as LdMatrix4 gives it.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
// C[16][8] += A[16][16] B[16][8]
__device__ __forceinline__ void MmaBFloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same for whole numbers: C[16][8] += A[16][32] B[32][8], A signed and B unsigned bytes.
__device__ __forceinline__ void MmaInt8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same with unsigned A and signed B.
__device__ __forceinline__ void MmaInt8Turned(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (x & mask) | bits and (x & mask) ^ bits, in one instruction each: ptxas would take two where mask
// and bits are constants, since an instruction holds one.
__device__ __forceinline__ uint32_t AndOr(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(x), "r"(mask), "r"(bits));
  return result;
}
__device__ __forceinline__ uint32_t AndXor(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(x), "r"(mask), "r"(bits));
  return result;
}

// Two numbers each: x y + z rounded once to bf16; subnormals are kept.
__device__ __forceinline__ uint32_t FmaBFloat16(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sums;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(x), "r"(y), "r"(z));
  return sums;
}

// threadIdx.x, read each time: that costs less than a register that holds it, or what follows from
// it, while others are short.
__device__ __forceinline__ int ThreadAgain() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// ---- Scalars.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// For numbers in [2^-126, 2^126]; at most 1 ulp off.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A product that is not fused with an addition.
__device__ __forceinline__ float MulRounded(float x, float y) {
  float product;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
  return product;
}
// Exact, as Float16ToFloat, in one instruction.
__device__ __forceinline__ float WidenFloat16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ uint32_t PackBFloat16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// FloatToFp8E4M3 of both, but for the sign of a NaN.
__device__ __forceinline__ uint32_t PackFp8E4M3(float low, float high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return FloatToFp8E4M3(low) | uint32_t{FloatToFp8E4M3(high)} << 8;
#endif
}

}  // namespace diffserve::cuda

#endif
