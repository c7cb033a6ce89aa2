// SPDX-License-Identifier: Apache-2.0
#include "server/app/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

constexpr std::chrono::milliseconds kLastLines{200};  // for the log, of the second in which a
                                                      // signal ends the process

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int DescriptorOfSignals() {
  const sigset_t signals = StopSignals();
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

[[noreturn]] void EndBy(int signal, const char* while_doing) {
  Log(LogLevel::kInfo, "ended_by_signal",
      {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}, {"while", while_doing}});
  FlushLog(kLastLines);
  const sigset_t signals = StopSignals();
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(signal);
  _exit(128 + signal);  // the first process of a container
}

}  // namespace

sigset_t BlockStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

EndsOnSignal::EndsOnSignal(const char* while_doing, Takes takes)
    : while_doing_(while_doing),
      takes_(std::move(takes)),
      signals_(DescriptorOfSignals()),
      stop_event_(eventfd(0, EFD_CLOEXEC)) {
  DS_CHECK(signals_ >= 0 && stop_event_ >= 0, "no descriptor is left for signals");
  thread_ = std::thread([this] { Run(); });
}

EndsOnSignal::~EndsOnSignal() {
  eventfd_write(stop_event_, 1);
  thread_.join();
  close(stop_event_);
  close(signals_);
}

void EndsOnSignal::Run() const {
  const NamedThread named("signals", "a signal");
  pollfd events[] = {{signals_, POLLIN, 0}, {stop_event_, POLLIN, 0}};
  for (;;) {
    if (poll(events, 2, -1) < 0) continue;  // EINTR
    if ((events[1].revents & POLLIN) != 0) return;
    signalfd_siginfo taken;
    if (read(signals_, &taken, sizeof(taken)) != sizeof(taken)) continue;
    const int signal = static_cast<int>(taken.ssi_signo);
    if (!takes_(signal)) EndBy(signal, while_doing_);
  }
}

void BeginDrain(int timeout_s, std::optional<EndsOnSignal>& second_signal) {
  Log(LogLevel::kInfo, "draining", {{"timeout_s", std::to_string(timeout_s)}});
  try {
    second_signal.emplace("draining");
  } catch (const std::system_error&) {
    Log(LogLevel::kError, "signal_thread_failed");  // the drain continues without it
  }
}

StopsWithInput::StopsWithInput() : stop_event_(eventfd(0, EFD_CLOEXEC)) {
  DS_CHECK(stop_event_ >= 0, "no descriptor is left for the end of standard input");
  thread_ = std::thread([this] { Run(); });
}

StopsWithInput::~StopsWithInput() {
  eventfd_write(stop_event_, 1);
  thread_.join();
  close(stop_event_);
}

void StopsWithInput::Run() const {
  const NamedThread named("input", "the end of standard input");
  pollfd events[] = {{STDIN_FILENO, POLLIN, 0}, {stop_event_, POLLIN, 0}};
  for (;;) {
    if (poll(events, 2, -1) < 0) continue;  // EINTR
    if ((events[1].revents & POLLIN) != 0) return;
    char dropped[4096];
    const ssize_t count = read(STDIN_FILENO, dropped, sizeof(dropped));
    if (count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN))) continue;
    Log(LogLevel::kInfo, "input_ended");
    kill(getpid(), SIGTERM);
    return;
  }
}

}  // namespace diffserve
