// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/device_probe.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/read_stream_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr size_t kReadBytesMax = size_t{2} << 30;
constexpr int kWidth = 8192;  // of the square matrices
constexpr int kReads = 8, kProducts = 4;
constexpr int kThreadBlocksPerSm = 8;

}  // namespace

class DeviceProbe::State {
 public:
  Status Open(int gpu) {
    const Result<DeviceInfo> device = OpenDevice(gpu);
    if (!device.ok()) return device.status();
    num_thread_blocks_ = kThreadBlocksPerSm * device->num_sms;
    const Result<DeviceMemory> memory = MemoryOfDevice();
    if (!memory.ok()) return memory.status();
    const size_t matrix_bytes = size_t{2} * kWidth * kWidth;
    read_bytes_ = std::min(kReadBytesMax, memory->free_bytes / 2) / 16 * 16;
    DS_RETURN_IF_ERROR(Take(&data_, std::max(read_bytes_, 3 * matrix_bytes)));
    DS_RETURN_IF_ERROR(Take(&sink_, sizeof(uint32_t)));
    Result<Stream> stream = Stream::Create();
    if (!stream.ok()) return stream.status();
    stream_ = std::make_unique<Stream>(std::move(*stream));
    for (std::unique_ptr<Event>& event : events_) {
      Result<Event> made = Event::Create(/*timed=*/true);
      if (!made.ok()) return made.status();
      event = std::make_unique<Event>(std::move(*made));
    }
    Result<std::unique_ptr<MatrixLibrary>> library = MatrixLibrary::Open();
    if (!library.ok()) return library.status();
    library_ = std::move(*library);
    DS_RETURN_IF_ERROR(FillBytes(data_, std::byte{0}, *stream_));
    return FillOperands();
  }

  Result<double> ReadBytesPerSecond() {
    const Result<double> seconds = SecondsOf(kReads, [&] {
      return ReadStream(data_.data(), read_bytes_, num_thread_blocks_, sink_.as<uint32_t>(),
                        *stream_);
    });
    if (!seconds.ok()) return seconds.status();
    return static_cast<double>(read_bytes_) / *seconds;
  }

  Result<double> MatrixFlopsPerSecond() {
    constexpr size_t kElements = size_t{kWidth} * kWidth;
    MatrixProduct product;
    product.weight = data_.data();
    product.x = data_.as<BFloat16>() + kElements;
    product.y = data_.as<BFloat16>() + 2 * kElements;
    product.in_features = product.out_features = product.num_rows = kWidth;
    product.x_stride = kWidth;
    const Result<double> seconds = SecondsOf(kProducts,
                                             [&] { return library_->Multiply(product, *stream_); });
    if (!seconds.ok()) return seconds.status();
    return 2.0 * std::pow(kWidth, 3) / *seconds;
  }

 private:
  static Status Take(DeviceBuffer* buffer, size_t size_bytes) {
    Result<DeviceBuffer> taken = DeviceBuffer::Allocate(size_bytes);
    if (taken.ok()) *buffer = std::move(*taken);
    return taken.status();
  }

  // Random numbers in (-1, 1): a product of constants draws less power, so it runs at a higher
  // clock.
  Status FillOperands() {
    constexpr size_t kPiece = size_t{4} << 20, kOperands = size_t{2} * kWidth * kWidth;
    static_assert(kOperands % kPiece == 0);
    std::vector<BFloat16> piece(kPiece);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> number(-1, 1);
    for (BFloat16& value : piece) value = FloatToBFloat16(number(random));
    for (size_t begin = 0; begin < kOperands; begin += kPiece) {
      DS_RETURN_IF_ERROR(
          CopyToDevice(std::as_bytes(std::span(piece)), data_, begin * sizeof(BFloat16), *stream_));
    }
    return stream_->Synchronize();
  }

  // Mean seconds of one of `runs` runs, after a warm-up run.
  Result<double> SecondsOf(int runs, const std::function<Status()>& queue) {
    DS_RETURN_IF_ERROR(queue());
    DS_RETURN_IF_ERROR(stream_->Record(*events_[0]));
    for (int run = 0; run < runs; ++run) DS_RETURN_IF_ERROR(queue());
    DS_RETURN_IF_ERROR(stream_->Record(*events_[1]));
    DS_RETURN_IF_ERROR(stream_->Synchronize());
    const Result<float> milliseconds = MillisecondsBetween(*events_[0], *events_[1]);
    if (!milliseconds.ok()) return milliseconds.status();
    return static_cast<double>(*milliseconds) * 1e-3 / runs;
  }

  size_t read_bytes_ = 0;
  int num_thread_blocks_ = 0;
  DeviceBuffer data_, sink_;
  std::unique_ptr<Stream> stream_;
  std::array<std::unique_ptr<Event>, 2> events_;
  std::unique_ptr<MatrixLibrary> library_;
};

DeviceProbe::DeviceProbe(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceProbe::~DeviceProbe() = default;

Result<std::unique_ptr<DeviceProbe>> DeviceProbe::Open(int gpu) {
  auto state = std::make_unique<State>();
  DS_RETURN_IF_ERROR(state->Open(gpu));
  return std::unique_ptr<DeviceProbe>(new DeviceProbe(std::move(state)));
}
Result<double> DeviceProbe::MeasureReadBytesPerSecond() { return state_->ReadBytesPerSecond(); }
Result<double> DeviceProbe::MeasureMatrixFlopsPerSecond() { return state_->MatrixFlopsPerSecond(); }

}  // namespace diffserve::cuda
