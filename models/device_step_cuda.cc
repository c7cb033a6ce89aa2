// SPDX-License-Identifier: Apache-2.0
#include "models/device_step_cuda.h"

#include <algorithm>

#include "kernels/process/check.h"

namespace diffserve::cuda {
namespace {

constexpr size_t kAlignment = 16;

}  // namespace

std::vector<StepTilings> TilingsOf(const ModelConfig& config, int generated_tokens_max) {
  std::vector<StepTilings> all;
  for (const LayerConfig& layer : config.layers) {
    if (layer.mixer != MixerKind::kAttention ||
        std::ranges::find(all, layer.window, &StepTilings::window) != all.end()) {
      continue;
    }
    all.push_back({layer.window,
                   DiffDecodeTiling(config.attention, generated_tokens_max, layer.window),
                   DiffPrefillTiling(config.attention, /*allow_bulk_copies=*/true, layer.window)});
  }
  return all;
}

StepOffsets::StepOffsets(const StepShape& shape) {
  size_t next = 0;
  const auto take = [&](size_t count, size_t size) {
    const size_t offset = next;
    next = (next + count * size + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const auto num_sequences = static_cast<size_t>(shape.num_sequences);
  size_t num_states = 0;
  for (const StepShape::Wave& wave : shape.waves)
    num_states += static_cast<size_t>(wave.num_sequences);
  size_t num_plan_heads = 0;
  for (const StepShape::Plan& plan : shape.plans)
    num_plan_heads += 1 + plan.prompts.size() + plan.wanted_prompts.size();
  sequences = take(num_sequences, sizeof(DeviceSequence));
  in_windows = take(shape.has_windows ? num_sequences : 0, sizeof(DeviceSequence));
  plans = take(num_plan_heads, sizeof(AttentionPlanHead));
  states = take(num_states, sizeof(StateSequence));
  token_sequences = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  tokens = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  logit_rows = take(static_cast<size_t>(shape.num_logit_rows), sizeof(int32_t));
  sample_rows = take(static_cast<size_t>(shape.num_sample_rows), sizeof(SampleTask));
  tail = next;
}

DeviceStep::DeviceStep(const StepShape& shape, std::byte* base,
                       std::span<const StepTilings> tilings)
    : num_wanted_tokens(shape.num_wanted_tokens),
      num_wanted_sequences(shape.num_wanted_sequences),
      num_logit_rows(shape.num_logit_rows),
      num_sample_rows(shape.num_sample_rows) {
  const StepOffsets at(shape);
  const auto ints = [&](size_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
  const auto rows_of = [&](size_t offset) {
    const auto* sequences = reinterpret_cast<const DeviceSequence*>(base + offset);
    StepRows of;
    of.all = {shape.num_sequences, shape.num_tokens, sequences, ints(at.token_sequences),
              ints(at.tail)};
    of.generated = of.all;
    of.generated.num_sequences = shape.num_generated_sequences;
    of.generated.num_tokens = shape.num_generated_tokens;
    of.prompts = of.all;
    of.prompts.num_sequences -= of.generated.num_sequences;
    of.prompts.num_tokens -= of.generated.num_tokens;
    of.prompts.sequences += of.generated.num_sequences;
    of.prompts.token_sequences = nullptr;  // prefill does not use it
    return of;
  };
  rows = rows_of(at.sequences);
  in_windows = shape.has_windows ? rows_of(at.in_windows) : rows;
  const auto* head = reinterpret_cast<const AttentionPlanHead*>(base + at.plans);
  const auto* items = reinterpret_cast<const AttentionItem*>(base + at.tail);
  for (size_t i = 0; i < tilings.size(); ++i) {
    Plans& of = plans.emplace_back();
    of.tilings = tilings[i];
    of.generated = {head++, items};
    for (const StepShape::PromptRun& run : shape.plans[i].prompts)
      of.prompts.push_back({{head++, items}, run});
    for (const StepShape::PromptRun& run : shape.plans[i].wanted_prompts)
      of.wanted_prompts.push_back({{head++, items}, run});
  }
  const auto* states = reinterpret_cast<const StateSequence*>(base + at.states);
  for (const StepShape::Wave& wave : shape.waves) {
    waves.push_back({states, wave.num_sequences, wave.num_tokens, wave.num_tokens_max});
    states += wave.num_sequences;
  }
  tokens = ints(at.tokens);
  logit_rows = ints(at.logit_rows);
  sample_rows = reinterpret_cast<const SampleTask*>(base + at.sample_rows);
  adjustments = reinterpret_cast<LogitAdjustment*>(base + at.tail);
  masks = reinterpret_cast<const uint32_t*>(base + at.tail);
}

const DeviceStep::Plans& DeviceStep::PlansOf(int window) const {
  const auto found = std::ranges::find(plans, window,
                                       [](const Plans& of) { return of.tilings.window; });
  DS_CHECK(found != plans.end(), "a plan for every layer");
  return *found;
}

StepRows DeviceStep::Wanted(const StepRows& of) const {
  StepRows wanted = of;
  wanted.all.num_tokens = num_wanted_tokens;
  wanted.all.num_sequences = num_wanted_sequences;
  wanted.prompts.num_tokens = num_wanted_tokens - of.generated.num_tokens;
  wanted.prompts.num_sequences = num_wanted_sequences - of.generated.num_sequences;
  return wanted;
}

}  // namespace diffserve::cuda
