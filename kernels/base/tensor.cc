// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/process/check.h"
#include "kernels/process/out_of_memory.h"

namespace diffserve {

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

std::string TensorView::ShapeString() const {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

float TensorView::At(int64_t i) const {
  float value;
  CopyToFloat(*this, i, 1, &value);
  return value;
}

void CopyToFloat(const TensorView& tensor, int64_t begin, int64_t count, float* out) {
  if (count == 0) return;
  if (tensor.dtype == DType::kFloat32) {
    std::memcpy(out, static_cast<const float*>(tensor.data) + begin,
                static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const uint16_t* in = static_cast<const uint16_t*>(tensor.data) + begin;
  if (tensor.dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) out[i] = BFloat16ToFloat(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Float16ToFloat(in[i]);
  }
}

void CopyFromFloat(std::span<const float> values, DType dtype, void* out) {
  if (values.empty()) return;
  if (dtype == DType::kFloat32) {
    std::memcpy(out, values.data(), values.size_bytes());
  } else {
    const auto encode = dtype == DType::kBFloat16 ? FloatToBFloat16 : FloatToFloat16;
    std::ranges::transform(values, static_cast<uint16_t*>(out), encode);
  }
}

int64_t FindOutsideFloat16(std::span<const float> values) {
  const auto is_outside = [](float value) {
    return std::abs(value) >= kFloat16Overflow && std::isfinite(value);
  };
  const auto found = std::ranges::find_if(values, is_outside);
  return found == values.end() ? -1 : found - values.begin();
}

namespace {

// As a failed operator new does: the handler first, with which a server ends.
[[noreturn]] void ThrowOutOfMemory(size_t bytes) {
  if (const std::new_handler handler = std::get_new_handler(); handler != nullptr) handler();
  throw OutOfMemory(bytes);
}

}  // namespace

void Buffer::Free::operator()(void* p) const {
  if (mapped_bytes > 0)
    munmap(p, mapped_bytes);
  else
    std::free(p);
}

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  constexpr size_t kAlignment = 64;
  constexpr size_t kHugePage = size_t{2} << 20;
  if (size_bytes < kHugePage) {
    const size_t rounded = size_bytes == 0
                               ? kAlignment
                               : (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_.reset(std::aligned_alloc(kAlignment, rounded));
    if (data_ == nullptr) ThrowOutOfMemory(rounded);
    std::memset(data_.get(), 0, rounded);
    return;
  }
  if (size_bytes > SIZE_MAX - 2 * kHugePage) ThrowOutOfMemory(size_bytes);
  const size_t rounded = (size_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const mapped = mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) ThrowOutOfMemory(rounded + kHugePage);
  // Unmaps the parts before the first multiple of a huge page and after the buffer.
  char* const begin = static_cast<char*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + rounded, kHugePage - before);
  data_ = std::unique_ptr<void, Free>(begin + before, Free(rounded));
  madvise(data_.get(), rounded, MADV_HUGEPAGE);
}

}  // namespace diffserve
