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
struct ChildStreams {
  int in, out, err;
};
[[noreturn]] void BecomeChild(pid_t parent, const ChildStreams& streams, char* const* arguments,
                              char* const* environment) {
  setpgid(0, 0);  // so that Ctrl-C in a terminal reaches only the parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitNotStarted);  // it has ended already
  dup2(streams.in, STDIN_FILENO);
  dup2(streams.out, STDOUT_FILENO);
  dup2(streams.err, STDERR_FILENO);
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

struct PipeEnds {
  PipeEnds() = default;
  PipeEnds(const PipeEnds&) = delete;
  PipeEnds& operator=(const PipeEnds&) = delete;
  ~PipeEnds() {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
  }
  Status Open() { return pipe2(ends, O_CLOEXEC) == 0 ? Status() : SystemError("pipe"); }
  int reader() const { return ends[0]; }
  int writer() const { return ends[1]; }
  int TakeReader() { return std::exchange(ends[0], -1); }

  int ends[2] = {-1, -1};
};

}  // namespace

Result<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                         const std::vector<std::string>& hidden_variables,
                                         std::string_view input) {
  std::vector<std::string> argument_texts = {kChildProgram};
  argument_texts.insert(argument_texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment_texts = EnvironmentWithout(hidden_variables);
  const std::vector<char*> argv = Pointers(argument_texts), envp = Pointers(environment_texts);
  PipeEnds in, out, err;
  for (PipeEnds* const pipe : {&in, &out, &err}) DS_RETURN_IF_ERROR(pipe->Open());
  // A pipe has room for it, so this does not wait for the process.
  if (write(in.writer(), input.data(), input.size()) != static_cast<ssize_t>(input.size()))
    return SystemError("write to a pipe");
  const pid_t parent = getpid();
  const pid_t pid = _Fork();  // no library's handlers run: the child only replaces itself
  if (pid == 0) {
    BecomeChild(parent, {in.reader(), out.writer(), err.writer()}, argv.data(), envp.data());
  }
  if (pid < 0) return SystemError("fork");
  ChildProcess child;
  child.pid_ = pid;
  child.out_ = out.TakeReader();
  child.err_ = err.TakeReader();
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
