// ActivationFigures: what a model's activations are like over many tokens: how large attention
// logits and hidden states get (arXiv 2410.05258, table 5), how far the subtraction of the second
// map amplifies the error of a logit, and how much of their attention some tokens give to the slots
// of an answer (table 3). Scores are float32; the pool's workers share a layer's rows, and the
// figures do not depend on how many they are.
//
// Of one query, with w = p1 - lambda p2 over the slots that it sees:
//   kappa     sqrt(|p1|^2 + lambda^2 |p2|^2) / |w|: errors of p1 and p2 that are independent and
//             relative to them are so much larger, relative to w, than without a second map
//   entropy   -sum p ln p of each map
//   answer    the sum of |w|, p1 or p2 over the answer's slots, as a share of that over all
//
// Thread safety: one thread at a time, the one that calls Model::Forward.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "models/diagnostics/magnitudes.h"
#include "models/layer_observer.h"
#include "models/model_config.h"

namespace diffserve {

// Positions [begin, end).
struct TokenRange {
  int begin = 0;
  int end = 0;
};

// Where a sequence's answer lies, and from which position on tokens look for it.
struct AnswerSpans {
  std::vector<TokenRange> answer;  // empty: there is none; else no two overlap
  int query_from = 0;              // at or behind the end of the last of them
};

class Mean {
 public:
  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  void Merge(const Mean& other) {
    sum_ += other.sum_;
    count_ += other.count_;
  }
  double value() const { return sum_ / static_cast<double>(count_); }  // NaN of none
  int64_t count() const { return count_; }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

// Of a signal head, or of several. What is about a second map is empty where there is none.
struct HeadFigures {
  Mean kappa;  // of the queries whose w is not zero
  Magnitudes kappas;
  Mean entropy1, entropy2;
  Mean answer, answer1, answer2;  // of w, p1 and p2

  void Merge(const HeadFigures& other);
};

struct LayerFigures {
  Magnitudes logits1, logits2;  // of both maps, the slots that a query sees; a noise head's once
  Magnitudes hidden;            // the residual stream after the layer
  std::vector<HeadFigures> heads;

  HeadFigures AllHeads() const;
};

class ActivationFigures : public LayerObserver {
 public:
  ActivationFigures(const ModelConfig& config, ThreadPool& pool);

  // The answer of the sequence that the next batches are of.
  void SetSpans(AnswerSpans spans) { spans_ = std::move(spans); }

  // REQUIRES: a batch of one sequence, whose logits are not quantised.
  void OnAttention(int layer, const DiffAttentionArgs<float>& attention) override;
  void OnHidden(int layer, std::span<const float> hidden) override;

  const std::vector<LayerFigures>& layers() const { return layers_; }

 private:
  struct Query;
  struct Row;
  struct Worker;

  void LookAt(const Query& query, Worker& worker, Row* rows) const;

  ThreadPool& pool_;
  AnswerSpans spans_;
  std::vector<LayerFigures> layers_;
};

}  // namespace diffserve
