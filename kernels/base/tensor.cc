#include "kernels/base/tensor.h"

#include <sys/mman.h>

#include <cstring>

#include "kernels/base/check.h"

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
  if (tensor.dtype == DType::kFloat32) {
    std::memcpy(out, static_cast<const float*>(tensor.data) + begin, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const uint16_t* in = static_cast<const uint16_t*>(tensor.data) + begin;
  if (tensor.dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) out[i] = BFloat16ToFloat(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Float16ToFloat(in[i]);
  }
}

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = size_bytes >= kHugePage ? kHugePage : 64;
  const size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
  data_.reset(std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded));
  DS_CHECK(data_ != nullptr, "out of memory");
  if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
  std::memset(data_.get(), 0, rounded == 0 ? alignment : rounded);
}

}  // namespace diffserve
