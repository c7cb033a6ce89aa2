// SPDX-License-Identifier: Apache-2.0
#include "models/step_batch_cuda.h"

#include <algorithm>
#include <cstring>

#include "kernels/process/check.h"

namespace diffserve::cuda {
namespace {

constexpr size_t kGraphTokensMax = 512;

size_t RoundedUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

int NumPromptTokens(const Batch& batch, size_t sequence) {
  return batch.num_prompt_tokens.empty() ? batch.sequences[sequence].num_tokens
                                         : batch.num_prompt_tokens[sequence];
}

// Copies the values to `to` + `offset`.
template <typename T>
void Put(std::span<const T> values, std::byte* to, size_t offset) {
  if (!values.empty()) std::memcpy(to + offset, values.data(), values.size_bytes());
}
template <typename T>
void Put(const std::vector<T>& values, std::byte* to, size_t offset) {
  Put(std::span<const T>(values), to, offset);
}

// The number of the piece's tokens before the first whose logits are wanted.
int NumUnwanted(const Batch& batch, const StepPiece& piece) {
  const int first_row = batch.sequences[static_cast<size_t>(piece.sequence)].first_row +
                        piece.first;
  const auto wanted = std::ranges::lower_bound(batch.logit_rows, first_row);
  return wanted == batch.logit_rows.end() ? piece.num_tokens
                                          : std::min(*wanted - first_row, piece.num_tokens);
}

int End(const StepPiece& piece) { return piece.first + piece.num_tokens; }

int NumPages(const DeviceSequence& entry, int page_size) {
  return (entry.position + entry.num_tokens + page_size - 1) / page_size;
}

// Adds the parts of a generated piece that have splits of one size each, the last one first.
void AddGenerated(const Batch& batch, StepPiece piece, std::vector<StepPiece>& pieces) {
  const int position = batch.sequences[static_cast<size_t>(piece.sequence)].position;
  const size_t begin = pieces.size();
  while (piece.num_tokens > 0) {
    StepPiece& part = pieces.emplace_back(piece);
    part.num_tokens = std::min(piece.num_tokens, TokensOfOneSplitSize(position + piece.first));
    piece.first += part.num_tokens;
    piece.num_tokens -= part.num_tokens;
  }
  std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(begin), pieces.end());
}

// Maximum number of items of the generated tokens [position, position + num_tokens) in a layer.
int64_t ItemsMax(const AttentionTiling& tiling, int position, int num_tokens) {
  int64_t items = 0;
  for (const int end = position + num_tokens; position < end;) {
    const int of_one_size = std::min(end - position, TokensOfOneSplitSize(position));
    items += int64_t{tiling.NumTiles(of_one_size)} *
             AttentionSplitsMax(tiling, position, of_one_size);
    position += of_one_size;
  }
  return items;
}

}  // namespace

class StepPacker {
 public:
  StepPacker(const Batch& batch, const StepPass& pass, const StepPacking& packing, PackedStep& step)
      : batch_(batch), pass_(pass), packing_(packing), step_(step), shape_(step.shape) {}

  void Pack() {
    shape_ = {};
    shape_.has_windows = packing_.needs.has_windows;
    OrderPieces();
    AddEntries();
    if (packing_.needs.has_states) AddWaves();
    AddRows();
    if (packing_.num_padded > 0) Pad();
    Count();
    FlattenWaves();
    PlaceTail();
    Plan();
  }

 private:
  void OrderPieces();
  void AddEntries();
  void AddWaves();
  void AddRows();
  void Pad();
  void Count();
  void FlattenWaves();
  void PlaceTail();
  void Plan();
  StepShape::PromptRun RunFrom(std::span<const DeviceSequence> prompts, size_t begin,
                               size_t* end) const;
  // Its index among the page ids of the tail.
  int32_t AddTable(const int32_t* pages, int num_pages);

  const Batch& batch_;
  const StepPass& pass_;
  const StepPacking& packing_;
  PackedStep& step_;
  StepShape& shape_;
  StateWaves waves_;
  size_t num_pages_ = 0;
};

