// SPDX-License-Identifier: Apache-2.0
#include "server/app/commands/commands.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/text/text_memory.h"
#include "kernels/process/crash_report.h"
#include "kernels/process/log.h"
#include "kernels/process/machine_memory.h"
#include "kernels/process/out_of_memory.h"
#include "server/api/head/parent_secret.h"
#include "server/app/completion.h"
#include "server/app/environment.h"
#include "server/app/help_text.h"
#include "server/app/session/model_session.h"
#include "server/app/session/progress_line.h"
#include "server/app/standard_streams.h"
#include "server/app/stop_signals.h"
#include "server/hub/model_place.h"
#include "server/router/children/child_process.h"
#include "server/serving/build_version.h"

namespace diffserve {

Status RunCommand(const Options& options, const ExecutorWrapper& wrap) {
  const SessionOptions& session = options.session;
  if (options.command == "serve" && !options.models.file.empty()) return RunServeModels(options);
  if (options.command == "serve") return RunServe(session, options.serve, wrap);
  if (options.command == "logits") return RunLogits(session, options.prompt, options.logits);
  if (options.command == "generate")
    return RunGenerate(session, options.prompt, options.generate, options.json);
  if (options.command == "chat") return RunChat(session, options.generate, options.chat, wrap);
  if (options.command == "bench") return RunBench(session, options.bench, options.json);
  if (options.command == "inspect" && options.inspect.activations.empty())
    return RunInspect(session, options.inspect, options.serve.kv_cache_dir, options.json);
  if (options.command == "inspect") return RunActivations(session, options.inspect, options.json);
  if (options.command == "convert") return RunConvert(session, options.conversion);
  if (options.command == "probe") return RunProbe(options.probe);
  if (options.command == "models") return RunModels(session, options.json);
  if (options.command == "devices") return RunDevices(options.json);
  if (options.command == "run-batch") return RunBatch(session, options.serve, options.batch, wrap);
  return InvalidArgument("\"" + options.command + "\" is not a command", "command");
}

namespace {

std::vector<std::string> Environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

// The names in MODEL_DIR and --speculative-model become directories, for which files may be
// fetched.
Status FindModelOf(Options& options) {
  std::string& model_dir = options.session.model_dir;
  if (model_dir.empty()) return {};  // of probe, models, devices, chat --url and serve --models
  const FileUse use = options.command == "convert"    ? FileUse::kConvert
                      : options.session.dummy_weights ? FileUse::kConfig
                                                      : FileUse::kRun;
  ProgressLine line(options.command == "serve" ? ProgressLine::Form::kLog
                                               : ProgressLine::Form::kPlain);
  LoadProgress progress(line.report(), line.pace());
  options.session.model_name = model_dir;
  DS_RETURN_IF_ERROR(Assign(&model_dir, FindModel(model_dir, use, progress)));
  std::string& draft_dir = options.session.draft_dir;
  return draft_dir.empty() ? Status() : Assign(&draft_dir, FindModel(draft_dir, use, progress));
}

// A model's process reads the secret that its parent gives it (child_process.h).
Status TakeParentSecret(const char* program, Options& options) {
  if (program != std::string_view(kChildProgram) || options.command == "devices") return {};
  std::string& secret = options.serve.parent_secret;
  char bytes[256];
  for (ssize_t count; (count = read(STDIN_FILENO, bytes, sizeof(bytes))) > 0;)
    secret.append(bytes, static_cast<size_t>(count));
  if (options.command == "serve" && IsParentSecret(secret)) return {};
  return InvalidArgument(std::string(kChildProgram) +
                             " is started by serve --models, which gives it a secret by its "
                             "standard input",
                         "command");
}

// Before the command line is known to be right, so that its error has this format too.
LogFormat LogFormatAsked(const std::vector<std::string>& args,
                         const std::vector<std::string>& environment) {
  constexpr std::string_view kFlag = "--log-format";
  std::string asked(ValueOfVariable(environment, VariableOf(kFlag)));
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == kFlag && i + 1 < args.size()) asked = args[i + 1];
    if (args[i].starts_with(std::string(kFlag) + "=")) asked = args[i].substr(kFlag.size() + 1);
  }
  const bool serves = !args.empty() && args[0] == "serve";
  return serves && asked == "json" ? LogFormat::kJson : LogFormat::kText;
}

