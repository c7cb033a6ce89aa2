#include "server/commands/commands.h"

#include <cstdio>
#include <string>
#include <vector>

namespace diffserve {

Status RunCommand(const Options& options, const ExecutorWrapper& wrap) {
  const SessionOptions& session = options.session;
  if (options.command == "serve") return RunServe(session, options.serve, wrap);
  if (options.command == "logits") return RunLogits(session, options.prompt, options.logits);
  if (options.command == "generate")
    return RunGenerate(session, options.prompt, options.generate, options.json);
  if (options.command == "bench") return RunBench(session, options.bench, options.json);
  if (options.command == "inspect" && options.inspect.activations.empty())
    return RunInspect(session, options.json);
  if (options.command == "inspect") return RunActivations(session, options.inspect, options.json);
  if (options.command == "convert") return RunConvert(session, options.conversion);
  if (options.command == "probe") return RunProbe(options.probe);
  return InvalidArgument("\"" + options.command + "\" is not a command", "command");
}

int RunProgram(int argc, char** argv, const ExecutorWrapper& wrap) {
  const Result<Options> parsed = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.ok()) {
    std::fprintf(stderr, "diffserve: %s\n", parsed.status().message().c_str());
    return kExitUsage;
  }
  const Options& options = parsed.value();
  SetLogLevel(options.log_level);
  if (options.command == "help") return std::fputs(HelpText().c_str(), stdout), 0;
  if (options.command == "version") return std::fputs(VersionText().c_str(), stdout), 0;
  const Status status = RunCommand(options, wrap);
  if (status.ok()) return 0;
  std::fprintf(stderr, "diffserve: %s\n", status.message().c_str());
  // A flag that only the model could show to be wrong is wrong usage all the same.
  const bool wrong_usage = status.code() == StatusCode::kInvalidArgument &&
                           status.param().starts_with("--");
  return wrong_usage ? kExitUsage : kExitFailure;
}

}  // namespace diffserve
