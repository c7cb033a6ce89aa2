// SPDX-License-Identifier: Apache-2.0
// Residency: which models are started and which are stopped, decided from numbers. It knows no
// process, thread or clock: the caller describes the models, acts on the answer, and asks again
// after each change and at the time that the answer names.
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

using ResidencyTime = std::chrono::steady_clock::time_point;

enum class ModelState { kUnloaded, kLoading, kLoaded, kStopping };

struct ResidencyLimits {
  int max_loaded = 4;                   // models that have a process; 0: no limit
  int64_t max_bytes = 0;                // of them together; 0: no limit
  std::chrono::seconds idle_timeout{};  // without a request, then a model is stopped; 0: never
};

// One model, as the policy sees it.
struct ResidentModel {
  ModelState state = ModelState::kUnloaded;
  int64_t bytes = 0;  // of host memory that its process needs; 0: not known, or on a GPU
  std::optional<size_t> gpu = {};                  // where it runs; nullopt: on the CPU
  double gpu_share = 0;                            // of that GPU's memory
  bool pinned = false;                             // never stopped by the policy
  int in_flight = 0;                               // requests that its process answers
  std::optional<ResidencyTime> wanted_since = {};  // the oldest request that waits for the model
  int turn = 0;  // how many other models that request's client has been waiting for longer
  ResidencyTime last_used = {};   // the end of its last request, or its start
  ResidencyTime not_before = {};  // no start earlier, after failures
};

enum class StopReason { kIdle, kRoom };

struct ResidencyActions {
  struct Stop {
    size_t model;
    StopReason reason;
  };
  std::vector<size_t> start;
  std::vector<Stop> stop;
  std::optional<ResidencyTime> next;  // when to ask again, if nothing changes before
};

// A client's oldest request that waits for a model.
struct ModelWant {
  size_t model;
  std::string_view client;
  ResidencyTime since;
};
// Sets `wanted_since` and `turn` of the wanted models, so that clients take turns.
void SetWanted(std::vector<ModelWant> wants, std::span<ResidentModel> models);

// Loads are in the order of their turns, and of the oldest waiting requests within a turn: a load
// never overtakes one before it. A process that stops counts until it has ended. The least recently
// used of the idle models are stopped, only as many as the next load needs, and only if that makes
// enough room.
ResidencyActions PlanResidency(std::span<const ResidentModel> models, const ResidencyLimits& limits,
                               ResidencyTime now);

// Whether the pinned models fit together, and each other model beside them. The error names the
// model by its place.
struct ResidencyMisfit {
  size_t model;
  int64_t bytes;     // that it needs, with the pinned models
  double gpu_share;  // likewise of its GPU
};
std::optional<ResidencyMisfit> FindMisfit(std::span<const ResidentModel> models,
                                          const ResidencyLimits& limits);

// Time before the next start after this many failed runs in a row: none after the first, then 1, 2,
// 4 and up to 60 seconds.
std::chrono::seconds RestartDelay(int failures);

}  // namespace diffserve
