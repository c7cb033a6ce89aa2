// SPDX-License-Identifier: Apache-2.0
// `diffserve convert`: a clean copy of a checkpoint, or of an original state dict of
// microsoft/unilm, checked by loading it.
#include "models/convert/convert.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "kernels/process/terminal_text.h"
#include "server/app/commands/commands.h"
#include "server/app/session/progress_line.h"

namespace diffserve {
namespace {

constexpr size_t kMaxShownNames = 8;
constexpr std::array<int, 3> kHeldSignals = {SIGINT, SIGTERM, SIGHUP};

// From here on SIGINT, SIGTERM and SIGHUP wait, so that what has been written so far can be
// removed.
void HoldSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : kHeldSignals) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool SignalIsWaiting() {
  sigset_t waiting;
  sigpending(&waiting);
  return std::ranges::any_of(kHeldSignals,
                             [&](int signal) { return sigismember(&waiting, signal) == 1; });
}

std::string List(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMaxShownNames; ++i)
    text += (i > 0 ? ", " : "") + ShownOnTerminal(names[i]);
  return names.size() > kMaxShownNames
             ? text + " and " + std::to_string(names.size() - kMaxShownNames) + " more"
             : text;
}

void Print(const ConvertOptions& convert, const ConvertReport& report) {
  const auto count = [](auto number) { return static_cast<unsigned long long>(number); };
  std::printf("converted            %s, family %s, to %s\n",
              ShownOnTerminal(convert.source_dir).c_str(), ShownOnTerminal(report.family).c_str(),
              ShownOnTerminal(convert.output_dir).c_str());
  std::printf("tensors              %llu, %llu bytes, in %llu file%s\n", count(report.num_tensors),
              count(report.num_bytes), count(report.num_files), report.num_files == 1 ? "" : "s");
  if (report.num_renamed + report.num_divided > 0) {
    std::printf("renamed              %d, and %d fused ones divided\n", report.num_renamed,
                report.num_divided);
  }
  if (!report.packed_for.empty())
    std::printf("packed               for --cpu-isa %s\n", report.packed_for.c_str());
  if (!report.dropped.empty())
    std::printf("not needed, dropped  %s\n", List(report.dropped).c_str());
  if (!report.left_behind.empty())
    std::printf("files not copied     %s\n", List(report.left_behind).c_str());
  std::printf("checked by loading   %llu parameters\n", count(report.num_parameters));
}

}  // namespace

Status RunConvert(const CheckpointOptions& options, const ConversionOptions& conversion) {
  const Result<CpuIsa> isa = ChooseCpuIsa(options.cpu_isa);
  if (!isa.ok()) return isa.status();
  HoldSignals();
  ConvertOptions convert;
  convert.source_dir = options.model_dir;
  convert.output_dir = conversion.new_dir;
  convert.dtype = options.dtype;
  convert.quantization = options.quantization;
  convert.isa = isa.value();
  convert.interrupted = SignalIsWaiting;
  ThreadPool pool({.num_threads = options.threads});
  const Result<ConvertReport> report = [&] {
    ProgressLine progress(ProgressLine::Form::kPlain);
    convert.report = progress.report();
    convert.pace = progress.pace();
    return ConvertCheckpoint(convert, pool);
  }();
  if (!report.ok()) return report.status();
  Print(convert, *report);
  return {};
}

}  // namespace diffserve