int Run(int argc, char** argv, const ExecutorWrapper& wrap) {
  const LogThread log(STDERR_FILENO);
  InstallCrashReport(BuildVersion().data(), BuildCommit().data());
  const std::vector<std::string> args(argv + 1, argv + argc), environment = Environment();
  SetLogFormat(LogFormatAsked(args, environment));
  Result<Options> parsed = ParseOptions(args, environment);
  if (!parsed.ok()) {
    LogMessage(LogLevel::kError, parsed.status().message());
    return kExitUsage;
  }
  Options& options = parsed.value();
  SetLogLevel(options.log_level);
  SetLogFormat(options.log_format);
  if (const Status secret = TakeParentSecret(argv[0], options); !secret.ok()) {
    LogMessage(LogLevel::kError, secret.message());
    return kExitUsage;
  }
  for (const std::string& warning : options.warnings) LogMessage(LogLevel::kWarning, warning);
  if (options.command == "help") return std::fputs(HelpText(options.help_of).c_str(), stdout), 0;
  if (options.command == "version") return std::fputs(VersionText().c_str(), stdout), 0;
  if (options.command == "completion")
    return std::fputs(CompletionScript(options.completion.shell).c_str(), stdout), 0;
  const std::string& command = options.command;
  BlockStopSignals();
  std::optional<EndsOnSignal> ends_on_signal(std::in_place, command.c_str());
  Status status = FindModelOf(options);
  constexpr std::string_view kEndThemselves[] = {"serve", "chat", "convert", "run-batch"};
  if (std::ranges::find(kEndThemselves, command) != std::end(kEndThemselves))
    ends_on_signal.reset();
  if (status.ok()) status = RunCommand(options, wrap);
  if (status.ok()) return 0;
  LogMessage(LogLevel::kError, status.message());
  if (status.code() == StatusCode::kDeviceLost) return kExitDeviceLost;
  // A flag that turns out wrong only with the model is wrong usage too.
  const bool wrong_usage = status.code() == StatusCode::kInvalidArgument &&
                           status.param().starts_with("--");
  return wrong_usage ? kExitUsage : kExitFailure;
}

std::string OutOfMemoryText(const std::string& what, const FreeMemory& free) {
  return what + "; " + MiB(static_cast<double>(free.bytes)) + " are free, as " + free.limit +
         " allows";
}

// The same where the text library runs out of memory. Once a server listens, it crashes instead.
void EndWithoutTextMemory(size_t bytes) {
  if (const std::new_handler crash = std::get_new_handler(); crash != nullptr) crash();
  const std::string asked = "out of memory: asked for " + MiB(static_cast<double>(bytes));
  const std::string line = MessageLine(LogLevel::kError, OutOfMemoryText(asked, MinFreeMemory()));
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(kExitFailure);
}

}  // namespace

// Memory that runs out before a server listens is an error like any other: one line with the
// numbers.
int RunProgram(int argc, char** argv, const ExecutorWrapper& wrap) {
  if (!StandardStreamsAreOpen()) return kExitFailure;  // no stream to report it on
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the process's limit is an error of the write
  OnFailedTextAllocation(EndWithoutTextMemory);
  std::string what;
  FreeMemory free;
  try {
    return Run(argc, argv, wrap);
  } catch (const OutOfMemory& error) {
    what = "out of memory: asked for " + MiB(static_cast<double>(error.asked_bytes()));
    free = error.free();
  } catch (const std::bad_alloc&) {
    what = "out of memory";
    free = MinFreeMemory();                   // after the failed start has released its memory
  } catch (const std::system_error& error) {  // such as a thread that cannot be started
    what = error.what();
    free = MinFreeMemory();
  }
  LogMessage(LogLevel::kError, OutOfMemoryText(what, free));
  return kExitFailure;
}

}  // namespace diffserve
