// SIGTERM and SIGINT, which threads of the process take one after another: while it loads, while it
// drains and while it chats, the thread of an EndsOnSignal, in between WaitForSignal of the serve
// command.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace diffserve {

// Blocks both in this thread and in those that it starts from now on. Before any other thread that
// could take them.
sigset_t BlockStopSignals();

// While it lives, either signal ends the process at once, by that signal: also a container's first
// process, on which the default of a signal has no effect. REQUIRES: BlockStopSignals.
class EndsOnSignal {
 public:
  // Asked of each signal before, on the thread of this; true: it has been dealt with and ends
  // nothing.
  using Takes = std::function<bool(int signal)>;

  explicit EndsOnSignal(
      const char* while_doing,  // told in the log; a literal
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

}  // namespace diffserve
