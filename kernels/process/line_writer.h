// SPDX-License-Identifier: Apache-2.0
// LineWriter: writes lines to a descriptor that another process may read slowly. Push puts them
// into a bounded queue and the writer's own thread writes them, so a stalled reader, a full disk or
// a closed pipe never blocks a caller. Lines that do not fit or cannot be written are counted. The
// count is written before the next line that succeeds.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace diffserve {

class LineWriter {
 public:
  struct Options {
    int descriptor = -1;  // outlives the writer, which neither closes it nor changes its flags
    size_t max_bytes = size_t{1} << 20;  // of the queue
    // The line that reports dropped lines; nullptr: no report.
    std::string (*gap_line)(uint64_t lines) = nullptr;
    std::chrono::milliseconds last_wait{500};  // at the end, for the lines that are left
  };
  explicit LineWriter(const Options& options);
  // Writes what is left, within last_wait, and then what the descriptor takes without a wait.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Never waits for the descriptor. `line` ends with a line feed.
  void Push(std::string line);
  // Returns true when all lines pushed before are written or dropped, false after `limit`.
  bool Flush(std::chrono::milliseconds limit);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }  // lines not written

 private:
  void Run();
  // False: it could not be written.
  bool WriteWhole(const std::string& line);
  bool WaitForRoom();
  void Drop(uint64_t lines);

  const Options options_;
  const int stop_event_;
  int out_ = -1;  // the descriptor, or the same file opened anew
  bool is_socket_ = false;
  size_t piece_bytes_ = 0;  // maximum size of one write
  std::mutex mutex_;
  std::condition_variable wake_, progress_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;
  uint64_t unreported_ = 0;  // lines dropped since the last gap line
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<size_t> pending_{0};
  std::thread thread_;  // last: it uses all members above
};

}  // namespace diffserve
