// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/residency.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace diffserve {
namespace {

constexpr int kMaxDelayDoublings = 6;
constexpr std::chrono::seconds kMaxRestartDelay{60};
constexpr double kWholeGpu = 1 + 1e-6;  // as sums of shares are rounded

// What the models that have a process take.
struct Room {
  int models = 0;
  int64_t bytes = 0;
  std::map<size_t, double> gpu_shares = {};

  double ShareWith(const ResidentModel& model) const {
    if (!model.gpu) return 0;
    const auto found = gpu_shares.find(*model.gpu);
    return model.gpu_share + (found == gpu_shares.end() ? 0 : found->second);
  }
  bool Fits(const ResidentModel& model, const ResidencyLimits& limits) const {
    return (limits.max_loaded == 0 || models < limits.max_loaded) &&
           (limits.max_bytes == 0 || bytes + model.bytes <= limits.max_bytes) &&
           ShareWith(model) <= kWholeGpu;
  }
  // Whether the end of `model` brings `wanted` nearer to its room.
  bool IsHelpedBy(const ResidentModel& model, const ResidentModel& wanted,
                  const ResidencyLimits& limits) const {
    if (ShareWith(wanted) > kWholeGpu) return model.gpu == wanted.gpu;
    const bool lacks_bytes = limits.max_bytes > 0 && bytes + wanted.bytes > limits.max_bytes;
    return !lacks_bytes || model.bytes > 0;
  }
  void Add(const ResidentModel& model) {
    ++models;
    bytes += model.bytes;
    if (model.gpu) gpu_shares[*model.gpu] += model.gpu_share;
  }
  void Remove(const ResidentModel& model) {
    --models;
    bytes -= model.bytes;
    if (model.gpu) gpu_shares[*model.gpu] -= model.gpu_share;
  }
};

bool IsStoppable(const ResidentModel& model) {
  return model.state == ModelState::kLoaded && !model.pinned && model.in_flight == 0 &&
         !model.wanted_since;
}

// The models of these places, by a key of each.
template <typename Includes, typename KeyOf>
std::vector<size_t> Sorted(std::span<const ResidentModel> models, Includes includes, KeyOf key_of) {
  std::vector<size_t> places;
  for (size_t i = 0; i < models.size(); ++i) {
    if (includes(models[i])) places.push_back(i);
  }
  std::ranges::stable_sort(places, {}, [&](size_t i) { return key_of(models[i]); });
  return places;
}

class ResidencyPlanner {
 public:
  ResidencyPlanner(std::span<const ResidentModel> models, const ResidencyLimits& limits,
                   ResidencyTime now)
      : models_(models),
        limits_(limits),
        now_(now),
        idle_(Sorted(models, IsStoppable, [](const ResidentModel& m) { return m.last_used; })) {
    for (const ResidentModel& model : models) {
      if (model.state != ModelState::kUnloaded) taken_.Add(model);
    }
    for (size_t i = 0; i < models.size(); ++i) {
      if (models[i].state == ModelState::kStopping) stopping_.push_back(i);
    }
  }

  ResidencyActions Plan() {
    StopIdle();
    const auto waits = [](const ResidentModel& m) {
      return m.wanted_since && m.state == ModelState::kUnloaded;
    };
    for (const size_t i : Sorted(models_, waits, [](const ResidentModel& m) {
           return std::pair(m.turn, *m.wanted_since);
         })) {
      if (models_[i].not_before > now_) {
        AskAgain(models_[i].not_before);
      } else if (taken_.Fits(models_[i], limits_)) {
        taken_.Add(models_[i]);
        actions_.start.push_back(i);
      } else {
        MakeRoom(models_[i]);
        break;
      }
    }
    return std::move(actions_);
  }

 private:
  void AskAgain(ResidencyTime when) {
    actions_.next = std::min(actions_.next.value_or(when), when);
  }

  void StopIdle() {
    if (limits_.idle_timeout.count() == 0) return;
    while (!idle_.empty()) {
      const ResidencyTime end = models_[idle_.front()].last_used + limits_.idle_timeout;
      if (end > now_) return AskAgain(end);
      Stop(idle_.front(), StopReason::kIdle);
      idle_.erase(idle_.begin());
    }
  }

  // What stops already may suffice.
  void MakeRoom(const ResidentModel& wanted) {
    Room left = taken_;
    for (const size_t model : stopping_) left.Remove(models_[model]);
    std::vector<size_t> idle = idle_, stopped;
    while (!left.Fits(wanted, limits_)) {
      const auto found = std::ranges::find_if(
          idle, [&](size_t i) { return left.IsHelpedBy(models_[i], wanted, limits_); });
      if (found == idle.end()) return;
      left.Remove(models_[*found]);
      stopped.push_back(*found);
      idle.erase(found);
    }
    for (const size_t model : stopped) Stop(model, StopReason::kRoom);
  }

  void Stop(size_t model, StopReason reason) {
    actions_.stop.push_back({model, reason});
    stopping_.push_back(model);
  }

  const std::span<const ResidentModel> models_;
  const ResidencyLimits& limits_;
  const ResidencyTime now_;
  std::vector<size_t> idle_;  // the least recently used first
  Room taken_;
  std::vector<size_t> stopping_;
  ResidencyActions actions_;
};

}  // namespace

void SetWanted(std::vector<ModelWant> wants, std::span<ResidentModel> models) {
  std::ranges::stable_sort(wants, {}, &ModelWant::since);
  std::map<std::string_view, std::set<size_t>> by_client;
  for (const ModelWant& want : wants) {
    std::set<size_t>& own = by_client[want.client];
    if (own.contains(want.model)) continue;
    const int turn = static_cast<int>(own.size());
    own.insert(want.model);
    ResidentModel& model = models[want.model];
    if (model.wanted_since && model.turn <= turn) continue;
    model.wanted_since = want.since;
    model.turn = turn;
  }
}

ResidencyActions PlanResidency(std::span<const ResidentModel> models, const ResidencyLimits& limits,
                               ResidencyTime now) {
  return ResidencyPlanner(models, limits, now).Plan();
}

std::optional<ResidencyMisfit> FindMisfit(std::span<const ResidentModel> models,
                                          const ResidencyLimits& limits) {
  Room pinned;
  for (const bool of_pinned : {true, false}) {
    for (size_t i = 0; i < models.size(); ++i) {
      if (models[i].pinned != of_pinned) continue;
      if (!pinned.Fits(models[i], limits))
        return ResidencyMisfit{i, pinned.bytes + models[i].bytes, pinned.ShareWith(models[i])};
      if (of_pinned) pinned.Add(models[i]);
    }
  }
  return std::nullopt;
}

std::chrono::seconds RestartDelay(int failures) {
  if (failures <= 1) return {};
  const int doublings = std::min(failures - 2, kMaxDelayDoublings);
  return std::min(std::chrono::seconds(1 << doublings), kMaxRestartDelay);
}

}  // namespace diffserve
