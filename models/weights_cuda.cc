#include "models/weights_cuda.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace diffserve::cuda {
namespace {

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

  // The parts stacked. The bias is of `bias_dtype`.
  DeviceLinear Linear(const std::vector<LinearPart>& parts, DType bias_dtype) {
    DeviceLinear linear;
    std::vector<float> bias;
    for (const LinearPart& part : parts) {
      if (part.weight.data == nullptr) return linear;
      linear.in_features = static_cast<int>(part.weight.shape[1]);
      for (int64_t i = 0; i < part.weight.shape[0]; ++i) {
        const int64_t row = part.row_order.empty() ? i : part.row_order[static_cast<size_t>(i)];
        bias.push_back(part.bias.data == nullptr ? 0 : part.bias.At(row));
      }
    }
    linear.out_features = static_cast<int>(bias.size());
    linear.weight = Allocate(bias.size() * static_cast<size_t>(linear.in_features) *
                             sizeof(uint16_t));
    size_t offset = 0;
    bool has_bias = false;
    for (const LinearPart& part : parts) {
      Rows(linear.weight, offset, part.weight, part.row_order);
      offset += static_cast<size_t>(part.weight.num_elements()) * sizeof(uint16_t);
      has_bias = has_bias || part.bias.data != nullptr;
    }
    if (has_bias) linear.bias = bias_dtype == DType::kFloat32 ? Floats(bias) : BFloat16s(bias);
    return linear;
  }

  const Status& status() const { return status_; }

 private:
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

// Projections that the residual stream or lambda takes are float32, so are their biases.
DeviceLayer UploadLayer(const LayerTensors& tensors, Uploader& uploader) {
  DeviceLayer layer;
  layer.input_norm = uploader.Floats(tensors.input_norm);
  layer.qkv = uploader.Linear(tensors.qkv, DType::kBFloat16);
  layer.attention_out = uploader.Linear(tensors.attention_out, DType::kFloat32);
  layer.lambda = tensors.lambda;
  layer.out_scale = tensors.out_scale;
  layer.lambda_proj = uploader.Linear(tensors.lambda_proj, DType::kFloat32);
  layer.sub_norm = uploader.Floats(tensors.sub_norm);
  layer.post_attention_norm = uploader.Floats(tensors.post_attention_norm);
  layer.gate_up = uploader.Linear(tensors.gate_up, DType::kBFloat16);
  layer.poly_norm = tensors.poly_norm;
  layer.down = uploader.Linear(tensors.down, DType::kFloat32);
  return layer;
}

}  // namespace

Result<DeviceWeights> UploadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                    const Stream& stream) {
  Uploader uploader(stream);
  DS_RETURN_IF_ERROR(uploader.Open());
  DeviceWeights weights;
  Result<OuterTensors> outer = ReadOuterTensors(config, checkpoint);
  if (!outer.ok()) return outer.status();
  weights.embedding = uploader.Table(outer->embedding);
  if (outer->lm_head.data != outer->embedding.data)
    weights.lm_head = uploader.Table(outer->lm_head);
  weights.final_norm = uploader.Floats(outer->final_norm);
  checkpoint.ReleaseMemory();
  for (int layer = 0; layer < config.num_layers && uploader.status().ok(); ++layer) {
    Result<LayerTensors> tensors = ReadLayerTensors(config, layer, checkpoint);
    if (!tensors.ok()) return tensors.status();
    weights.layers.push_back(UploadLayer(*tensors, uploader));
    checkpoint.ReleaseMemory();
  }
  if (!uploader.status().ok()) return uploader.status();
  DS_RETURN_IF_ERROR(stream.Synchronize());
  return weights;
}

}  // namespace diffserve::cuda
