// SPDX-License-Identifier: Apache-2.0
// LoadProgress: reports how far a model has been read, packed or converted. It reports only if the
// work takes long.
//
// Thread safety: one thread, the one that does the work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace diffserve {

class LoadProgress {
 public:
  // When it reports: after `first`, and then after every `then`.
  struct Pace {
    std::chrono::milliseconds first{2'000};
    std::chrono::milliseconds then{10'000};
  };
  using Report = std::function<void(const char* doing, uint64_t done_bytes, uint64_t all_bytes)>;
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  LoadProgress(Report report, const Pace& pace, Clock clock = std::chrono::steady_clock::now)
      : report_(std::move(report)), pace_(pace), clock_(std::move(clock)) {}

  // `all_bytes` of tensors will be read. `doing` is a literal: "loading".
  void Begin(const char* doing, uint64_t all_bytes) {
    doing_ = doing;
    done_bytes_ = 0;
    all_bytes_ = all_bytes;
    next_ = clock_() + pace_.first;
  }
  void Add(uint64_t bytes) {
    done_bytes_ += bytes;
    if (done_bytes_ >= all_bytes_ || clock_() < next_) return;
    report_(doing_, done_bytes_, all_bytes_);
    next_ = clock_() + pace_.then;
  }

 private:
  const Report report_;
  const Pace pace_;
  const Clock clock_;
  const char* doing_ = "";
  uint64_t done_bytes_ = 0, all_bytes_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace diffserve
