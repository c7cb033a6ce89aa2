// LineWriter: lines for a descriptor that somebody else reads. Push puts them into a bounded queue
// and a thread of its own writes them, so a reader that stalls, a full disk or a closed pipe holds
// no caller. What does not fit, and what cannot be written, is counted and told in front of the
// next line that is taken.
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
    size_t max_bytes = size_t{1} << 20;                 // of the queue
    std::string (*gap_line)(uint64_t lines) = nullptr;  // what tells of dropped lines; nullptr:
                                                        // nothing does
    std::chrono::milliseconds last_wait{500};           // for the lines that are left at the end
  };
  explicit LineWriter(const Options& options);
  // Writes what is left, as far as last_wait allows.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Never waits for the descriptor. `line` ends with a line feed.
  void Push(std::string line) noexcept;
  // Returns when all lines pushed before are written or dropped; false: not within `limit`.
  bool Flush(std::chrono::milliseconds limit);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }  // lines not written

 private:
  void Run();
  // False: the writer is to end.
  bool WriteWhole(const std::string& line);
  bool WaitForRoom();
  void Drop(uint64_t lines);

  const Options options_;
  const int stop_event_;
  int out_ = -1;  // what is written to: the descriptor, or the same file opened anew
  bool is_socket_ = false;
  size_t piece_bytes_ = 0;  // at most so many at once
  std::mutex mutex_;
  std::condition_variable wake_, progress_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;
  uint64_t untold_ = 0;  // dropped since the last gap line
  bool stopping_ = false;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<size_t> pending_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace diffserve