// Order: generated tokens, prompt tokens up to wanted ones, then the tokens that some layers skip.
void StepPacker::OrderPieces() {
  std::vector<StepPiece>& pieces = step_.pieces_;
  std::vector<StepPiece> wanted, unwanted;
  pieces.clear();
  for (const StepPiece& piece : pass_) {
    if (!piece.is_prompt) {
      AddGenerated(batch_, piece, pieces);
      shape_.num_generated_tokens += piece.num_tokens;
      continue;
    }
    const int skipped = packing_.needs.may_skip ? NumUnwanted(batch_, piece) : 0;
    if (skipped > 0) unwanted.push_back({piece.sequence, piece.first, skipped, true});
    if (skipped == piece.num_tokens) continue;
    wanted.push_back({piece.sequence, piece.first + skipped, piece.num_tokens - skipped, true});
    shape_.num_wanted_tokens += piece.num_tokens - skipped;
  }
  shape_.num_wanted_tokens += shape_.num_generated_tokens;
  shape_.num_generated_sequences = static_cast<int>(pieces.size());
  pieces.insert(pieces.end(), wanted.begin(), wanted.end());
  shape_.num_wanted_sequences = static_cast<int>(pieces.size());
  pieces.insert(pieces.end(), unwanted.begin(), unwanted.end());
}

int32_t StepPacker::AddTable(const int32_t* pages, int num_pages) {
  const size_t first = num_pages_;
  step_.tables_.emplace_back(pages, static_cast<size_t>(num_pages));
  num_pages_ += static_cast<size_t>(num_pages);
  return static_cast<int32_t>(first);
}

// Adds the entries of the pieces and their tokens.
void StepPacker::AddEntries() {
  // The pieces of a sequence in a pass follow one another.
  std::vector<int> ends(batch_.sequences.size(), 0);
  for (const StepPiece& piece : step_.pieces_) {
    int& end = ends[static_cast<size_t>(piece.sequence)];
    end = std::max(end, End(piece));
  }
  step_.packed_of_token_.assign(batch_.tokens.size(), -1);
  step_.sequences_.clear();
  step_.tokens_.clear();
  step_.token_sequences_.clear();
  step_.tables_.clear();
  for (const StepPiece& piece : step_.pieces_) {
    const SequenceTokens& rows = batch_.sequences[static_cast<size_t>(piece.sequence)];
    DeviceSequence entry = {static_cast<int32_t>(step_.tokens_.size()), piece.num_tokens,
                            rows.position + piece.first, 0};
    entry.first_page = AddTable(rows.pages, NumPages(entry, packing_.page_size));
    entry.num_tokens_after = ends[static_cast<size_t>(piece.sequence)] - End(piece);
    for (int i = 0; i < piece.num_tokens; ++i) {
      const size_t row = static_cast<size_t>(rows.first_row + piece.first + i);
      step_.packed_of_token_[row] = static_cast<int32_t>(step_.tokens_.size());
      step_.tokens_.push_back(batch_.tokens[row]);
      step_.token_sequences_.push_back(static_cast<int32_t>(step_.sequences_.size()));
    }
    step_.sequences_.push_back(entry);
  }
  if (!shape_.has_windows) return;
  step_.in_windows_ = step_.sequences_;
  for (size_t i = 0; i < step_.pieces_.size(); ++i) {
    const SequenceTokens& rows = batch_.sequences[static_cast<size_t>(step_.pieces_[i].sequence)];
    DeviceSequence& entry = step_.in_windows_[i];
    if (rows.window_pages != nullptr)
      entry.first_page = AddTable(rows.window_pages, NumPages(entry, packing_.page_size));
  }
}

