#include "models/weight_packer_cuda.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace diffserve::cuda {

constexpr size_t kStagingBytes = size_t{16} << 20;  // each of two

// Fills device buffers through two pinned ones in turn. The first error is kept, and nothing is
// copied after it.
class Uploader {
 public:
  explicit Uploader(const Stream& stream) : stream_(stream) {}

  Status Open() {
    for (Staging& staging : staging_) {
      Result<PinnedBuffer> buffer = PinnedBuffer::Allocate(kStagingBytes);
      if (!buffer.ok()) return buffer.status();
      staging.buffer = std::move(*buffer);
      Result<Event> event = Event::Create();
      if (!event.ok()) return event.status();
      staging.copied = std::make_unique<Event>(std::move(*event));
    }
    return Status();
  }

  DeviceBuffer Floats(const std::vector<float>& values) {
    DeviceBuffer to = Allocate(values.size() * sizeof(float));
    const size_t per_copy = kStagingBytes / sizeof(float);
    for (size_t begin = 0; begin < values.size(); begin += per_copy) {
      const size_t count = std::min(per_copy, values.size() - begin);
      CopyRun(to, begin * sizeof(float), count * sizeof(float), [&](std::byte* bytes) {
        std::memcpy(bytes, values.data() + begin, count * sizeof(float));
      });
    }
    return to;
  }

  DeviceBuffer Table(const TensorView& table) {
    DeviceBuffer to = Allocate(static_cast<size_t>(table.num_elements()) * sizeof(uint16_t));
    Rows(to, 0, table, {});
    return to;
  }

  const Status& status() const { return status_; }

 public:
  struct Staging {
    PinnedBuffer buffer;
    std::unique_ptr<Event> copied;
  };

  DeviceBuffer Allocate(size_t size_bytes) {
    if (!status_.ok()) return {};
    Result<DeviceBuffer> buffer = DeviceBuffer::Allocate(size_bytes);
    if (!buffer.ok()) status_ = buffer.status();
    return buffer.ok() ? std::move(*buffer) : DeviceBuffer();
  }

  // fill(bytes) writes the pinned side.
  template <typename Fill>
  void CopyRun(const DeviceBuffer& to, size_t offset, size_t size_bytes, const Fill& fill) {
    if (!status_.ok()) return;
    Staging& staging = staging_[next_++ % staging_.size()];
    if (next_ > staging_.size()) status_ = staging.copied->Wait();
    if (!status_.ok()) return;
    fill(staging.buffer.as<std::byte>());
    status_ = CopyToDevice(staging.buffer.bytes().first(size_bytes), to, offset, stream_);
    if (status_.ok()) status_ = stream_.Record(*staging.copied);
  }

  DeviceBuffer BFloat16s(const std::vector<float>& values) {
    return Table({values.data(), DType::kFloat32, {static_cast<int64_t>(values.size()), 1}});
  }

  void Rows(const DeviceBuffer& to, size_t offset, const TensorView& rows,
            const std::vector<int32_t>& order) {
    const int64_t num_rows = rows.shape[0], width = rows.shape[1];
    const size_t row_bytes = static_cast<size_t>(width) * sizeof(uint16_t);
    const int64_t per_copy = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / row_bytes));
    std::vector<float> wide(static_cast<size_t>(width));
    for (int64_t begin = 0; begin < num_rows; begin += per_copy) {
      const int64_t count = std::min(per_copy, num_rows - begin);
      CopyRun(
          to, offset + static_cast<size_t>(begin) * row_bytes,
          static_cast<size_t>(count) * row_bytes, [&](std::byte* bytes) {
            for (int64_t i = 0; i < count; ++i) {
              const int64_t row = order.empty() ? begin + i : order[static_cast<size_t>(begin + i)];
              std::byte* out = bytes + static_cast<size_t>(i) * row_bytes;
              if (rows.dtype == DType::kBFloat16) {
                std::memcpy(out, static_cast<const uint16_t*>(rows.data) + row * width, row_bytes);
                continue;
              }
              CopyToFloat(rows, row * width, width, wide.data());
              for (int64_t j = 0; j < width; ++j)
                reinterpret_cast<uint16_t*>(out)[j] = FloatToBFloat16(wide[static_cast<size_t>(j)]);
            }
          });
    }
  }

  const Stream& stream_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  Status status_;
};

WeightPacker::WeightPacker(const Stream& stream) : uploader_(std::make_unique<Uploader>(stream)) {
  uploader_->status_ = uploader_->Open();
}
WeightPacker::~WeightPacker() { static_cast<void>(uploader_->stream_.Synchronize()); }
const Status& WeightPacker::status() const { return uploader_->status_; }
DeviceBuffer WeightPacker::Floats(const std::vector<float>& values) {
  return uploader_->Floats(values);
}
EmbeddingTable WeightPacker::Table(const TensorView& table) {
  EmbeddingTable made;
  made.vocab_ = static_cast<int>(table.shape[0]);
  made.width_ = static_cast<int>(table.shape[1]);
  made.memory_ = std::make_shared<DeviceBuffer>(uploader_->Table(table));
  return made;
}
PackedLinear WeightPacker::Linear(std::span<const LinearPart> parts, LinearOutput output) {
  PackedLinear linear;
  std::vector<float> bias;
  if (parts.empty()) return linear;
  for (const LinearPart& part : parts) {
    linear.in_features_ = static_cast<int>(part.weight.shape[1]);
    for (int64_t i = 0; i < part.weight.shape[0]; ++i) {
      const int64_t row = part.row_order.empty() ? i : part.row_order[static_cast<size_t>(i)];
      bias.push_back(part.bias.data == nullptr ? 0 : part.bias.At(row));
    }
  }
  linear.out_features_ = static_cast<int>(bias.size());
  linear.output_ = output;
  linear.weight_ = std::make_shared<DeviceBuffer>(uploader_->Allocate(
      bias.size() * static_cast<size_t>(linear.in_features_) * sizeof(uint16_t)));
  size_t offset = 0;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    uploader_->Rows(*linear.weight_, offset, part.weight, part.row_order);
    offset += static_cast<size_t>(part.weight.num_elements()) * sizeof(uint16_t);
    has_bias = has_bias || part.bias.data != nullptr;
  }
  if (has_bias)
    linear.bias_ = output == LinearOutput::kFloat32 ? uploader_->Floats(bias)
                                                    : uploader_->BFloat16s(bias);
  return linear;
}

}  // namespace diffserve::cuda
