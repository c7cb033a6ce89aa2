// SPDX-License-Identifier: Apache-2.0
// The functions of kernels/base/cuda/ptx.cuh on the CPU, with the fragment layouts of the PTX
// manual.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/dtype.h"
#include "tests/kernels/shim/approximations.h"
#include "tests/kernels/shim/cuda_runtime.h"
#include "tests/kernels/shim/fiber_grid.h"
#include "tests/kernels/shim/tensor_core.h"

namespace diffserve::cuda {

inline std::byte* DynamicShared() { return shim::SharedBase(); }
inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(pointer) - shim::SharedBase());
}

inline float LoadShared(uint32_t address) {
  float value;
  std::memcpy(&value, shim::SharedAt(address, 4, 4), 4);
  return value;
}
inline void LoadShared2(uint32_t (&value)[2], uint32_t address) {
  std::memcpy(value, shim::SharedAt(address, 8, 8), 8);
}
inline void StoreShared(uint32_t address, float value) {
  std::memcpy(shim::SharedAt(address, 4, 4), &value, 4);
}
inline void StoreShared4(uint32_t address, const uint32_t (&value)[4]) {
  std::memcpy(shim::SharedAt(address, 16, 16), value, 16);
}

inline void CpAsync16(uint32_t destination, const void* source) {
  if (reinterpret_cast<uintptr_t>(source) % 16 != 0)
    shim::Fail("cp.async from an address that is not a multiple of 16");
  shim::CopyAsync(destination, source, 16);
}
inline void CpAsyncCommit() { shim::CommitCopies(); }
template <int kGroupsInFlight>
void CpAsyncWait() {
  shim::WaitCopies(kGroupsInFlight);
}

// Only reads, so that AddressSanitizer sees an address that is no one's.
inline void PrefetchL2(const void* source) {
  ++shim::prefetched_lines;
  static_cast<void>(*static_cast<const volatile char*>(source));
}

inline void WaitForPrevious() { shim::WaitForPrevious(); }
inline void LaunchDependents() { shim::LaunchDependents(); }

inline void BarrierInit(uint32_t barrier, int arrivals) { shim::BarrierInit(barrier, arrivals); }
inline void BarrierInitFence() {}
inline void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  shim::BarrierArrive(barrier, bytes);
}
inline void BarrierArrive(uint32_t barrier) { shim::BarrierArrive(barrier, 0); }
inline void BarrierWait(uint32_t barrier, uint32_t parity) { shim::BarrierWait(barrier, parity); }
// Which lane it is, the hardware does not say.
inline bool ElectedLane() {
  char nothing = 0;
  shim::MeetWarp(0xffffffffu, "elect", &nothing, [](void* const(&)[32]) {});
  return shim::CurrentLane() == 21;
}
inline void BulkCopy(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  ++shim::bulk_copies;
  shim::BulkCopyAsync(destination, source, bytes, barrier);
}
inline void BulkCopyOnce(uint32_t destination, const void* source, uint32_t bytes,
                         uint32_t barrier) {
  BulkCopy(destination, source, bytes, barrier);
}
inline void ProxyFence() {}
inline void NamedBarrier(int id, int num_threads) { shim::MeetBlock(id, num_threads); }

inline uint32_t CountInTurn(uint32_t* counter, uint32_t last) {
  return shim::CountInTurn(counter, last);
}
inline uint32_t CountAndPublish(uint32_t* counter, uint32_t last) {
  return shim::CountInTurn(counter, last);
}
inline float2 LoadPastL1(const float* address) { return {address[0], address[1]}; }

