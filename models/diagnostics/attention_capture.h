// SPDX-License-Identifier: Apache-2.0
// AttentionCapture: the inputs of a sequence's attention maps, copied out of the step that computes
// it. For the chosen layers it copies q and lambda at the chosen positions. It also copies the
// pages up to the last position or, with a window, those that the positions see, unchanged. So maps
// computed later use the same q, K and quantisation as the kernels, for any page format.
//
// Thread safety: one thread makes it. Then the thread that calls Model::Forward fills it, until
// is_complete(). After that it is const, and any thread may read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/attention/attention_maps.h"
#include "models/diagnostics/sequence_observer.h"

namespace diffserve {

// The attention to capture from: a model and its KV pages.
struct AttentionSource {
  DiffSpec spec;
  std::vector<KvFormat> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int num_maps() const { return spec.has_second_map() ? 2 : 1; }
};

class AttentionCapture : public SequenceObserver {
 public:
  struct Selection {
    std::vector<int> layers;     // ascending, each once
    std::vector<int> positions;  // likewise
  };
  AttentionCapture(const AttentionSource& source, Selection selection);

  // Bytes that Reserve allocates.
  size_t bytes() const;
  // Maximum bytes of the keys of one group and the maps of one head and position.
  size_t working_bytes() const;
  // Allocates the memory; call before the sequence is submitted.
  void Reserve();

  const Selection& selection() const { return selection_; }
  // The first and last selected position.
  int first() const { return selection_.positions.front(); }
  int last() const { return selection_.positions.back(); }

  int first_position() const override { return first(); }
  bool Wants(int /*begin*/, int end, int /*num_tokens*/) const override {
    return !is_complete() && end > first();
  }
  bool WantsAttention(int layer) const override;
  // For a selected layer: copies its share of the sequence's tokens of this step. A sequence that
  // is recomputed from first() or before is captured anew.
  void OnAttention(int layer, const DiffAttentionArgs<float>& attention,
                   const SequenceTokens& sequence) override;
  // The step that computes last() completes the capture.
  void OnEnd(int end) override {
    if (end > last()) is_complete_.store(true, std::memory_order_release);
  }
  bool is_complete() const { return is_complete_.load(std::memory_order_acquire); }

  // Keys of the selection's `layer`-th layer. REQUIRES: is_complete().
  GroupKeys KeysOf(size_t layer, int group) const;
  AttentionMaps MapsOf(size_t layer, size_t position, int head, const GroupKeys& keys) const;

 private:
  struct Layer {
    KvFormat format;
    std::vector<float> q;            // [positions][q_width]
    std::vector<float> lambda_rows;  // [positions][num_q1_heads], if the family has them
    std::unique_ptr<std::byte[]> pages;
    float scale = 0;
    float lambda = 0;
    int window = 0;
    LogitQuant logit_quant;
  };
  size_t num_pages(const Layer& layer) const;
  size_t page_bytes(const Layer& layer) const;  // over all groups
  SequenceTokens SequenceAt(int row, int position) const;
  DiffAttentionArgs<float> ArgsOf(const Layer& layer) const;

  const DiffSpec spec_;
  const Selection selection_;
  std::vector<Layer> layers_;   // [selection.layers]
  std::vector<int32_t> pages_;  // 0, 1, 2 ...: page ids of the copies
  std::atomic<bool> is_complete_{false};
};

}  // namespace diffserve
