// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/visible_gpus.h"

#include <poll.h>

#include <chrono>

#include "server/json/json.h"
#include "server/router/children/child_process.h"
#include "server/router/children/pipe_lines.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// A driver without persistence mode wakes the GPUs first, seconds for each.
constexpr std::chrono::seconds kLimit{120};
constexpr size_t kMaxGpus = 1024, kMaxTextBytes = 1024;

int MillisecondsLeft(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
}

}  // namespace

Result<VisibleGpus> ListVisibleGpus(const std::vector<std::string>& hidden_variables) {
  Result<ChildProcess> child = ChildProcess::Start({"devices", "--json"}, hidden_variables, "");
  if (!child.ok()) return child.status();
  const Clock::time_point end = Clock::now() + kLimit;
  std::string text;
  PipeLines lines;
  pollfd output = {child->out(), POLLIN, 0};
  while (lines.Read(child->out(), [&](std::string_view line) { text += line; })) {
    if (poll(&output, 1, MillisecondsLeft(end)) == 0) {
      return Status(StatusCode::kUnavailable,
                    "the GPUs could not be listed within " + std::to_string(kLimit.count()) + " s");
    }
  }
  return ParseVisibleGpus(text);
}

Result<VisibleGpus> ParseVisibleGpus(std::string_view json) {
  Result<JsonFields> fields = JsonFields::Parse(json);
  if (!fields.ok()) {
    return Status(StatusCode::kUnavailable,
                  "the GPUs could not be listed; `diffserve devices` shows why");
  }
  VisibleGpus gpus;
  fields->String("reason", kMaxTextBytes, &gpus.reason);
  for (JsonFields& each : fields->Objects("gpus", kMaxGpus)) {
    VisibleGpu gpu;
    each.String("name", kMaxTextBytes, &gpu.name);
    each.String("refusal", kMaxTextBytes, &gpu.refusal);
    each.Int("memory_mib", &gpu.memory_mib);
    if (!each.status().ok()) return each.status();
    gpus.all.push_back(std::move(gpu));
  }
  if (!fields->status().ok()) return fields->status();
  return gpus;
}

}  // namespace diffserve
