// SPDX-License-Identifier: Apache-2.0
#include "models/warm_up_cuda.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"
#include "models/step_batch_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kPromptTokensMin = 16;

// What sequences write to. They share it all, since what they compute is never used.
struct ScratchPlaces {
  std::vector<int32_t> pages, window_pages;  // of a sequence of maximum length
  int num_states = 0;
};

ScratchPlaces PlacesIn(const KvCache::Layout& layout, int max_model_len) {
  int num_pages = 1, num_window_pages = 1;
  for (size_t layer = 0; layer < layout.layers.size(); ++layer)
    (layout.has_window_pages[layer] ? num_window_pages : num_pages) = layout.num_pages[layer];
  ScratchPlaces places;
  for (int page = 0; page * kImagePageSize < max_model_len; ++page) {
    places.pages.push_back(page % num_pages);
    places.window_pages.push_back(page % num_window_pages);
  }
  places.num_states = layout.num_states;
  return places;
}

// Adds a sequence whose tokens end with a draw. `tokens`: of which its first row is not known yet.
void Add(const ScratchPlaces& places, SequenceTokens tokens, bool is_prompt, Batch* batch) {
  tokens.first_row = static_cast<int>(batch->tokens.size());
  tokens.pages = places.pages.data();
  tokens.window_pages = places.window_pages.data();
  if (places.num_states > 0) {
    const int slot = static_cast<int>(batch->sequences.size()) % places.num_states;
    batch->states.push_back({slot, slot});
  }
  batch->sequences.push_back(tokens);
  batch->tokens.resize(batch->tokens.size() + static_cast<size_t>(tokens.num_tokens));
  batch->logit_rows.push_back(tokens.first_row + tokens.num_tokens - 1);
  batch->num_prompt_tokens.push_back(is_prompt ? tokens.num_tokens : 0);
  batch->sample_rows.push_back({.kind = SampleKind::kGreedy});
}

Status Run(Model& model, const Batch& batch, KvCache& kv) {
  DS_RETURN_IF_ERROR(model.Forward(batch, kv));
  return model.Collect().status();
}

}  // namespace

Status RunUsualPrompts(Model& model, const StepLimits& limits, KvCache& kv) {
  const ScratchPlaces places = PlacesIn(kv.layout(), limits.max_model_len);
  for (int num_tokens = limits.num_tokens; num_tokens >= kPromptTokensMin; num_tokens /= 2) {
    Batch batch;
    int left = num_tokens;
    for (int i = 0; i < limits.num_sequences && left > 0; ++i) {
      const int count = std::min(left, limits.max_model_len);
      Add(places, {.num_tokens = count}, /*is_prompt=*/true, &batch);
      left -= count;
    }
    DS_RETURN_IF_ERROR(Run(model, batch, kv));
  }
  return Status();
}

Status RunUsualDecodes(Model& model, const StepLimits& limits, KvCache& kv) {
  const ScratchPlaces places = PlacesIn(kv.layout(), limits.max_model_len);
  const int sequences_max = limits.num_sequences;
  for (int size = GraphTokens(1, sequences_max); size > 0;
       size = GraphTokens(static_cast<size_t>(size) + 1, sequences_max)) {
    Batch batch;
    for (int i = 0; i < size; ++i)
      Add(places, {.num_tokens = 1, .position = 0}, /*is_prompt=*/false, &batch);
    DS_RETURN_IF_ERROR(Run(model, batch, kv));
  }
  return Status();
}

}  // namespace diffserve::cuda
