// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

constexpr size_t kWholeLine = SSIZE_MAX;

// Opens a pipe or a terminal a second time, to write without blocking: the flags of the original
// belong to all processes that share it. -1: it is something else, or may not be opened.
int OpenAgain(int descriptor, mode_t mode) {
  if (!S_ISFIFO(mode) && !S_ISCHR(mode)) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

}  // namespace

LineWriter::LineWriter(const Options& options)
    : options_(options), stop_event_(eventfd(0, EFD_CLOEXEC)), out_(options.descriptor) {
  DS_CHECK(stop_event_ >= 0, "no descriptor is left for the line writer");
  struct stat status{};
  const bool known = fstat(options_.descriptor, &status) == 0;
  is_socket_ = known && S_ISSOCK(status.st_mode);
  const int again = known ? OpenAgain(options_.descriptor, status.st_mode) : -1;
  if (again >= 0) out_ = again;
  // poll promises that a pipe has room for PIPE_BUF bytes, no more.
  piece_bytes_ = is_socket_ || again >= 0 || (known && S_ISREG(status.st_mode)) ? kWholeLine
                                                                                : PIPE_BUF;
  // Signals of the process go to other threads. Writing to a pipe without a reader returns an
  // error.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LineWriter::~LineWriter() {
  Flush(options_.last_wait);
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();  // the thread may not even have begun: it writes what there is room for
  eventfd_write(stop_event_, 1);
  thread_.join();
  close(stop_event_);
  if (out_ != options_.descriptor) close(out_);
}

void LineWriter::Push(std::string line) {
  {
    std::lock_guard lock(mutex_);
    if (bytes_ + line.size() > options_.max_bytes) return Drop(1);
    if (unreported_ > 0 && options_.gap_line != nullptr) {
      lines_.push_back(options_.gap_line(unreported_));
      bytes_ += lines_.back().size();
      pending_.fetch_add(1, std::memory_order_relaxed);
      unreported_ = 0;
    }
    const size_t size = line.size();
    lines_.push_back(std::move(line));
    bytes_ += size;
    pending_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
}

bool LineWriter::Flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return progress_.wait_for(lock, limit, [&] { return pending() == 0; });
}

// REQUIRES: the lock is held.
void LineWriter::Drop(uint64_t lines) {
  unreported_ += lines;
  dropped_.fetch_add(lines, std::memory_order_relaxed);
}

void LineWriter::Run() {
  const NamedThread named("lines", "its queue");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    const bool written = WriteWhole(line);
    lock.lock();
    bytes_ -= line.size();
    if (!written) Drop(1);
    if (!written && stopping_) return Drop(lines_.size());
    pending_.fetch_sub(1, std::memory_order_relaxed);
    progress_.notify_all();
  }
}

bool LineWriter::WriteWhole(const std::string& line) {
  const ScopedThreadActivity at("its descriptor");
  size_t done = 0;
  while (done < line.size()) {
    if (!WaitForRoom()) return false;
    const char* const from = line.data() + done;
    const size_t count = std::min(line.size() - done, piece_bytes_);
    const ssize_t written = is_socket_ ? send(out_, from, count, MSG_DONTWAIT | MSG_NOSIGNAL)
                                       : write(out_, from, count);
    if (written < 0 && errno != EINTR && (errno != EAGAIN || stopping_)) return false;
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
  return true;
}

// False: there is none, and the writer must end.
bool LineWriter::WaitForRoom() {
  pollfd events[] = {{out_, POLLOUT, 0}, {stop_event_, POLLIN, 0}};
  while (poll(events, 2, -1) < 0) {
    if (errno != EINTR) return false;
  }
  return events[0].revents != 0;  // if it is an error, the write returns it
}

}  // namespace diffserve
