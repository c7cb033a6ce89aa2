// SPDX-License-Identifier: Apache-2.0
#include "models/finite_check.h"

#include <algorithm>
#include <string>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr uint32_t kFloat32Infinity = 0x7f800000, kBFloat16Infinity = 0x7f80,
                   kFloat16Infinity = 0x7c00;
constexpr uint32_t kRoundsToInfinity = 0x7f7f8000;  // the smallest float32 that does so in bfloat16

uint32_t LimitOf(DType dtype, bool rounds) {
  if (dtype == DType::kBFloat16) return kBFloat16Infinity;
  if (dtype == DType::kFloat16) return kFloat16Infinity;
  return rounds ? kRoundsToInfinity : kFloat32Infinity;
}

template <typename Bits>
std::span<const Bits> AsBits(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Bits*>(bytes.data()), bytes.size() / sizeof(Bits)};
}

template <typename Bits>
constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);

template <typename Bits>
constexpr Bits Magnitude(Bits bits) {
  return static_cast<Bits>(bits & static_cast<Bits>(~kSign<Bits>));
}

// A loop without an early exit, with operations that every level has: a sum sets the sign bit if
// the magnitude reaches the limit.
template <typename Bits>
bool ReachesLimit(std::span<const Bits> values, Bits limit) {
  const Bits distance = static_cast<Bits>(kSign<Bits> - limit);
  Bits all = 0;
  for (Bits bits : values) all |= static_cast<Bits>(Magnitude(bits) + distance);
  return (all & kSign<Bits>) != 0;
}

template <typename Bits>
void Find(std::span<const Bits> values, Bits limit, int64_t begin, int64_t* first, int64_t* count) {
  if (!ReachesLimit(values, limit)) return;
  for (size_t i = 0; i < values.size(); ++i) {
    if (Magnitude(values[i]) < limit) continue;
    const int64_t index = begin + static_cast<int64_t>(i);
    *first = *count == 0 ? index : std::min(*first, index);
    ++*count;
  }
}

std::string Index(const TensorView& tensor, int64_t element) {
  if (tensor.shape.size() < 2) return "[" + std::to_string(element) + "]";
  const int64_t width = tensor.num_elements() / tensor.shape[0];
  return "[" + std::to_string(element / width) + ", " + std::to_string(element % width) + "]";
}

}  // namespace

FiniteCheck::FiniteCheck(DType dtype, DType kept_as)
    : dtype_(dtype),
      limit_(LimitOf(dtype, kept_as == DType::kBFloat16)),
      rounds_(limit_ == kRoundsToInfinity) {}

void FiniteCheck::Add(int64_t first, std::span<const std::byte> bytes) {
  if (dtype_ == DType::kFloat32)
    return Find<uint32_t>(AsBits<uint32_t>(bytes), limit_, first, &first_, &count_);
  Find<uint16_t>(AsBits<uint16_t>(bytes), static_cast<uint16_t>(limit_), first, &first_, &count_);
}

void FiniteCheck::Add(const FiniteCheck& other) {
  if (other.count_ == 0) return;
  first_ = count_ == 0 ? other.first_ : std::min(first_, other.first_);
  count_ += other.count_;
}

Status FiniteCheck::status(const TensorView& tensor) const {
  if (count_ == 0) return Status();
  return NotAllowed(tensor.name + ": element " + Index(tensor, first_) + " is " +
                        std::to_string(tensor.At(first_)),
                    std::string("finite numbers") + (rounds_ ? " that bfloat16 holds; " : "; ") +
                        std::to_string(count_) + " of " + std::to_string(tensor.num_elements()) +
                        " are not");
}

}  // namespace diffserve
