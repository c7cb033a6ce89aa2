#include "models/step_batch_cuda.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

namespace diffserve::cuda {
namespace {

constexpr size_t kAlignment = 16;
constexpr size_t kGraphTokensMax = 512;

size_t RoundedUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

int NumPromptTokens(const Batch& batch, size_t sequence) {
  return batch.num_prompt_tokens.empty() ? batch.sequences[sequence].num_tokens
                                         : batch.num_prompt_tokens[sequence];
}

template <typename T>
void Append(std::vector<std::byte>& bytes, size_t offset, const std::vector<T>& values) {
  if (bytes.size() < offset + values.size() * sizeof(T))
    bytes.resize(offset + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + offset, values.data(), values.size() * sizeof(T));
}

// What is collected of a pass before its sizes are known.
struct StepArrays {
  std::vector<DeviceSequence> sequences;
  std::vector<int32_t> token_sequences, tokens, logit_rows, pages;
  std::vector<int32_t> packed_of_token;  // of the batch: its packed index, or -1
};

void AddPieces(const Batch& batch, const StepPass& pass, bool prompts, int page_size,
               StepArrays& arrays) {
  for (const StepPiece& piece : pass) {
    if (piece.is_prompt != prompts) continue;
    const SequenceTokens& rows = batch.sequences[static_cast<size_t>(piece.sequence)];
    const int position = rows.position + piece.first;
    DeviceSequence entry = {static_cast<int32_t>(arrays.tokens.size()), piece.num_tokens, position,
                            static_cast<int32_t>(arrays.pages.size())};
    for (const StepPiece& other : pass) {
      if (other.sequence == piece.sequence && other.first > piece.first)
        entry.num_tokens_after += other.num_tokens;
    }
    const int num_pages = (position + piece.num_tokens + page_size - 1) / page_size;
    arrays.pages.insert(arrays.pages.end(), rows.pages, rows.pages + num_pages);
    for (int i = 0; i < piece.num_tokens; ++i) {
      const size_t row = static_cast<size_t>(rows.first_row + piece.first + i);
      arrays.packed_of_token[row] = static_cast<int32_t>(arrays.tokens.size());
      arrays.tokens.push_back(batch.tokens[row]);
      arrays.token_sequences.push_back(static_cast<int32_t>(arrays.sequences.size()));
    }
    arrays.sequences.push_back(entry);
  }
}

}  // namespace

int GeneratedTokensMax(const Batch& batch) {
  int most = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i)
    most = std::max(most, batch.sequences[i].num_tokens - NumPromptTokens(batch, i));
  return most;
}

std::vector<StepPass> CutIntoPasses(const Batch& batch, const AttentionTiling& tiling,
                                    int64_t items_max) {
  std::vector<StepPass> passes(1);
  int64_t items = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceTokens& rows = batch.sequences[i];
    const int num_prompt_tokens = NumPromptTokens(batch, i);
    const int sequence = static_cast<int>(i);
    if (num_prompt_tokens > 0) passes.back().push_back({sequence, 0, num_prompt_tokens, true});
    for (int first = num_prompt_tokens; first < rows.num_tokens;) {
      const auto items_of = [&](int num_tokens) {
        return int64_t{tiling.NumTiles(num_tokens)} *
               tiling.NumSplits(rows.position + first + num_tokens);
      };
      int num_tokens = rows.num_tokens - first;
      while (num_tokens > 1 && items_of(num_tokens) > items_max) num_tokens = (num_tokens + 1) / 2;
      DS_CHECK(items_of(num_tokens) <= items_max, "the attention of one token fits a pass");
      // A pass has one generated entry of a sequence.
      if (first > num_prompt_tokens || items + items_of(num_tokens) > items_max) {
        passes.emplace_back();
        items = 0;
      }
      items += items_of(num_tokens);
      passes.back().push_back({sequence, first, num_tokens, false});
      first += num_tokens;
    }
  }
  return passes;
}

bool IsDecode(const Batch& batch) {
  const size_t rows = batch.tokens.size();
  const bool all_draw = batch.sample_rows.size() == rows && batch.logit_rows.size() == rows &&
                        batch.sequences.size() == rows;
  return all_draw && !batch.num_prompt_tokens.empty() &&
         std::all_of(batch.num_prompt_tokens.begin(), batch.num_prompt_tokens.end(),
                     [](int32_t count) { return count == 0; });
}

int GraphTokens(size_t num_tokens, int tokens_max) {
  if (num_tokens > kGraphTokensMax || num_tokens > static_cast<size_t>(tokens_max)) return 0;
  const size_t step = num_tokens <= 2 ? 1 : num_tokens <= 4 ? 4 : num_tokens <= 64 ? 8 : 32;
  return static_cast<int>(std::min(RoundedUp(num_tokens, step), static_cast<size_t>(tokens_max)));
}

