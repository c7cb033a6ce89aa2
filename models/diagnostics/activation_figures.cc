// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/activation_figures.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "kernels/attention/decoded_keys.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

// A map of one query: its logits, later p.
struct Map {
  std::vector<float> p;
  double entropy = 0;

  void Softmax() {
    const float max = *std::ranges::max_element(p);
    double sum = 0, weighted = 0;  // of e and of e (s - max), with e = exp(s - max)
    for (float& value : p) {
      const float below = value - max;
      value = std::exp(below);
      sum += static_cast<double>(value);
      weighted += static_cast<double>(value) * static_cast<double>(below);
    }
    entropy = std::log(sum) - weighted / sum;
    const auto factor = static_cast<float>(1 / sum);
    for (float& value : p) value *= factor;
  }
};

// Sums over slots.
struct Sums {
  double w = 0, p1 = 0, p2 = 0;         // of |w|, p1, p2
  double w_squares = 0, p_squares = 0;  // of w^2, p1^2 + lambda^2 p2^2

  // p2: nullptr without a second map.
  void AddOver(TokenRange slots, const float* p1_of, const float* p2_of, float lambda) {
    for (int slot = slots.begin; slot < slots.end; ++slot) {
      const double signal = static_cast<double>(p1_of[slot]);
      const double noise = p2_of == nullptr ? 0 : static_cast<double>(p2_of[slot]);
      const double subtracted = static_cast<double>(lambda) * noise;
      w += std::abs(signal - subtracted);
      p1 += signal;
      p2 += noise;
      w_squares += (signal - subtracted) * (signal - subtracted);
      p_squares += signal * signal + subtracted * subtracted;
    }
  }
};

}  // namespace

struct ActivationFigures::Query {
  const DiffAttentionArgs<float>& args;
  const DecodedKeys& keys;
  int row;       // in the batch
  int position;  // in its sequence

  const float* q(int head) const {
    return args.q + int64_t{row} * args.spec.q_width() + head * args.spec.head_dim;
  }
};

// One query and head's contribution to HeadFigures.
struct ActivationFigures::Row {
  bool has_second_map = false;
  bool has_answer = false;
  double entropy1 = 0, entropy2 = 0;
  Sums all = {};     // over the slots that it sees
  Sums answer = {};  // over the answer's

  void AddTo(HeadFigures& head) const {
    head.entropy1.Add(entropy1);
    if (has_second_map) head.entropy2.Add(entropy2);
    if (has_second_map && all.w_squares > 0) {
      const double kappa = std::sqrt(all.p_squares / all.w_squares);
      const auto rounded = static_cast<float>(kappa);
      head.kappa.Add(kappa);
      head.kappas.Add({&rounded, 1});
    }
    if (!has_answer) return;
    head.answer1.Add(answer.p1 / all.p1);
    if (has_second_map) head.answer2.Add(answer.p2 / all.p2);
    if (all.w > 0) head.answer.Add(answer.w / all.w);
  }
};

struct ActivationFigures::Worker {
  Magnitudes logits1, logits2;
  Map map1, map2;
};

void HeadFigures::Merge(const HeadFigures& other) {
  kappa.Merge(other.kappa);
  kappas.Merge(other.kappas);
  entropy1.Merge(other.entropy1);
  entropy2.Merge(other.entropy2);
  answer.Merge(other.answer);
  answer1.Merge(other.answer1);
  answer2.Merge(other.answer2);
}

HeadFigures LayerFigures::AllHeads() const {
  HeadFigures all;
  for (const HeadFigures& head : heads) all.Merge(head);
  return all;
}

ActivationFigures::ActivationFigures(const ModelConfig& config, ThreadPool& pool)
    : pool_(pool), layers_(static_cast<size_t>(config.num_layers)) {
  for (LayerFigures& layer : layers_)
    layer.heads.resize(static_cast<size_t>(config.attention.num_q1_heads));
}

// All heads of one query. Those that share a noise head follow each other, so its map is computed
// once.
void ActivationFigures::LookAt(const Query& query, Worker& worker, Row* rows) const {
  const DiffSpec& spec = query.args.spec;
  const auto slots = static_cast<size_t>(query.position) + 1;
  const auto map_of = [&](int head, int k_map, int q_head, Magnitudes& logits, Map& map) {
    map.p.resize(slots);
    const int group = head / (spec.num_q1_heads / spec.num_kv_groups);
    query.keys.Logits(group, k_map, query.q(q_head), query.args.scale, map.p);
    logits.Add(map.p);
    map.Softmax();
  };
  const int per_noise_head = spec.has_second_map() ? spec.num_q1_heads / spec.num_q2_heads : 1;
  for (int head = 0; head < spec.num_q1_heads; ++head) {
    if (spec.has_second_map() && head % per_noise_head == 0) {
      map_of(head, spec.k_maps - 1, spec.num_q1_heads + head / per_noise_head, worker.logits2,
             worker.map2);
    }
    map_of(head, 0, head, worker.logits1, worker.map1);
    const float lambda = spec.has_second_map() ? query.args.LambdaOf(query.row, head) : 0.0f;
    const auto add_over = [&](TokenRange slots, Sums& sums) {
      sums.AddOver(slots, worker.map1.p.data(),
                   spec.has_second_map() ? worker.map2.p.data() : nullptr, lambda);
    };
    Row row = {.has_second_map = spec.has_second_map(),
               .has_answer = !spans_.answer.empty() && query.position >= spans_.query_from,
               .entropy1 = worker.map1.entropy,
               .entropy2 = worker.map2.entropy};
    add_over({0, query.position + 1}, row.all);
    if (row.has_answer) {
      for (TokenRange slots : spans_.answer) add_over(slots, row.answer);
    }
    rows[head] = row;
  }
}

void ActivationFigures::OnAttention(int layer, const DiffAttentionArgs<float>& attention) {
  DS_CHECK(attention.batch.size() == 1, "a batch of one sequence");
  DS_CHECK(!attention.logit_quant.is_on(), "logits that are not quantised");
  DS_CHECK(attention.window == 0, "layers without a window");
  const SequenceTokens& sequence = attention.batch.front();
  const DecodedKeys keys(attention.kv, sequence, pool_);
  LayerFigures& figures = layers_[static_cast<size_t>(layer)];
  const size_t heads = figures.heads.size();
  std::vector<Row> rows(static_cast<size_t>(sequence.num_tokens) * heads);
  std::vector<Worker> workers(static_cast<size_t>(pool_.num_threads()));
  std::atomic<int> next{sequence.num_tokens};  // queries that see the most slots come first
  pool_.Run([&](int worker) {
    for (int i = --next; i >= 0; i = --next) {
      const Query query = {attention, keys, sequence.first_row + i, sequence.position + i};
      LookAt(query, workers[static_cast<size_t>(worker)], &rows[static_cast<size_t>(i) * heads]);
    }
  });
  for (const Worker& worker : workers) {
    figures.logits1.Merge(worker.logits1);
    figures.logits2.Merge(worker.logits2);
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].AddTo(figures.heads[i % heads]);
}

void ActivationFigures::OnHidden(int layer, std::span<const float> hidden) {
  layers_[static_cast<size_t>(layer)].hidden.Add(hidden);
}

}  // namespace diffserve
