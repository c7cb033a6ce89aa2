// AttentionCapture: what attention maps of a sequence are made of, copied out of the step that
// computes it: of chosen layers q and lambda at chosen positions, and the pages up to the last of
// them, or with a window those that they see, as they are. So the maps that are made of it later,
// elsewhere, are those of the same q, K and quantisation that the kernels had, whatever the pages'
// format.
//
// Thread safety: one thread makes it; then the one that calls Model::Forward fills it, until
// is_complete(); after that it is const, and any thread may read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention/attention_maps.h"
#include "models/layer_observer.h"

namespace diffserve {

// The attention that there is to capture: of a model and the KV pages that it runs with.
struct AttentionSource {
  DiffSpec spec;
  std::vector<KvFormat> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int num_maps() const { return spec.has_second_map() ? 2 : 1; }
};

class AttentionCapture {
 public:
  struct Wish {
    std::vector<int> layers;     // ascending, each once
    std::vector<int> positions;  // likewise
  };
  AttentionCapture(const AttentionSource& source, Wish wish);

  // What Reserve takes.
  size_t bytes() const;
  // What the keys of one group and the maps of one head and position take at most.
  size_t working_bytes() const;
  // Takes the memory; before the sequence is submitted.
  void Reserve();

  const Wish& wish() const { return wish_; }
  // The first and last wanted position.
  int first() const { return wish_.positions.front(); }
  int last() const { return wish_.positions.back(); }

  // Of a layer that is wanted: copies what the sequence's tokens of this step have of it. A
  // sequence that is computed anew from first() or before is captured anew.
  void Take(int layer, const DiffAttentionArgs<float>& attention, const SequenceTokens& sequence);
  // All steps up to the one that computes last() are done.
  void Complete() { is_complete_.store(true, std::memory_order_release); }
  bool is_complete() const { return is_complete_.load(std::memory_order_acquire); }

  // Of the wish's `layer`-th layer. REQUIRES: is_complete().
  GroupKeys KeysOf(size_t layer, int group) const;
  AttentionMaps MapsOf(size_t layer, size_t position, int head, const GroupKeys& keys) const;

 private:
  struct Layer {
    KvFormat format;
    std::vector<float> q;            // [positions][q_width]
    std::vector<float> lambda_rows;  // [positions][num_q1_heads], where the family has them
    std::unique_ptr<std::byte[]> pages;
    float scale = 0;
    float lambda = 0;
    int window = 0;
    LogitQuant logit_quant;
  };
  size_t num_pages(const Layer& layer) const;
  size_t page_bytes(const Layer& layer) const;  // of all groups
  SequenceTokens SequenceAt(int row, int position) const;
  DiffAttentionArgs<float> ArgsOf(const Layer& layer) const;

  const DiffSpec spec_;
  const Wish wish_;
  std::vector<Layer> layers_;   // [wish.layers]
  std::vector<int32_t> pages_;  // 0, 1, 2 ...: how the copies lie
  std::atomic<bool> is_complete_{false};
};

// Fills the captures of the sequences of one batch.
class CapturingObserver : public LayerObserver {
 public:
  // `sequence` is an index into the batch's.
  void Add(size_t sequence, std::shared_ptr<AttentionCapture> capture) {
    captures_.emplace_back(sequence, std::move(capture));
  }
  bool empty() const { return captures_.empty(); }
  // REQUIRES: the batch has been run.
  void CompleteThoseThatEnd(std::span<const SequenceTokens> batch);

  void OnAttention(int layer, const DiffAttentionArgs<float>& attention) override;
  void OnHidden(int, std::span<const float>) override {}

 private:
  std::vector<std::pair<size_t, std::shared_ptr<AttentionCapture>>> captures_;
};

}  // namespace diffserve
