// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's runtime that kernels and their launches use, on the CPU. It replaces CUDA's
// own header on the include path when the kernels' sources are compiled for tests/kernels/shim.
// Built-ins act on the running fiber (fiber_grid.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/kernels/shim/approximations.h"
#include "tests/kernels/shim/device_functions.h"
#include "tests/kernels/shim/fiber_grid.h"
#include "tests/kernels/shim/host_calls.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

using diffserve::shim::blockDim;
using diffserve::shim::blockIdx;
using diffserve::shim::gridDim;
using diffserve::shim::threadIdx;
using std::max;
using std::min;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace diffserve::shim {

template <typename T, typename Pick>
T Shuffle(const char* operation, uint32_t mask, T value, Pick pick) {
  struct Argument {
    T value;
    T result;
    int source;
  } argument{value, value, pick(CurrentLane())};
  MeetWarp(mask, operation, &argument, [](void* const(&lanes)[32]) {
    for (void* lane : lanes) {
      if (lane == nullptr) continue;
      Argument& mine = *static_cast<Argument*>(lane);
      const void* other = mine.source >= 0 && mine.source < 32 ? lanes[mine.source] : nullptr;
      if (other != nullptr) mine.result = static_cast<const Argument*>(other)->value;
    }
  });
  return argument.result;
}

}  // namespace diffserve::shim

template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return diffserve::shim::Shuffle("shfl", mask, value, [=](int) { return source & 31; });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return diffserve::shim::Shuffle("shfl.bfly", mask, value, [=](int lane) { return lane ^ bits; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  return diffserve::shim::Shuffle("shfl.up", mask, value,
                                  [=](int lane) { return lane - static_cast<int>(delta); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned votes = 0;
  struct Argument {
    bool vote;
    unsigned* votes;
  } argument{predicate != 0, &votes};
  diffserve::shim::MeetWarp(mask, "vote", &argument, [](void* const(&lanes)[32]) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i)
      all |= lanes[i] != nullptr && static_cast<const Argument*>(lanes[i])->vote ? 1u << i : 0;
    for (void* lane : lanes) {
      if (lane != nullptr) *static_cast<const Argument*>(lane)->votes = all;
    }
  });
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  char nothing = 0;
  diffserve::shim::MeetWarp(mask, "syncwarp", &nothing, [](void* const(&)[32]) {});
}
inline void __syncthreads() {
  const diffserve::shim::Index3 shape = blockDim;
  diffserve::shim::MeetBlock(0, static_cast<int>(shape.x * shape.y * shape.z));
}
// Thread blocks run one after another and see one memory.
inline void __threadfence() {}
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
// Byte i of the result is the one of x (0 to 3) and y (4 to 7) that digit i of the selector names.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline int __double2int_rn(double x) { return static_cast<int>(std::nearbyint(x)); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
