#include "models/workspace_cuda.h"

#include <algorithm>
#include <array>

namespace diffserve::cuda {
namespace {

constexpr int kManyRows = 1 << 16;  // generated rows of one sequence, for the largest tile of a
                                    // tiling

struct PerRow {
  DeviceBuffer Workspace::* buffer;
  size_t bytes;
};

std::array<PerRow, 10> RowBuffers(const ModelConfig& config) {
  const DiffSpec& spec = config.attention;
  const auto hidden = static_cast<size_t>(config.hidden_size),
             inner = static_cast<size_t>(config.intermediate_size);
  const size_t q = static_cast<size_t>(spec.q_width()),
               kv = static_cast<size_t>(spec.k_width() + spec.v_width());
  const size_t lambdas = spec.lambda_kind == LambdaKind::kPerTokenHead
                             ? static_cast<size_t>(spec.num_q1_heads)
                             : 0;
  constexpr size_t kHalf = sizeof(uint16_t);
  return {{{&Workspace::hidden, hidden * sizeof(float)},
           {&Workspace::normed, hidden * kHalf},
           {&Workspace::qkv, (q + kv) * kHalf},
           {&Workspace::q, q * kHalf},
           {&Workspace::lambda, lambdas * sizeof(float)},
           {&Workspace::attention, static_cast<size_t>(spec.out_width()) * kHalf},
           {&Workspace::gate_up, 2 * inner * kHalf},
           {&Workspace::mlp, inner * kHalf},
           {&Workspace::final_state, hidden * kHalf},
           {&Workspace::sampled, sizeof(SampledRow)}}};
}

Status Take(DeviceBuffer* buffer, size_t bytes) {
  Result<DeviceBuffer> taken = DeviceBuffer::Allocate(bytes);
  if (!taken.ok()) return taken.status();
  *buffer = std::move(*taken);
  return Status();
}

Status TakePlan(AttentionPlanMemory* memory, int64_t capacity, int num_sequences) {
  memory->capacity = static_cast<int>(capacity);
  DS_RETURN_IF_ERROR(Take(&memory->items, static_cast<size_t>(capacity) * sizeof(AttentionItem)));
  DS_RETURN_IF_ERROR(
      Take(&memory->first_item, static_cast<size_t>(num_sequences + 1) * sizeof(int32_t)));
  return Take(&memory->num_items, sizeof(int32_t));
}

size_t PartialFloats(const DiffSpec& spec, const StepLimits& limits) {
  const AttentionTiling narrow = DiffDecodeTiling(spec, 1),
                        wide = DiffDecodeTiling(spec, kManyRows);
  const int64_t splits = narrow.NumSplits(limits.max_model_len);
  const size_t all = DiffDecodePartialFloats(spec, narrow,
                                             limits.num_sequences * narrow.NumTiles(1) * splits);
  const size_t one_row = DiffDecodePartialFloats(spec, wide, wide.NumTiles(1) * splits);
  return std::max(one_row, std::min(all, limits.attention_partial_bytes_max / sizeof(float)));
}

// What the partials hold of the narrowest items.
int64_t GeneratedItems(const DiffSpec& spec, const StepLimits& limits) {
  return static_cast<int64_t>(PartialFloats(spec, limits) /
                              DiffDecodePartialFloats(spec, DiffDecodeTiling(spec, 1), 1));
}

int64_t PromptItems(const DiffSpec& spec, const StepLimits& limits) {
  return int64_t{DiffPrefillTiling(spec).NumTiles(limits.num_rows)} + limits.num_sequences;
}

int LogitsRows(const ModelConfig& config, const StepLimits& limits) {
  const int64_t slice = std::max<int64_t>(limits.num_sequences,
                                          kMaxLogitElements / config.vocab_size);
  return static_cast<int>(std::min<int64_t>(slice, limits.num_rows));
}

}  // namespace

size_t Workspace::Bytes(const ModelConfig& config, const StepLimits& limits) {
  size_t bytes = 0;
  for (const PerRow& row : RowBuffers(config))
    bytes += row.bytes * static_cast<size_t>(limits.num_rows);
  bytes += static_cast<size_t>(LogitsRows(config, limits)) *
           static_cast<size_t>(config.vocab_size) * sizeof(float);
  const DiffSpec& spec = config.attention;
  const int64_t items = GeneratedItems(spec, limits) + PromptItems(spec, limits);
  return bytes + PartialFloats(spec, limits) * sizeof(float) +
         static_cast<size_t>(items) * sizeof(AttentionItem);
}

int64_t Workspace::GeneratedItemsMax(const DiffSpec& spec, const AttentionTiling& tiling) const {
  const size_t floats = partials.size_bytes() / sizeof(float);
  return std::min<int64_t>(generated_plan.capacity,
                           static_cast<int64_t>(floats / DiffDecodePartialFloats(spec, tiling, 1)));
}

Result<Workspace> Workspace::Allocate(const ModelConfig& config, const StepLimits& limits) {
  Workspace work;
  const auto rows = static_cast<size_t>(limits.num_rows);
  for (const PerRow& row : RowBuffers(config))
    DS_RETURN_IF_ERROR(Take(&(work.*row.buffer), rows * row.bytes));
  work.logits_rows = LogitsRows(config, limits);
  const size_t logits = static_cast<size_t>(work.logits_rows) *
                        static_cast<size_t>(config.vocab_size);
  DS_RETURN_IF_ERROR(Take(&work.logits, logits * sizeof(float)));

  const DiffSpec& spec = config.attention;
  DS_RETURN_IF_ERROR(Take(&work.partials, PartialFloats(spec, limits) * sizeof(float)));
  // A sequence with rows of both kinds has an entry in each plan.
  DS_RETURN_IF_ERROR(
      TakePlan(&work.generated_plan, GeneratedItems(spec, limits), limits.num_sequences));
  DS_RETURN_IF_ERROR(TakePlan(&work.prompt_plan, PromptItems(spec, limits), limits.num_sequences));
  return work;
}

}  // namespace diffserve::cuda
