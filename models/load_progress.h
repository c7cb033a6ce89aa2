// LoadProgress: tells how much of a model has been read, where that takes long: about every
// kPeriod, and never of a model that is read sooner.
//
// Thread safety: one thread, the one that loads the model.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace diffserve {

class LoadProgress {
 public:
  static constexpr std::chrono::seconds kPeriod{2};
  using Report = std::function<void(uint64_t done_bytes, uint64_t all_bytes)>;
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  explicit LoadProgress(Report report, Clock clock = std::chrono::steady_clock::now)
      : report_(std::move(report)), clock_(std::move(clock)) {}

  // Of tensors that will be read.
  void Begin(uint64_t all_bytes) {
    done_bytes_ = 0;
    all_bytes_ = all_bytes;
    next_ = clock_() + kPeriod;
  }
  void Add(uint64_t bytes) {
    done_bytes_ += bytes;
    if (done_bytes_ >= all_bytes_ || clock_() < next_) return;
    report_(done_bytes_, all_bytes_);
    next_ = clock_() + kPeriod;
  }

 private:
  const Report report_;
  const Clock clock_;
  uint64_t done_bytes_ = 0, all_bytes_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace diffserve
