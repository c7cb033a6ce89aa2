// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

extern char** environ;

namespace diffserve {
namespace {

constexpr int kExitNotStarted = 127;
// Also right when the file has been replaced, as by an upgrade.
constexpr char kThisProgram[] = "/proc/self/exe";

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWithout(const std::vector<std::string>& hidden) {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::ranges::find(hidden, text.substr(0, text.find('='))) == hidden.end())
      kept.emplace_back(text);
  }
  return kept;
}

// After the fork, where only async-signal-safe functions may be called.
[[noreturn]] void BecomeChild(pid_t parent, int out, int err, char* const* arguments,
                              char* const* environment) {
  setpgid(0, 0);  // so that Ctrl-C in a terminal reaches only the parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitNotStarted);  // it has ended already
  const int in = open("/dev/null", O_RDONLY);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0U, 0);  // not all descriptors of the libraries are CLOEXEC
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  execve(kThisProgram, arguments, environment);
  _exit(kExitNotStarted);
}

Status SystemError(const char* what) {
  return Status(StatusCode::kUnavailable, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                         const std::vector<std::string>& hidden_variables) {
  std::vector<std::string> argument_texts = {"diffserve"};
  argument_texts.insert(argument_texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment_texts = EnvironmentWithout(hidden_variables);
  const std::vector<char*> argv = Pointers(argument_texts), envp = Pointers(environment_texts);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return SystemError("pipe");
  if (pipe2(err, O_CLOEXEC) != 0) {
    const Status failed = SystemError("pipe");
    close(out[0]), close(out[1]);
    return failed;
  }
  const pid_t parent = getpid();
  const pid_t pid = _Fork();  // no library's handlers run: the child only replaces itself
  if (pid == 0) BecomeChild(parent, out[1], err[1], argv.data(), envp.data());
  const Status failed = pid < 0 ? SystemError("fork") : Status();
  close(out[1]), close(err[1]);
  ChildProcess child;
  child.pid_ = pid;
  child.out_ = out[0];
  child.err_ = err[0];
  if (!failed.ok()) return failed;
  child.exit_event_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // CLOEXEC by itself
  if (child.exit_event_ < 0) return SystemError("pidfd_open");
  for (const int pipe : {child.out_, child.err_}) fcntl(pipe, F_SETFL, O_NONBLOCK);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_event_(std::exchange(other.exit_event_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  for (const int descriptor : {exit_event_, out_, err_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

std::optional<ChildProcess::End> ChildProcess::TakeEnd() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return End{"signal " + std::to_string(signal), 128 + signal};
  }
  return End{"exit code " + std::to_string(WEXITSTATUS(status)), WEXITSTATUS(status)};
}

}  // namespace diffserve
