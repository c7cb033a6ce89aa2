// SPDX-License-Identifier: Apache-2.0
// Timing on the device: samples between two events, medians, and alternatives measured in turns so
// that a drifting clock meets all of them alike. A failed call ends the program with its message.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cuda/stream.h"

namespace diffserve::bench {

inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cuda_bench: %s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(*result);
}
// A launcher's cudaError_t.
inline void Must(int error) { Must(cuda::StatusOfCudaError(error, "a launch")); }

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Queues one run of what is measured; `run` counts up, so that runs can rotate over buffers.
using Work = std::function<void(int run)>;

class Timer {
 public:
  // `smoke`: one run of everything, and times that mean nothing.
  Timer(const cuda::Stream& stream, bool smoke)
      : stream_(stream),
        smoke_(smoke),
        begin_(Must(cuda::Event::Create(true))),
        end_(Must(cuda::Event::Create(true))) {}

  // Seconds of a run, by a sample of `runs`.
  double Sample(const Work& work, int runs) {
    Must(stream_.Record(begin_));
    for (int run = 0; run < runs; ++run) work(run_++);
    Must(stream_.Record(end_));
    Must(stream_.Synchronize());
    return static_cast<double>(Must(cuda::MillisecondsBetween(begin_, end_))) * 1e-3 / runs;
  }

  // For each of the alternatives its seconds a run in each round; every round takes one sample of
  // each, in turns.
  std::vector<std::vector<double>> Rounds(const std::vector<Work>& alternatives) {
    std::vector<std::vector<double>> seconds(alternatives.size());
    std::vector<int> runs;
    for (const Work& work : alternatives) {
      Sample(work, smoke_ ? 1 : 3);  // the caches of code and plans
      const double one = Sample(work, 1);
      runs.push_back(smoke_ ? 1 : std::clamp(static_cast<int>(kSampleSeconds / one), 1, 1000));
    }
    for (int round = 0; round < (smoke_ ? 1 : kRounds); ++round) {
      for (size_t i = 0; i < alternatives.size(); ++i)
        seconds[i].push_back(Sample(alternatives[i], runs[i]));
    }
    return seconds;
  }
  double Seconds(const Work& work) { return Median(Rounds({work})[0]); }

  bool smoke() const { return smoke_; }
  const cuda::Stream& stream() const { return stream_; }

 private:
  static constexpr int kRounds = 21;
  static constexpr double kSampleSeconds = 4e-3;

  const cuda::Stream& stream_;
  bool smoke_;
  cuda::Event begin_;
  cuda::Event end_;
  int run_ = 0;
};

// Median over rounds of `other` / `mine`.
inline double Speedup(const std::vector<double>& mine, const std::vector<double>& other) {
  std::vector<double> ratios;
  for (size_t i = 0; i < mine.size(); ++i) ratios.push_back(other[i] / mine[i]);
  return Median(ratios);
}

}  // namespace diffserve::bench
