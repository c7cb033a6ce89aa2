// SPDX-License-Identifier: Apache-2.0
// ChildProcess: another process of this program, with pipes for its input and output. It dies with
// this process, however this one ends, because the kernel signals it when the thread that started
// it ends. So that thread must live as long as the process. Thread safety: only on the thread that
// started it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

// The name, argument 0, of such a process. By it the process knows that its input is its secret.
inline constexpr char kChildProgram[] = "diffserve-model";

class ChildProcess {
 public:
  // Runs this program with these arguments, and with the environment except variables of these
  // names. `input`: what its standard input holds, which other users cannot see; at most 4 KiB.
  // Error: kUnavailable with the system's message.
  static Result<ChildProcess> Start(const std::vector<std::string>& arguments,
                                    const std::vector<std::string>& hidden_variables,
                                    std::string_view input);
  ~ChildProcess();  // kills and reaps it if it still runs
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  // Readable when it has ended, and when there is output. The pipes do not block.
  int exit_event() const { return exit_event_; }
  int out() const { return out_; }
  int err() const { return err_; }

  void Signal(int signal) const;
  // How it ended: "exit code 1" or "signal 9"; nullopt: it runs. Reaps it.
  struct End {
    std::string text;
    int exit_code;  // 128 and the signal, if it was ended by one
  };
  std::optional<End> TakeEnd();

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;  // -1: reaped, or none
  int exit_event_ = -1, out_ = -1, err_ = -1;
};

}  // namespace diffserve
