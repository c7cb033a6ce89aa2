// SPDX-License-Identifier: Apache-2.0
// ActivationFigures: statistics of a model's activations over many tokens. They say how large
// attention logits and hidden states get (arXiv 2410.05258, table 5), how far subtracting the
// second map amplifies the error of a logit, and how much attention some tokens give to the slots
// of an answer (table 3). Scores are float32. The pool's workers share a layer's rows; the figures
// do not depend on their number.
//
// For one query, with w = p1 - lambda p2 over the slots that it sees:
//   kappa     sqrt(|p1|^2 + lambda^2 |p2|^2) / |w|: the factor by which independent relative errors
//             of p1 and p2 grow, relative to w, compared with no second map
//   entropy   -sum p ln p of each map
//   answer    the sum of |w|, p1 or p2 over the answer's slots, as a share of its sum over all
//             slots
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

// The positions of a sequence's answer, and the position from which tokens look for it.
struct AnswerSpans {
  std::vector<TokenRange> answer;  // empty: no answer; otherwise no two overlap
  int query_from = 0;              // not before the end of the last of them
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
  double value() const { return sum_ / static_cast<double>(count_); }  // NaN if empty
  int64_t count() const { return count_; }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

// Figures of one signal head or of several. Those of a second map are empty without one.
struct HeadFigures {
  Mean kappa;  // over queries whose w is not zero
  Magnitudes kappas;
  Mean entropy1, entropy2;
  Mean answer, answer1, answer2;  // for w, p1 and p2

  void Merge(const HeadFigures& other);
};

struct LayerFigures {
  Magnitudes logits1, logits2;  // of both maps, over the slots that a query sees; each noise head
                                // once
  Magnitudes hidden;            // the residual stream after the layer
  std::vector<HeadFigures> heads;

  HeadFigures AllHeads() const;
};

class ActivationFigures : public LayerObserver {
 public:
  ActivationFigures(const ModelConfig& config, ThreadPool& pool);

  // Sets the answer of the sequence in the next batches.
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