StepOffsets::StepOffsets(const StepShape& shape) {
  size_t next = 0;
  const auto take = [&](size_t count, size_t size) {
    const size_t offset = next;
    next = RoundedUp(next + count * size, kAlignment);
    return offset;
  };
  sequences = take(static_cast<size_t>(shape.num_sequences), sizeof(DeviceSequence));
  token_sequences = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  tokens = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  logit_rows = take(static_cast<size_t>(shape.num_logit_rows), sizeof(int32_t));
  sample_rows = take(static_cast<size_t>(shape.num_sample_rows), sizeof(SampleTask));
  tail = next;
}

void PackStep(const Batch& batch, const StepPass& pass, int page_size, bool draws, int num_padded,
              PackedStep* step) {
  StepArrays arrays;
  arrays.packed_of_token.assign(batch.tokens.size(), -1);
  AddPieces(batch, pass, /*prompts=*/false, page_size, arrays);
  StepShape& shape = step->shape;
  shape.num_generated_tokens = static_cast<int>(arrays.tokens.size());
  shape.num_generated_sequences = static_cast<int>(arrays.sequences.size());
  AddPieces(batch, pass, /*prompts=*/true, page_size, arrays);
  for (int32_t row : batch.logit_rows) {
    if (const int32_t packed = arrays.packed_of_token[static_cast<size_t>(row)]; packed >= 0)
      arrays.logit_rows.push_back(packed);
  }
  std::vector<SampleTask> sample_rows;
  if (draws) sample_rows = batch.sample_rows;

  const auto padded = static_cast<size_t>(num_padded);
  DS_CHECK(num_padded == 0 || arrays.logit_rows.size() == arrays.tokens.size(),
           "a padded step wants the logits of every token");
  while (arrays.tokens.size() < padded) {
    const auto row = static_cast<int32_t>(arrays.tokens.size());
    arrays.token_sequences.push_back(row);
    arrays.sequences.push_back({row, 0, 0, 0});
    arrays.tokens.push_back(0);
    arrays.logit_rows.push_back(row);
    sample_rows.push_back({.kind = SampleKind::kNothing});
    ++shape.num_generated_tokens;
    ++shape.num_generated_sequences;
  }

  shape.num_tokens = static_cast<int>(arrays.tokens.size());
  shape.num_sequences = static_cast<int>(arrays.sequences.size());
  shape.num_logit_rows = static_cast<int>(arrays.logit_rows.size());
  shape.num_sample_rows = static_cast<int>(sample_rows.size());
  const StepOffsets offsets(shape);
  const size_t mask_words = draws ? batch.masks.size() : 0;
  const size_t pages_begin = mask_words * sizeof(uint32_t);
  for (DeviceSequence& sequence : arrays.sequences)
    sequence.first_page += static_cast<int32_t>(mask_words);
  const size_t adjustments_begin = RoundedUp(pages_begin + arrays.pages.size() * sizeof(int32_t),
                                             sizeof(LogitAdjustment));
  for (SampleTask& row : sample_rows)
    row.first_adjustment += static_cast<int32_t>(adjustments_begin / sizeof(LogitAdjustment));

  step->bytes.assign(offsets.tail, std::byte{0});
  Append(step->bytes, offsets.sequences, arrays.sequences);
  Append(step->bytes, offsets.token_sequences, arrays.token_sequences);
  Append(step->bytes, offsets.tokens, arrays.tokens);
  Append(step->bytes, offsets.logit_rows, arrays.logit_rows);
  Append(step->bytes, offsets.sample_rows, sample_rows);
  if (draws) Append(step->bytes, offsets.tail, batch.masks);
  Append(step->bytes, offsets.tail + pages_begin, arrays.pages);
  if (draws) Append(step->bytes, offsets.tail + adjustments_begin, batch.adjustments);
}

DeviceStep::DeviceStep(const StepShape& shape, std::byte* base, const AttentionTiling& tiling)
    : generated_tiling(tiling),
      num_logit_rows(shape.num_logit_rows),
      num_sample_rows(shape.num_sample_rows) {
  const StepOffsets at(shape);
  const auto ints = [&](size_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
  const auto* sequences = reinterpret_cast<const DeviceSequence*>(base + at.sequences);
  all = {shape.num_sequences, shape.num_tokens, sequences, ints(at.token_sequences), ints(at.tail)};
  generated = all;
  generated.num_sequences = shape.num_generated_sequences;
  generated.num_tokens = shape.num_generated_tokens;
  prompts = all;
  prompts.num_sequences -= generated.num_sequences;
  prompts.num_tokens -= generated.num_tokens;
  prompts.sequences += generated.num_sequences;
  prompts.token_sequences = nullptr;  // of no use to prefill
  tokens = ints(at.tokens);
  logit_rows = ints(at.logit_rows);
  sample_rows = reinterpret_cast<const SampleTask*>(base + at.sample_rows);
  adjustments = reinterpret_cast<LogitAdjustment*>(base + at.tail);
  masks = reinterpret_cast<const uint32_t*>(base + at.tail);
}

}  // namespace diffserve::cuda
