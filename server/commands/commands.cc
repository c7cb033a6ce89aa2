#include "server/commands/commands.h"

namespace diffserve {

Status RunCommand(const Options& options) {
  if (options.command == "serve") return RunServe(options);
  if (options.command == "logits") return RunLogits(options);
  if (options.command == "generate") return RunGenerate(options);
  if (options.command == "bench") return RunBench(options);
  if (options.command == "inspect") return RunInspect(options);
  if (options.command == "convert") return RunConvert(options);
  if (options.command == "probe") return RunProbe(options);
  return InvalidArgument("\"" + options.command + "\" is not a command", "command");
}

}  // namespace diffserve