namespace on_cpu {

struct LdMatrixArgument {
  const std::byte* row;  // of matrix lane / 8, row lane % 8
  uint32_t* fragments;   // [4]
};

// Lane l of each 8x8 matrix receives row l / 4, columns 2 (l % 4) and + 1; transposed, column l / 4
// of rows 2 (l % 4) and + 1.
template <bool kTransposed>
void LdMatrixApply(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = kTransposed ? lane % 4 * 2 + i : lane / 4;
        const int column = kTransposed ? lane / 4 : lane % 4 * 2 + i;
        const auto& source = *static_cast<const LdMatrixArgument*>(lanes[matrix * 8 + row]);
        std::memcpy(&pair[i], source.row + column * 2, 2);
      }
      uint32_t* fragments = static_cast<const LdMatrixArgument*>(lanes[lane])->fragments;
      fragments[matrix] = static_cast<uint32_t>(pair[0]) | static_cast<uint32_t>(pair[1]) << 16;
    }
  }
}

template <bool kTransposed>
void LdMatrix4(uint32_t (&fragments)[4], uint32_t row) {
  uint32_t result[4];
  LdMatrixArgument argument{shim::SharedAt(row, 16, 16), result};
  shim::MeetWarp(0xffffffffu, kTransposed ? "ldmatrix.trans" : "ldmatrix", &argument,
                 LdMatrixApply<kTransposed>);
  for (int i = 0; i < 4; ++i) fragments[i] = result[i];
}

struct TransposeArgument {
  uint32_t pair;
  uint32_t transposed;
};

// Lane l has row l / 4, columns 2 (l % 4) and + 1.
inline void TransposeApply(void* const (&lanes)[32]) {
  const auto of_lane = [&](int lane) -> TransposeArgument& {
    return *static_cast<TransposeArgument*>(lanes[lane]);
  };
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i, column = lane / 4;
      const uint32_t source = of_lane(row * 4 + column / 2).pair;
      pair |= (source >> (column % 2 * 16) & 0xffff) << (16 * i);
    }
    of_lane(lane).transposed = pair;
  }
}

template <typename Sum>
struct MmaArgument {
  uint32_t a[4];
  uint32_t b[2];
  Sum* c;  // [4]
};

inline float Half(uint32_t pair, int which) {
  return BFloat16ToFloat(static_cast<uint16_t>(pair >> (which * 16)));
}

// With g = lane / 4, t = lane % 4: a0 is A[g][2t..], a1 A[g + 8][2t..], a2 A[g][2t + 8..], a3 A[g +
// 8][2t + 8..]; b0 is B[2t..][g], b1 B[2t + 8..][g]; c0, c1 are C[g][2t..], c2, c3 C[g + 8][2t..].
inline void MmaApply(void* const (&lanes)[32]) {
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& argument = *static_cast<const MmaArgument<float>*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][2 * t + i + r / 2 * 8] = Half(argument.a[r], i);
      for (int r = 0; r < 2; ++r) b[2 * t + i + r * 8][g] = Half(argument.b[r], i);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int first = 0; first < 8; first += 4) {
      const auto c_of = [&](int column) -> float& {
        const int lane = row % 8 * 4 + (first + column) / 2;
        return static_cast<const MmaArgument<float>*>(lanes[lane])->c[row / 8 * 2 + column % 2];
      };
      float sums[4];
      for (int column = 0; column < 4; ++column) sums[column] = c_of(column);
      for (int k = 0; k < 16; k += 8)
        shim::AddProducts<shim::kAmpereStep>(a[row] + k, b[k] + first, 8, sums);
      for (int column = 0; column < 4; ++column) c_of(column) = sums[column];
    }
  }
}

