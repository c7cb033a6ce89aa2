// SPDX-License-Identifier: Apache-2.0
// The commands of the binary. Each runs to its end; its Status says whether it succeeded.
#pragma once

#include "kernels/base/status.h"
#include "server/app/options.h"
#include "server/app/session/model_session.h"

namespace diffserve {

inline constexpr int kExitFailure = 1;  // a model that cannot be served, a taken port, a file that
                                        // cannot be written, a server not ready
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDeviceLost = 3;  // a GPU is lost, busy or missing; another try may get it

// The whole program, from the command line to the exit code.
int RunProgram(int argc, char** argv, const ExecutorWrapper& wrap = {});
Status RunCommand(const Options& options, const ExecutorWrapper& wrap = {});  // by options.command

Status RunServe(const SessionOptions& options, const ServeOptions& serve,
                const ExecutorWrapper& wrap);
// --models
Status RunServeModels(const Options& options);
Status RunLogits(const SessionOptions& options, const PromptOptions& prompt,
                 const LogitsOptions& logits);
Status RunGenerate(const SessionOptions& options, const PromptOptions& prompt,
                   const GenerateOptions& generate, bool json);
Status RunChat(const SessionOptions& options, const GenerateOptions& generate,
               const ChatOptions& chat, const ExecutorWrapper& wrap);
Status RunBench(const SessionOptions& options, const BenchOptions& bench, bool json);
// `kv_cache_dir`: a directory to report too, or without a model alone; empty: none.
Status RunInspect(const SessionOptions& options, const InspectOptions& inspect,
                  const std::string& kv_cache_dir, bool json);
// --activations
Status RunActivations(const SessionOptions& options, const InspectOptions& inspect, bool json);
Status RunConvert(const CheckpointOptions& options, const ConversionOptions& conversion);
Status RunProbe(const ProbeOptions& options);
Status RunDevices(bool json);
Status RunModels(const SessionOptions& options, bool json);
Status RunBatch(const SessionOptions& options, const ServeOptions& serve, const BatchOptions& batch,
                const ExecutorWrapper& wrap);

}  // namespace diffserve
