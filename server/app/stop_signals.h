// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGINT, and the end of standard input. Several threads wait for them in turn: the
// thread of an EndsOnSignal while the process loads, drains or chats, and WaitForSignal of the
// serve command in between.
#pragma once

#include <csignal>
#include <functional>
#include <optional>
#include <thread>

namespace diffserve {

// Blocks both signals in this thread and in threads that it starts later. Call before other threads
// that could receive them exist.
sigset_t BlockStopSignals();

// While this object exists, either signal ends the process at once by that signal. This also works
// for a container's first process, on which a signal's default action has no effect. REQUIRES:
// BlockStopSignals.
class EndsOnSignal {
 public:
  // Called first for each signal, on this object's thread. True: the signal is handled and ends
  // nothing.
  using Takes = std::function<bool(int signal)>;

  explicit EndsOnSignal(
      const char* while_doing,  // for the log; a literal
      Takes takes = [](int) { return false; });
  ~EndsOnSignal();
  EndsOnSignal(const EndsOnSignal&) = delete;
  EndsOnSignal& operator=(const EndsOnSignal&) = delete;

 private:
  void Run() const;

  const char* const while_doing_;
  const Takes takes_;
  const int signals_, stop_event_;
  std::thread thread_;  // last: it uses all of the above
};

// Logs that a drain begins, which a second signal ends at once while `second_signal` exists.
void BeginDrain(int timeout_s, std::optional<EndsOnSignal>& second_signal);

// While this object exists, the process gets SIGTERM when standard input ends. If that is a pipe
// from a parent process, the end comes also when the parent is killed. What is written to it is
// dropped.
class StopsWithInput {
 public:
  StopsWithInput();
  ~StopsWithInput();
  StopsWithInput(const StopsWithInput&) = delete;
  StopsWithInput& operator=(const StopsWithInput&) = delete;

 private:
  void Run() const;

  const int stop_event_;
  std::thread thread_;  // last, as above
};

}  // namespace diffserve
