// SPDX-License-Identifier: Apache-2.0
// Each function of ptx.cuh and wgmma.cuh in a kernel of its own, for ptx_test.cc: on a GPU the
// instruction, on the shim its replacement. All pointers are device memory; launchers return a
// cudaError_t.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_image.h"

struct CUstream_st;

namespace diffserve::testing {

// matrices: [4][8][8] of 16 bits; fragments: [32 lanes][4].
int RunLdMatrix(bool transposed, const uint16_t* matrices, uint32_t* fragments,
                CUstream_st* stream);
// a: [32][4], b: [32][2], c: [32][4], to which the product is added.
int RunMma(const uint32_t* a, const uint32_t* b, float* c, CUstream_st* stream);
// turned: A unsigned and B signed, else A signed and B unsigned.
int RunMmaInt8(bool turned, const uint32_t* a, const uint32_t* b, int32_t* c, CUstream_st* stream);
// An 8x8 matrix of 16 bits in its fragments, [32 lanes].
int RunTransposeMatrix(const uint32_t* from, uint32_t* to, CUstream_st* stream);
// 1,024 bytes in two groups; lane l's 16 bytes of group g arrive as chunk 32 g + 31 - l. The first
// group is read while the second may still be in flight.
int RunCpAsync(const uint32_t* from, uint32_t* to, CUstream_st* stream);
// 2 x 4,096 bytes through the same shared memory, each as two copies that one barrier counts.
// Another barrier counts the threads that have read the first (sm_90).
int RunBulkCopy(const uint32_t* from, uint32_t* to, CUstream_st* stream);
// 64 threads store four numbers each. to[4 t + i]: the neighbour's last two numbers, then its
// first, twice.
int RunSharedAccess(const uint32_t* from, uint32_t* to, CUstream_st* stream);
// to: [2 turns][2 warps][32 lanes], 1 where the lane is elected (sm_90).
int RunElectedLane(uint32_t* to, CUstream_st* stream);
// to[l] = from[l], passed from the first warp to the third through barrier 5, while the second warp
// does not take part; l < 32.
int RunNamedBarrier(const uint32_t* from, uint32_t* to, CUstream_st* stream);
// exponentials[i] = 2^x[i]; reciprocals[i] = 1 / x[i]; pairs[i] = x[i] and x[i ^ 1] as two bf16,
// the first in the low half. count: a multiple of 64.
int RunScalars(const float* x, float* exponentials, float* reciprocals, uint32_t* pairs, int count,
               CUstream_st* stream);
// sums[i] = x[i] y[i] + z[i], the product rounded separately. count: a multiple of 64.
int RunMulRounded(const float* x, const float* y, const float* z, float* sums, int count,
                  CUstream_st* stream);
// sums[i] = x[i] y[i] + z[i] of pairs of bf16. count: a multiple of 64.
int RunFmaBFloat16(const uint32_t* x, const uint32_t* y, const uint32_t* z, uint32_t* sums,
                   int count, CUstream_st* stream);

// codes[i] = x[i] in the lower byte, y[i] in the upper one. count: a multiple of 64.
int RunPackFp8E4M3(const float* x, const float* y, uint32_t* codes, int count, CUstream_st* stream);

// ors[i] = (x[i] & mask) | bits, xors[i] = (x[i] & mask) ^ bits. count: a multiple of 64.
struct MaskAndBits {
  uint32_t mask;
  uint32_t bits;
};
int RunAndOrXor(const uint32_t* x, MaskAndBits constants, uint32_t* ors, uint32_t* xors, int count,
                CUstream_st* stream);

// ---- sm_90a. d: [128 threads][width / 2] = A B, A [64][64] given as a: [4 k steps][128
// threads][4], B [64][width] as its bytes in shared memory: K-major tile of `width` rows, or
// MN-major tiles of 64 columns. width: 64, 128 or 256.
int RunWgmma(bool b_is_mn_major, int width, const uint32_t* a, const uint16_t* b, float* d,
             CUstream_st* stream);

// kWitnessSteps products with the same B (K-major, width 64, [64 K][64] of which the first 16 are
// used). Between them only the next A is computed: register i of a thread is two bf16 of 0 to 3,
// from the low four WitnessBits. `holds`: A is kept in its registers until all is done, as in the
// attention kernels.
int RunWgmmaReuse(bool holds, const uint16_t* b, float* d, CUstream_st* stream);
inline constexpr int kWitnessSteps = 16;
DIFFSERVE_HOST_DEVICE uint32_t WitnessBits(int step, int thread, int i) {
  const uint32_t mixed = static_cast<uint32_t>(step * 1024 + thread * 8 + i + 1) * 2654435761u;
  return (mixed ^ mixed >> 15) * 2246822519u >> 28;
}

}  // namespace diffserve::testing