// The same for bytes, four per register: a0 is A[g][4t..], a1 A[g + 8][4t..], a2 A[g][4t + 16..],
// a3 A[g + 8][4t + 16..]; b0 is B[4t..][g], b1 B[4t + 16..][g]. Sums wrap around.
template <typename A, typename B>
void MmaInt8Apply(void* const (&lanes)[32]) {
  A a[16][32];
  B b[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& argument = *static_cast<const MmaArgument<int32_t>*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < 4; ++r)
        a[g + r % 2 * 8][4 * t + i + r / 2 * 16] = static_cast<A>(argument.a[r] >> 8 * i);
      for (int r = 0; r < 2; ++r) b[4 * t + i + r * 16][g] = static_cast<B>(argument.b[r] >> 8 * i);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    int32_t* c = static_cast<const MmaArgument<int32_t>*>(lanes[lane])->c;
    for (int i = 0; i < 4; ++i) {
      int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
      c[i] = static_cast<int32_t>(static_cast<uint32_t>(c[i]) + static_cast<uint32_t>(sum));
    }
  }
}

}  // namespace on_cpu

inline void LdMatrix4(uint32_t (&fragments)[4], uint32_t row) {
  on_cpu::LdMatrix4<false>(fragments, row);
}
inline void LdMatrix4Transposed(uint32_t (&fragments)[4], uint32_t row) {
  on_cpu::LdMatrix4<true>(fragments, row);
}

inline uint32_t TransposeMatrix(uint32_t pair) {
  on_cpu::TransposeArgument argument{pair, 0};
  shim::MeetWarp(0xffffffffu, "movmatrix", &argument, on_cpu::TransposeApply);
  return argument.transposed;
}
inline void MmaBFloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  on_cpu::MmaArgument<float> argument{{a[0], a[1], a[2], a[3]}, {b0, b1}, c};
  shim::MeetWarp(0xffffffffu, "mma", &argument, on_cpu::MmaApply);
}
inline void MmaInt8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  on_cpu::MmaArgument<int32_t> argument{{a[0], a[1], a[2], a[3]}, {b0, b1}, c};
  shim::MeetWarp(0xffffffffu, "mma of bytes", &argument, on_cpu::MmaInt8Apply<int8_t, uint8_t>);
}
inline void MmaInt8Turned(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  on_cpu::MmaArgument<int32_t> argument{{a[0], a[1], a[2], a[3]}, {b0, b1}, c};
  shim::MeetWarp(0xffffffffu, "turned mma of bytes", &argument,
                 on_cpu::MmaInt8Apply<uint8_t, int8_t>);
}

inline uint32_t AndOr(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
inline uint32_t AndXor(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) ^ bits; }

// In double, where products and sums of bf16 numbers of similar size are exact.
inline uint32_t FmaBFloat16(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sums = 0;
  for (int i = 0; i < 2; ++i) {
    const double sum = double{on_cpu::Half(x, i)} * on_cpu::Half(y, i) + on_cpu::Half(z, i);
    sums |= static_cast<uint32_t>(FloatToBFloat16(static_cast<float>(sum))) << (16 * i);
  }
  return sums;
}
inline uint32_t PackFp8E4M3(float low, float high) {
  return FloatToFp8E4M3(low) | uint32_t{FloatToFp8E4M3(high)} << 8;
}
inline int ThreadAgain() { return static_cast<int>(shim::threadIdx.x); }
// ex2.approx.ftz: 2 units in the last place; the manual names only the value at 0 as exact.
inline float Exp2(float x) {
  x = shim::Flushed(x);
  return x == 0 ? 1 : shim::Flushed(shim::Approximately(std::exp2(double{x}), x, 2));
}
// rcp.approx.ftz: 1 unit.
inline float Reciprocal(float x) {
  x = shim::Flushed(x);
  return shim::Flushed(shim::Approximately(1 / double{x}, x, 1));
}
inline float MulRounded(float x, float y) { return x * y; }
inline float WidenFloat16(uint16_t bits) { return Float16ToFloat(bits); }
// Every NaN becomes 0x7fff, as cvt says.
inline uint32_t PackBFloat16(float low, float high) {
  const auto half = [](float x) {
    return uint32_t{std::isnan(x) ? uint16_t{0x7fff} : FloatToBFloat16(x)};
  };
  return half(low) | half(high) << 16;
}

}  // namespace diffserve::cuda
