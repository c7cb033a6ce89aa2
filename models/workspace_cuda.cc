// SPDX-License-Identifier: Apache-2.0
#include "models/workspace_cuda.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "models/step_batch_cuda.h"

namespace diffserve::cuda {
namespace {

// Generated tokens of one sequence, for the largest tile of a tiling.
constexpr int kManyTokens = 1 << 16;

struct BufferSize {
  DeviceBuffer Workspace::* buffer;
  size_t bytes;
};

std::vector<BufferSize> BytesPerToken(const ModelConfig& config) {
  std::vector<BufferSize> sizes;
  for (const auto& [memory, width, is_float32] : Workspace::PerToken(config)) {
    sizes.push_back(
        {memory, static_cast<size_t>(width) * (is_float32 ? sizeof(float) : sizeof(uint16_t))});
  }
  sizes.push_back(
      {&Workspace::final_state, static_cast<size_t>(config.hidden_size) * sizeof(uint16_t)});
  sizes.push_back({&Workspace::sampled, sizeof(SampledToken)});
  return sizes;
}

Status Take(DeviceBuffer* buffer, size_t bytes) {
  return Assign(buffer, DeviceBuffer::Allocate(bytes));
}

size_t PartialFloats(const DiffSpec& spec, const StepLimits& limits) {
  const AttentionTiling narrow = DiffDecodeTiling(spec, 1),
                        wide = DiffDecodeTiling(spec, kManyTokens);
  const int64_t splits = AttentionSplitsMax(narrow, limits.max_model_len - 1, 1);
  const size_t all = DiffDecodePartialFloats(spec, narrow,
                                             limits.num_sequences * narrow.NumTiles(1) * splits);
  const size_t one_token = DiffDecodePartialFloats(spec, wide, wide.NumTiles(1) * splits);
  return std::max(one_token, std::min(all, limits.attention_partial_bytes_max / sizeof(float)));
}

// For as many rows of splits as the partials have.
size_t ExtentFloats(const DiffSpec& spec, const StepLimits& limits, const LogitQuant& logits) {
  if (!logits.is_on()) return 0;
  const AttentionTiling tiling = DiffDecodeTiling(spec, 1);
  return PartialFloats(spec, limits) / DiffDecodePartialFloats(spec, tiling, 1) *
         DiffDecodeExtentFloats(spec, tiling, 1);
}

// The number of the narrowest items for which the partials have room.
int64_t GeneratedItems(const DiffSpec& spec, const StepLimits& limits) {
  return static_cast<int64_t>(PartialFloats(spec, limits) /
                              DiffDecodePartialFloats(spec, DiffDecodeTiling(spec, 1), 1));
}

size_t CounterBytes(const DiffSpec& spec, const StepLimits& limits) {
  return DiffDecodeCounters(spec, GeneratedItems(spec, limits)) * sizeof(uint32_t);
}

// Pages of one group.
size_t NumWidenedPages(const DiffSpec& spec, const StepLimits& limits) {
  if (!limits.has_code_pages || WidenedPageBytes(spec) == 0) return 0;
  const auto of_one = static_cast<size_t>((limits.max_model_len + kImagePageSize - 1) /
                                          kImagePageSize);
  const size_t of_all = of_one * static_cast<size_t>(limits.num_sequences) *
                        static_cast<size_t>(spec.num_kv_groups);
  return std::max(of_one, std::min(of_all, limits.widened_bytes_max / WidenedPageBytes(spec)));
}

int LogitsRows(const ModelConfig& config, const StepLimits& limits) {
  const int64_t slice = std::max<int64_t>(limits.num_sequences,
                                          kMaxLogitElements / config.vocab_size);
  return static_cast<int>(std::min<int64_t>(slice, limits.num_tokens));
}

}  // namespace

size_t Workspace::Bytes(const ModelConfig& config, const StepLimits& limits,
                        const LogitQuant& logits) {
  size_t bytes = 0;
  for (const BufferSize& size : BytesPerToken(config))
    bytes += size.bytes * static_cast<size_t>(limits.num_tokens);
  bytes += static_cast<size_t>(LogitsRows(config, limits)) *
           static_cast<size_t>(config.vocab_size) * sizeof(float);
  const DiffSpec& spec = config.attention;
  bytes += (PartialFloats(spec, limits) + ExtentFloats(spec, limits, logits)) * sizeof(float);
  bytes += NumWidenedPages(spec, limits) * (WidenedPageBytes(spec) + sizeof(int32_t));
  return bytes + CounterBytes(spec, limits);
}

int64_t Workspace::GeneratedItemsMax(const DiffSpec& spec, const AttentionTiling& tiling) const {
  const size_t floats = partials.size_bytes() / sizeof(float);
  const size_t of_counters = counters.size_bytes() / sizeof(uint32_t) - DiffDecodeCounters(spec, 0);
  return static_cast<int64_t>(std::min(floats / DiffDecodePartialFloats(spec, tiling, 1),
                                       of_counters / static_cast<size_t>(spec.num_kv_groups)));
}

int Workspace::PromptPagesMax() const {
  const size_t pages = widened_ids.size_bytes() / sizeof(int32_t);
  return pages == 0 ? std::numeric_limits<int>::max() : static_cast<int>(pages);
}

WidenedPages Workspace::WidenedFor(int first_page, int num_pages) const {
  return {widened.as<std::byte>(), widened.size_bytes(), widened_ids.as<int32_t>(), first_page,
          num_pages};
}

Result<Workspace> Workspace::Allocate(const ModelConfig& config, const StepLimits& limits,
                                      const LogitQuant& logits) {
  Workspace work;
  const auto tokens = static_cast<size_t>(limits.num_tokens);
  for (const auto& [buffer, bytes] : BytesPerToken(config))
    DS_RETURN_IF_ERROR(Take(&(work.*buffer), tokens * bytes));
  work.logits_rows = LogitsRows(config, limits);
  const size_t next_logits = static_cast<size_t>(work.logits_rows) *
                             static_cast<size_t>(config.vocab_size);
  DS_RETURN_IF_ERROR(Take(&work.logits, next_logits * sizeof(float)));

  const DiffSpec& spec = config.attention;
  DS_RETURN_IF_ERROR(Take(&work.partials, PartialFloats(spec, limits) * sizeof(float)));
  if (logits.is_on()) {
    DS_RETURN_IF_ERROR(Take(&work.extents, ExtentFloats(spec, limits, logits) * sizeof(float)));
  }
  if (const size_t pages = NumWidenedPages(spec, limits); pages > 0) {
    DS_RETURN_IF_ERROR(Take(&work.widened, pages * WidenedPageBytes(spec)));
    DS_RETURN_IF_ERROR(Take(&work.widened_ids, pages * sizeof(int32_t)));
  }
  DS_RETURN_IF_ERROR(Take(&work.counters, CounterBytes(spec, limits)));
  return work;
}

}  // namespace diffserve::cuda