// Adds the waves of the pieces. Pieces of one sequence are in successive waves; different sequences
// share waves.
void StepPacker::AddWaves() {
  DS_CHECK(batch_.states.empty() || batch_.states.size() == batch_.sequences.size(),
           "slots for each sequence");
  // The pieces of a sequence stand in descending order of their tokens.
  std::vector<size_t> pieces_left(batch_.sequences.size(), 0);
  for (const StepPiece& piece : step_.pieces_) ++pieces_left[static_cast<size_t>(piece.sequence)];
  std::vector<StateWaves> turns;
  for (size_t i = 0; i < step_.pieces_.size(); ++i) {
    const StepPiece& piece = step_.pieces_[i];
    const auto s = static_cast<size_t>(piece.sequence);
    const size_t before = --pieces_left[s];
    if (turns.size() <= before) turns.resize(before + 1);
    AddToWaves(
        {batch_.sequences[s].position, step_.sequences_[i].first_row, piece.first,
         piece.num_tokens},
        batch_.states.empty() ? StateSlotUse{piece.sequence, piece.sequence} : batch_.states[s],
        turns[before]);
  }
  for (const StateWaves& waves : turns) waves_.insert(waves_.end(), waves.begin(), waves.end());
}

void StepPacker::AddRows() {
  step_.logit_rows_.clear();
  for (int32_t row : batch_.logit_rows) {
    if (const int32_t packed = step_.packed_of_token_[static_cast<size_t>(row)]; packed >= 0)
      step_.logit_rows_.push_back(packed);
  }
  step_.sample_rows_.clear();
  if (packing_.draws) step_.sample_rows_ = batch_.sample_rows;
}

// Adds empty entries up to `num_padded` tokens and as many entries: one for each token that is
// added, the rest without a token.
void StepPacker::Pad() {
  const int num_padded = packing_.num_padded;
  DS_CHECK(step_.logit_rows_.size() == step_.tokens_.size(),
           "a padded step wants the logits of every token");
  DS_CHECK(!packing_.needs.has_states || waves_.size() == 1, "a padded step is one wave");
  for (auto row = static_cast<int32_t>(step_.tokens_.size()); row < num_padded; ++row) {
    step_.token_sequences_.push_back(static_cast<int32_t>(step_.sequences_.size()));
    step_.sequences_.push_back({row, 0, 0, 0});
    if (shape_.has_windows) step_.in_windows_.push_back({row, 0, 0, 0});
    if (packing_.needs.has_states) waves_[0].push_back({row, 0, kNoState, 0});
    step_.tokens_.push_back(0);
    step_.logit_rows_.push_back(row);
  }
  step_.sequences_.resize(static_cast<size_t>(num_padded), {num_padded, 0, 0, 0});
  if (shape_.has_windows)
    step_.in_windows_.resize(static_cast<size_t>(num_padded), {num_padded, 0, 0, 0});
  shape_.num_generated_tokens = shape_.num_wanted_tokens = num_padded;
  shape_.num_generated_sequences = shape_.num_wanted_sequences = num_padded;
  step_.sample_rows_.resize(step_.logit_rows_.size(), {.kind = SampleKind::kNothing});
}

void StepPacker::Count() {
  shape_.num_tokens = static_cast<int>(step_.tokens_.size());
  shape_.num_sequences = static_cast<int>(step_.sequences_.size());
  shape_.num_logit_rows = static_cast<int>(step_.logit_rows_.size());
  shape_.num_sample_rows = static_cast<int>(step_.sample_rows_.size());
}

void StepPacker::FlattenWaves() {
  step_.states_.clear();
  for (const std::vector<StateSequence>& wave : waves_) {
    StepShape::Wave& sizes = shape_.waves.emplace_back();
    sizes.num_sequences = static_cast<int>(wave.size());
    for (const StateSequence& sequence : wave) {
      sizes.num_tokens += sequence.num_tokens;
      sizes.num_tokens_max = std::max(sizes.num_tokens_max, sequence.num_tokens);
    }
    // A padded step's shape does not depend on the number of its real tokens.
    if (packing_.num_padded > 0) sizes.num_tokens = packing_.num_padded;
    step_.states_.insert(step_.states_.end(), wave.begin(), wave.end());
  }
}

