// The commands of the binary. Each runs to its end and tells by its Status whether it did what was asked.
#pragma once

#include "kernels/base/status.h"
#include "server/options.h"

namespace diffserve {

inline constexpr int kExitFailure = 1;  // a model that cannot be served, a taken port, a file that cannot be written, a server not ready
inline constexpr int kExitUsage = 2;

Status RunCommand(const Options& options);  // by options.command

Status RunServe(const Options& options);
Status RunLogits(const Options& options);
Status RunGenerate(const Options& options);
Status RunBench(const Options& options);
Status RunInspect(const Options& options);
Status RunConvert(const Options& options);
Status RunProbe(const Options& options);

}  // namespace diffserve
