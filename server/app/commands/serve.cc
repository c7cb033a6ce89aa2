// SPDX-License-Identifier: Apache-2.0
// `diffserve serve`: loads, listens, prints the ready line, waits for a signal and
// drains.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <utility>

#include "kernels/process/crash_report.h"
#include "kernels/process/line_writer.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "server/app/commands/commands.h"
#include "server/app/commands/loaded_server.h"
#include "server/app/serve_ports.h"
#include "server/app/stop_signals.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

constexpr timespec kHealthPeriod{.tv_sec = 0, .tv_nsec = 250'000'000};  // how often gRPC's health
                                                                        // service follows Health
constexpr std::chrono::seconds kLastLines{2};

std::string ReadyLine(const ServeOptions& serve, Server& server) {
  const std::string& host = serve.host;
  const HttpServer* const health = server.health_http();
  return "ready http=" + HttpAddress(serve, server.http().port()) +
         (server.grpc() == nullptr ? "" : " grpc=" + Address(host, server.grpc()->port())) +
         (health == nullptr ? "" : " health=" + Address(host, health->port())) +
         " model=" + server.frontend().options().names.name;
}

// Returns when a signal arrives, or with an error when the engine has failed and no request can be
// answered any more.
Status WaitForSignal(const sigset_t& signals, Server& server) {
  const ScopedThreadActivity activity("a signal");
  while (sigtimedwait(&signals, nullptr, &kHealthPeriod) < 0) {
    const bool ready = server.health().Ready().ok();
    if (server.grpc() != nullptr) server.grpc()->SetServing(ready);
    if (!server.engine().Snapshot().failed) continue;
    const Status failure = server.engine().failure();
    return failure.code() == StatusCode::kDeviceLost
               ? Status(failure.code(), "the GPU is lost: " + failure.message())
               : Status(StatusCode::kInternal, "the engine has failed");
  }
  return {};
}

// Ends without destructors, because calls on a lost device may never return.
[[noreturn]] void EndWithoutDevice(const Status& status) {
  LogMessage(LogLevel::kError, status.message());
  FlushLog(kLastLines);
  std::_Exit(kExitDeviceLost);
}

}  // namespace

Status RunServe(const SessionOptions& options, const ServeOptions& serve,
                const ExecutorWrapper& wrap) {
  const NamedThread named("main", "the start");
  const sigset_t signals = BlockStopSignals();
  std::signal(SIGPIPE, SIG_IGN);
  RaiseFileLimit();
  ReturnFreedMemory();
  std::optional<EndsOnSignal> ends_on_signal(std::in_place, "loading");
  std::optional<StopsWithInput> stops_with_input;
  if (serve.stop_with_stdin) stops_with_input.emplace();
  Result<LoadedServer> loaded = LoadServer(options, serve, wrap, ProgressLine::Form::kLog);
  if (!loaded.ok()) return loaded.status();
  Server& server = *loaded->server;
  CrashWhenMemoryRunsOut();
  ends_on_signal.reset();  // once a port answers, a signal drains
  DS_RETURN_IF_ERROR(server.Listen());
  LogServing(*loaded);
  if (serve.ui && serve.unix_socket.empty()) {
    Log(LogLevel::kInfo, "page",
        {{"address", "http://" + Address(serve.host, server.http().port()) + "/"}});
  }
  LineWriter out({.descriptor = STDOUT_FILENO});
  out.Push(ReadyLine(serve, server) + "\n");

  const Status ended = WaitForSignal(signals, server);
  BeginDrain(serve.drain_timeout_s, ends_on_signal);
  const ScopedThreadActivity activity("the end of running requests");
  server.Stop(steady_clock::now() + std::chrono::seconds(serve.drain_timeout_s));
  Log(LogLevel::kInfo, "stopped");
  if (ended.code() == StatusCode::kDeviceLost) EndWithoutDevice(ended);
  return ended;
}

}  // namespace diffserve