// Masks, page ids, adjustments, the plans' items.
void StepPacker::PlaceTail() {
  step_.masks_ = {};
  step_.adjustments_ = {};
  if (packing_.draws) {
    step_.masks_ = batch_.masks;
    step_.adjustments_ = batch_.adjustments;
  }
  const size_t mask_words = step_.masks_.size();
  for (auto* sequences : {&step_.sequences_, &step_.in_windows_}) {
    for (DeviceSequence& sequence : *sequences)
      sequence.first_page += static_cast<int32_t>(mask_words);
  }
  step_.pages_begin_ = step_.masks_.size_bytes();
  step_.adjustments_begin_ = RoundedUp(step_.pages_begin_ + num_pages_ * sizeof(int32_t),
                                       sizeof(LogitAdjustment));
  for (SampleTask& row : step_.sample_rows_) {
    row.first_adjustment += static_cast<int32_t>(step_.adjustments_begin_ /
                                                 sizeof(LogitAdjustment));
  }
  step_.items_begin_ = RoundedUp(step_.adjustments_begin_ + step_.adjustments_.size_bytes(),
                                 sizeof(AttentionItem));
}

void StepPacker::Plan() {
  step_.plan_heads_.clear();
  step_.items_.clear();
  const auto first_of_all = static_cast<int32_t>(step_.items_begin_ / sizeof(AttentionItem));
  const auto add_head = [&](size_t begin, size_t end) -> AttentionPlanHead& {
    AttentionPlanHead& head = step_.plan_heads_.emplace_back();
    head.first_item = first_of_all + static_cast<int32_t>(begin);
    head.num_items = static_cast<int32_t>(end - begin);
    return head;
  };
  const bool has_one_entry_each = std::ranges::all_of(
      step_.sequences_, [](const DeviceSequence& entry) { return entry.num_tokens_after == 0; });
  for (const StepTilings& tilings : packing_.tilings) {
    const bool in_windows = shape_.has_windows && tilings.window > 0;
    const std::span<const DeviceSequence> entries = in_windows ? step_.in_windows_
                                                               : step_.sequences_;
    const auto generated = static_cast<size_t>(shape_.num_generated_sequences);
    const auto wanted = static_cast<size_t>(shape_.num_wanted_sequences);
    const size_t first = step_.items_.size();
    PlanAttention(entries.first(generated), tilings.generated, &step_.items_);
    add_head(first, step_.items_.size()).keeps_earlier_slots = has_one_entry_each ? 1 : 0;

    std::vector<size_t> begins;  // of each prompt entry's items
    for (const DeviceSequence& entry : entries.subspan(generated)) {
      begins.push_back(step_.items_.size());
      PlanAttention({&entry, 1}, tilings.prompts, &step_.items_);
    }
    begins.push_back(step_.items_.size());
    const auto add_runs = [&](std::span<const DeviceSequence> prompts) {
      std::vector<StepShape::PromptRun> runs;
      for (size_t begin = 0, end = 0; begin < prompts.size(); begin = end) {
        runs.push_back(RunFrom(prompts, begin, &end));
        add_head(begins[begin], begins[end]);
      }
      return runs;
    };
    StepShape::Plan& plan = shape_.plans.emplace_back();
    plan.prompts = add_runs(entries.subspan(generated));
    plan.wanted_prompts = add_runs(entries.subspan(generated, wanted - generated));
  }
  step_.size_bytes_ = StepOffsets(shape_).tail + step_.items_begin_ +
                      step_.items_.size() * sizeof(AttentionItem);
}

// The longest run from entry `begin` on; at least that entry.
StepShape::PromptRun StepPacker::RunFrom(std::span<const DeviceSequence> prompts, size_t begin,
                                         size_t* end) const {
  int first_page = prompts[begin].first_page;
  int end_page = first_page + NumPages(prompts[begin], packing_.page_size);
  for (*end = begin + 1; *end < prompts.size(); ++*end) {
    const DeviceSequence& next = prompts[*end];
    const int with_first = std::min(first_page, next.first_page);
    const int with_end = std::max(end_page, next.first_page + NumPages(next, packing_.page_size));
    if (with_end - with_first > packing_.prompt_pages_max) break;
    first_page = with_first;
    end_page = with_end;
  }
  return {first_page, end_page - first_page};
}

