// SPDX-License-Identifier: Apache-2.0
// A row of numbers as int8 codes with one scale: the form of q where it multiplies codes of K,
// bitwise identical on the CPU and a GPU. The largest magnitude has code 127 or -127; halves are
// rounded to even.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_codec.h"
#include "kernels/base/host_device.h"
#include "kernels/base/rounded.h"

namespace diffserve {

struct Int8Row {
  static constexpr float kMinScaled = 0x1p-100f;  // a row of smaller numbers counts as 0

  float scale;    // of a code; NaN if a number is not finite
  float inverse;  // codes per unit; 0: all codes are 0

  // largest: the maximum magnitude. poison: the sum of the numbers times 0, which is a NaN if any
  // of them is not finite.
  DIFFSERVE_HOST_DEVICE static Int8Row Of(float largest, float poison) {
    if (poison != 0 || !(largest > kMinScaled)) return {poison, 0};
    return {largest / Int8Codec::kMaxCode, Int8Codec::kMaxCode / largest};
  }

  DIFFSERVE_HOST_DEVICE int32_t CodeOf(float value) const {
    constexpr float kShift = 12582912.0f;  // after adding it the low bits hold the rounded number
    const float shifted = rounded::Add(rounded::Mul(value, inverse), kShift);
    return inverse == 0 ? 0 : static_cast<int8_t>(__builtin_bit_cast(uint32_t, shifted));
  }
};

}  // namespace diffserve
