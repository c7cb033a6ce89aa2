// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/weight_packer_cuda.h"

#include <algorithm>
#include <cstring>

namespace diffserve::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;  // of each of two buffers

}  // namespace

PackedLinear::PackedLinear(const EmbeddingTable& table)
    : out_features_(table.vocab()), in_features_(table.width()), weight_(table.memory_) {}

WeightPacker::WeightPacker(const Stream& stream) : stream_(stream) {
  for (Staging& staging : staging_) Open(&staging);
}

PackedLinear WeightPacker::Linear(std::span<const LinearPart> parts, LinearOutput output,
                                  bool /*may_quantize*/) {
  PackedLinear linear;
  linear.output_ = output;
  std::vector<float> bias;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    if (part.weight.data == nullptr) return linear;
    has_bias = has_bias || part.bias.data != nullptr;
    linear.in_features_ = static_cast<int>(part.weight.shape[1]);
    for (int64_t i = 0; i < part.out_features(); ++i)
      bias.push_back(part.bias.data == nullptr ? 0 : part.bias.At(part.RowOf(i)));
  }
  linear.out_features_ = static_cast<int>(bias.size());
  const size_t row_bytes = static_cast<size_t>(linear.in_features_) * sizeof(BFloat16);
  linear.weight_ = std::make_shared<DeviceBuffer>(Allocate(bias.size() * row_bytes));
  size_t offset = 0;
  for (const LinearPart& part : parts) {
    CopyRows(*linear.weight_, offset, part);
    offset += static_cast<size_t>(part.out_features()) * row_bytes;
  }
  if (has_bias) linear.bias_ = output == LinearOutput::kFloat32 ? Floats(bias) : BFloat16s(bias);
  return linear;
}

EmbeddingTable WeightPacker::Table(const TensorView& table) {
  EmbeddingTable packed;
  packed.vocab_ = static_cast<int>(table.shape[0]);
  packed.width_ = static_cast<int>(table.shape[1]);
  packed.memory_ = std::make_shared<DeviceBuffer>(
      Allocate(static_cast<size_t>(table.num_elements()) * sizeof(BFloat16)));
  CopyRows(*packed.memory_, 0, {.weight = table, .row_order = {}, .bias = {}});
  return packed;
}

DeviceBuffer WeightPacker::Floats(const std::vector<float>& values) {
  DeviceBuffer to = Allocate(values.size() * sizeof(float));
  const size_t per_copy = kStagingBytes / sizeof(float);
  for (size_t begin = 0; begin < values.size(); begin += per_copy) {
    const size_t count = std::min(per_copy, values.size() - begin);
    CopyPiece(to, begin * sizeof(float), count * sizeof(float), [&](std::byte* bytes) {
      std::memcpy(bytes, values.data() + begin, count * sizeof(float));
    });
  }
  return to;
}

DeviceBuffer WeightPacker::BFloat16s(const std::vector<float>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  DeviceBuffer to = Allocate(values.size() * sizeof(BFloat16));
  const TensorView column = {values.data(), DType::kFloat32, {count, 1}};
  CopyRows(to, 0, {.weight = column, .row_order = {}, .bias = {}});
  return to;
}

void WeightPacker::Open(Staging* staging) {
  if (!status_.ok()) return;
  Result<PinnedBuffer> buffer = PinnedBuffer::Allocate(kStagingBytes);
  Result<Event> event = Event::Create();
  status_ = buffer.ok() ? event.status() : buffer.status();
  if (!status_.ok()) return;
  staging->buffer = std::move(*buffer);
  staging->copied = std::make_unique<Event>(std::move(*event));
}

DeviceBuffer WeightPacker::Allocate(size_t size_bytes) {
  if (!status_.ok()) return {};
  Result<DeviceBuffer> buffer = DeviceBuffer::Allocate(size_bytes);
  if (!buffer.ok()) status_ = buffer.status();
  return buffer.ok() ? std::move(*buffer) : DeviceBuffer();
}

template <typename Fill>
void WeightPacker::CopyPiece(const DeviceBuffer& to, size_t offset, size_t size_bytes,
                             const Fill& fill) {
  if (!status_.ok()) return;
  Staging& staging = staging_[next_++ % staging_.size()];
  if (next_ > staging_.size()) status_ = staging.copied->Wait();
  if (!status_.ok()) return;
  fill(staging.buffer.as<std::byte>());
  status_ = CopyToDevice(staging.buffer.bytes().first(size_bytes), to, offset, stream_);
  if (status_.ok()) status_ = stream_.Record(*staging.copied);
}

void WeightPacker::CopyRows(const DeviceBuffer& to, size_t offset, const LinearPart& part) {
  const TensorView& tensor = part.weight;
  const int64_t width = tensor.shape[1];
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(BFloat16);
  const int64_t per_copy = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / row_bytes));
  std::vector<float> wide(static_cast<size_t>(width));
  for (int64_t begin = 0; begin < part.out_features(); begin += per_copy) {
    const int64_t count = std::min(per_copy, part.out_features() - begin);
    CopyPiece(to, offset + static_cast<size_t>(begin) * row_bytes,
              static_cast<size_t>(count) * row_bytes, [&](std::byte* bytes) {
                for (int64_t i = 0; i < count; ++i) {
                  const int64_t first = part.RowOf(begin + i) * width;
                  auto* out = reinterpret_cast<BFloat16*>(bytes) + i * width;
                  if (tensor.dtype == DType::kBFloat16) {
                    std::memcpy(out, static_cast<const BFloat16*>(tensor.data) + first, row_bytes);
                    continue;
                  }
                  CopyToFloat(tensor, first, width, wide.data());
                  std::ranges::transform(wide, out, [](float x) { return FloatToBFloat16(x); });
                }
              });
  }
}

}  // namespace diffserve::cuda