void PackedStep::Write(std::byte* to) const {
  const StepOffsets at(shape);
  Put(sequences_, to, at.sequences);
  Put(in_windows_, to, at.in_windows);
  Put(plan_heads_, to, at.plans);
  Put(states_, to, at.states);
  Put(token_sequences_, to, at.token_sequences);
  Put(tokens_, to, at.tokens);
  Put(logit_rows_, to, at.logit_rows);
  Put(sample_rows_, to, at.sample_rows);
  Put(masks_, to, at.tail);
  size_t next = at.tail + pages_begin_;
  for (const std::span<const int32_t> table : tables_) {
    Put(table, to, next);
    next += table.size_bytes();
  }
  Put(adjustments_, to, at.tail + adjustments_begin_);
  Put(items_, to, at.tail + items_begin_);
}

int GeneratedTokensMax(const Batch& batch) {
  int most = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i)
    most = std::max(most, batch.sequences[i].num_tokens - NumPromptTokens(batch, i));
  return most;
}

std::vector<StepPass> CutIntoPasses(const Batch& batch, const AttentionTiling& tiling,
                                    int64_t items_max) {
  std::vector<StepPass> passes(1);
  passes[0].reserve(batch.sequences.size());
  int64_t items = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceTokens& rows = batch.sequences[i];
    const int num_prompt_tokens = NumPromptTokens(batch, i);
    const int sequence = static_cast<int>(i);
    if (num_prompt_tokens > 0) passes.back().push_back({sequence, 0, num_prompt_tokens, true});
    for (int first = num_prompt_tokens; first < rows.num_tokens;) {
      const auto items_of = [&](int num_tokens) {
        return ItemsMax(tiling, rows.position + first, num_tokens);
      };
      int num_tokens = rows.num_tokens - first;
      while (num_tokens > 1 && items_of(num_tokens) > items_max) num_tokens = (num_tokens + 1) / 2;
      DS_CHECK(items_of(num_tokens) <= items_max, "the attention of one token fits a pass");
      // A pass has at most one generated entry per sequence.
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

bool IsDecode(const Batch& batch, const StepNeeds& needs) {
  const size_t rows = batch.tokens.size();
  const bool all_draw = batch.sample_rows.size() == rows && batch.logit_rows.size() == rows;
  const bool one_each = batch.sequences.size() == rows;
  return all_draw && (one_each || !needs.has_states) && !batch.num_prompt_tokens.empty() &&
         std::all_of(batch.num_prompt_tokens.begin(), batch.num_prompt_tokens.end(),
                     [](int32_t count) { return count == 0; });
}

int GraphTokens(size_t num_tokens, int tokens_max) {
  if (num_tokens > kGraphTokensMax || num_tokens > static_cast<size_t>(tokens_max)) return 0;
  const size_t step = num_tokens <= 2 ? 1 : num_tokens <= 4 ? 4 : num_tokens <= 64 ? 8 : 32;
  return static_cast<int>(std::min(RoundedUp(num_tokens, step), static_cast<size_t>(tokens_max)));
}

StepNeeds StepNeeds::Of(const ModelConfig& config) {
  const auto has_window = [](const LayerConfig& layer) { return layer.window > 0; };
  return {.has_windows = std::ranges::any_of(config.layers, has_window),
          .has_states = config.num_state_layers() > 0,
          .may_skip = config.last_keeping_layer() + 1 < config.num_layers};
}

void PackStep(const Batch& batch, const StepPass& pass, const StepPacking& packing,
              PackedStep* step) {
  StepPacker(batch, pass, packing, *step).Pack();
}

}  // namespace diffserve::cuda
