// SPDX-License-Identifier: Apache-2.0
#include "server/serving/cancelled_mass.h"

#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "models/diagnostics/attention_shares.h"

namespace diffserve {

struct CancelledMass::State {
  explicit State(Options options_in) : options(std::move(options_in)) {
    const bool samples = options.every > 0 && options.source != nullptr &&
                         options.source->num_maps() == 2;
    if (samples) layers.resize(options.source->layers.size());
  }

  size_t NumbersOf(size_t num_slots) const {
    const auto heads = static_cast<size_t>(options.source->spec.num_q1_heads);
    return num_slots * layers.size() * heads * 2;
  }
  void Reckon(const AttentionCapture& capture);

  Options options;
  mutable std::mutex mutex;  // of what follows, and of options.queue
  std::vector<ShareHistogram> layers;
};

// Maps with non-finite values are not counted.
void CancelledMass::State::Reckon(const AttentionCapture& capture) {
  const DiffSpec& spec = options.source->spec;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    double sum = 0;
    GroupKeys keys = capture.KeysOf(layer, 0);
    for (int head = 0; head < spec.num_q1_heads; ++head) {
      if (keys.group != GroupOf(spec, head)) {
        keys = {};  // one group's at a time
        keys = capture.KeysOf(layer, GroupOf(spec, head));
      }
      sum += CancelledShare(capture.MapsOf(layer, 0, head, keys));
    }
    if (!std::isfinite(sum)) continue;
    std::lock_guard lock(mutex);
    layers[layer].Observe(sum / spec.num_q1_heads);
  }
}

CancelledMass::CancelledMass(Options options)
    : memory_(options.max_bytes), state_(std::make_shared<State>(std::move(options))) {}

void CancelledMass::Close() {
  std::lock_guard lock(state_->mutex);
  state_->options.queue = nullptr;
}

void CancelledMass::Sample(TokenizedRequest& request) {
  const Options& options = state_->options;
  if (state_->layers.empty()) return;
  if (num_requests_.fetch_add(1) % static_cast<uint64_t>(options.every) != 0) return;
  Request& first = request.continuations.front();
  const size_t numbers = state_->NumbersOf(first.prompt.size());
  if (numbers > static_cast<size_t>(options.max_numbers)) return;
  AttentionCapture::Selection selection;
  selection.layers.resize(state_->layers.size());
  std::iota(selection.layers.begin(), selection.layers.end(), 0);
  selection.positions = {static_cast<int>(first.prompt.size()) - 1};
  const auto capture = std::make_shared<AttentionCapture>(*options.source, std::move(selection));
  const std::shared_ptr<const void> share = memory_.Take(capture->bytes() +
                                                         capture->working_bytes());
  if (share == nullptr) return;
  capture->Reserve();
  first.AddObserver(capture);
  request.on_end = [state = state_, capture, share, numbers] {
    if (!capture->is_complete()) return;
    std::lock_guard lock(state->mutex);
    if (!state->options.queue) return;
    state->options.queue(numbers * sizeof(float), [state, capture, share](bool run) {
      if (run) state->Reckon(*capture);
    });
  };
}

std::vector<ShareHistogram> CancelledMass::layers() const {
  std::lock_guard lock(state_->mutex);
  return state_->layers;
}

}  // namespace diffserve
