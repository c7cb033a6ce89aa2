// SPDX-License-Identifier: Apache-2.0
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

// The number of the piece's tokens before the first whose logits are wanted.
int NumUnwanted(const Batch& batch, const StepPiece& piece) {
  const int first_row = batch.sequences[static_cast<size_t>(piece.sequence)].first_row +
                        piece.first;
  const auto wanted = std::ranges::lower_bound(batch.logit_rows, first_row);
  return wanted == batch.logit_rows.end() ? piece.num_tokens
                                          : std::min(*wanted - first_row, piece.num_tokens);
}

int End(const StepPiece& piece) { return piece.first + piece.num_tokens; }

// Arrays of a pass, collected before its sizes are known.
struct StepArrays {
  std::vector<StepPiece> pieces;           // an entry each
  std::vector<DeviceSequence> sequences;   // [pieces]
  std::vector<DeviceSequence> in_windows;  // [pieces], if layers have windows
  StateWaves waves;
  std::vector<int32_t> token_sequences, tokens, logit_rows, pages;
  std::vector<int32_t> packed_of_token;  // [tokens of the batch]: the packed index, or -1
};

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

// Order: generated tokens, prompt tokens up to wanted ones, then the tokens that some layers skip.
void OrderPieces(const Batch& batch, const StepPass& pass, bool may_skip, StepArrays& arrays,
                 StepShape& shape) {
  std::vector<StepPiece> wanted, unwanted;
  for (const StepPiece& piece : pass) {
    if (!piece.is_prompt) {
      AddGenerated(batch, piece, arrays.pieces);
      shape.num_generated_tokens += piece.num_tokens;
      continue;
    }
    const int skipped = may_skip ? NumUnwanted(batch, piece) : 0;
    if (skipped > 0) unwanted.push_back({piece.sequence, piece.first, skipped, true});
    if (skipped == piece.num_tokens) continue;
    wanted.push_back({piece.sequence, piece.first + skipped, piece.num_tokens - skipped, true});
    shape.num_wanted_tokens += piece.num_tokens - skipped;
  }
  shape.num_wanted_tokens += shape.num_generated_tokens;
  shape.num_generated_sequences = static_cast<int>(arrays.pieces.size());
  arrays.pieces.insert(arrays.pieces.end(), wanted.begin(), wanted.end());
  shape.num_wanted_sequences = static_cast<int>(arrays.pieces.size());
  arrays.pieces.insert(arrays.pieces.end(), unwanted.begin(), unwanted.end());
}

// Adds the entries of the pieces and their tokens.
void AddEntries(const Batch& batch, int page_size, bool has_windows, StepArrays& arrays) {
  // The pieces of a sequence in a pass follow one another.
  std::vector<int> ends(batch.sequences.size(), 0);
  for (const StepPiece& piece : arrays.pieces) {
    int& end = ends[static_cast<size_t>(piece.sequence)];
    end = std::max(end, End(piece));
  }
  for (const StepPiece& piece : arrays.pieces) {
    const SequenceTokens& rows = batch.sequences[static_cast<size_t>(piece.sequence)];
    const int position = rows.position + piece.first;
    DeviceSequence entry = {static_cast<int32_t>(arrays.tokens.size()), piece.num_tokens, position,
                            static_cast<int32_t>(arrays.pages.size())};
    entry.num_tokens_after = ends[static_cast<size_t>(piece.sequence)] - End(piece);
    const int num_pages = (position + piece.num_tokens + page_size - 1) / page_size;
    arrays.pages.insert(arrays.pages.end(), rows.pages, rows.pages + num_pages);
    for (int i = 0; i < piece.num_tokens; ++i) {
      const size_t row = static_cast<size_t>(rows.first_row + piece.first + i);
      arrays.packed_of_token[row] = static_cast<int32_t>(arrays.tokens.size());
      arrays.tokens.push_back(batch.tokens[row]);
      arrays.token_sequences.push_back(static_cast<int32_t>(arrays.sequences.size()));
    }
    arrays.sequences.push_back(entry);
    if (!has_windows) continue;
    if (rows.window_pages != nullptr) {
      entry.first_page = static_cast<int32_t>(arrays.pages.size());
      arrays.pages.insert(arrays.pages.end(), rows.window_pages, rows.window_pages + num_pages);
    }
    arrays.in_windows.push_back(entry);
  }
}

// Adds the waves of the pieces. Pieces of one sequence are in successive waves; different sequences
// share waves.
void AddWaves(const Batch& batch, StepArrays& arrays) {
  DS_CHECK(batch.states.empty() || batch.states.size() == batch.sequences.size(),
           "slots for each sequence");
  // The pieces of a sequence stand in descending order of their tokens.
  std::vector<size_t> pieces_left(batch.sequences.size(), 0);
  for (const StepPiece& piece : arrays.pieces) ++pieces_left[static_cast<size_t>(piece.sequence)];
  std::vector<StateWaves> turns;
  for (size_t i = 0; i < arrays.pieces.size(); ++i) {
    const StepPiece& piece = arrays.pieces[i];
    const auto s = static_cast<size_t>(piece.sequence);
    const size_t before = --pieces_left[s];
    if (turns.size() <= before) turns.resize(before + 1);
    AddToWaves(
        {batch.sequences[s].position, arrays.sequences[i].first_row, piece.first, piece.num_tokens},
        batch.states.empty() ? StateSlotUse{piece.sequence, piece.sequence} : batch.states[s],
        turns[before]);
  }
  for (const StateWaves& waves : turns)
    arrays.waves.insert(arrays.waves.end(), waves.begin(), waves.end());
}

// Adds empty entries up to `num_padded` tokens and as many entries: one for each token that is
// added, the rest without a token.
void Pad(int num_padded, const StepNeeds& needs, StepArrays& arrays, StepShape& shape) {
  DS_CHECK(arrays.logit_rows.size() == arrays.tokens.size(),
           "a padded step wants the logits of every token");
  DS_CHECK(!needs.has_states || arrays.waves.size() == 1, "a padded step is one wave");
  for (auto row = static_cast<int32_t>(arrays.tokens.size()); row < num_padded; ++row) {
    arrays.token_sequences.push_back(static_cast<int32_t>(arrays.sequences.size()));
    arrays.sequences.push_back({row, 0, 0, 0});
    if (needs.has_windows) arrays.in_windows.push_back({row, 0, 0, 0});
    if (needs.has_states) arrays.waves[0].push_back({row, 0, kNoState, 0});
    arrays.tokens.push_back(0);
    arrays.logit_rows.push_back(row);
  }
  arrays.sequences.resize(static_cast<size_t>(num_padded), {num_padded, 0, 0, 0});
  if (needs.has_windows)
    arrays.in_windows.resize(static_cast<size_t>(num_padded), {num_padded, 0, 0, 0});
  shape.num_generated_tokens = shape.num_wanted_tokens = num_padded;
  shape.num_generated_sequences = shape.num_wanted_sequences = num_padded;
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

StepOffsets::StepOffsets(const StepShape& shape) {
  size_t next = 0;
  const auto take = [&](size_t count, size_t size) {
    const size_t offset = next;
    next = RoundedUp(next + count * size, kAlignment);
    return offset;
  };
  const auto num_sequences = static_cast<size_t>(shape.num_sequences);
  size_t num_states = 0;
  for (const StepShape::Wave& wave : shape.waves)
    num_states += static_cast<size_t>(wave.num_sequences);
  sequences = take(num_sequences, sizeof(DeviceSequence));
  in_windows = take(shape.has_windows ? num_sequences : 0, sizeof(DeviceSequence));
  states = take(num_states, sizeof(StateSequence));
  token_sequences = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  tokens = take(static_cast<size_t>(shape.num_tokens), sizeof(int32_t));
  logit_rows = take(static_cast<size_t>(shape.num_logit_rows), sizeof(int32_t));
  sample_rows = take(static_cast<size_t>(shape.num_sample_rows), sizeof(SampleTask));
  tail = next;
}

void PackStep(const Batch& batch, const StepPass& pass, const StepPacking& packing,
              PackedStep* step) {
  const bool draws = packing.draws;
  StepArrays arrays;
  arrays.packed_of_token.assign(batch.tokens.size(), -1);
  StepShape& shape = step->shape = {};
  shape.has_windows = packing.needs.has_windows;
  OrderPieces(batch, pass, packing.needs.may_skip, arrays, shape);
  AddEntries(batch, packing.page_size, shape.has_windows, arrays);
  if (packing.needs.has_states) AddWaves(batch, arrays);
  for (int32_t row : batch.logit_rows) {
    if (const int32_t packed = arrays.packed_of_token[static_cast<size_t>(row)]; packed >= 0)
      arrays.logit_rows.push_back(packed);
  }
  std::vector<SampleTask> sample_rows;
  if (draws) sample_rows = batch.sample_rows;
  if (packing.num_padded > 0) {
    Pad(packing.num_padded, packing.needs, arrays, shape);
    sample_rows.resize(arrays.logit_rows.size(), {.kind = SampleKind::kNothing});
  }

  shape.num_tokens = static_cast<int>(arrays.tokens.size());
  shape.num_sequences = static_cast<int>(arrays.sequences.size());
  shape.num_logit_rows = static_cast<int>(arrays.logit_rows.size());
  shape.num_sample_rows = static_cast<int>(sample_rows.size());
  std::vector<StateSequence> states;
  for (const std::vector<StateSequence>& wave : arrays.waves) {
    StepShape::Wave& sizes = shape.waves.emplace_back();
    sizes.num_sequences = static_cast<int>(wave.size());
    for (const StateSequence& sequence : wave) {
      sizes.num_tokens += sequence.num_tokens;
      sizes.num_tokens_max = std::max(sizes.num_tokens_max, sequence.num_tokens);
    }
    // A padded step's shape does not depend on the number of its real tokens.
    if (packing.num_padded > 0) sizes.num_tokens = packing.num_padded;
    states.insert(states.end(), wave.begin(), wave.end());
  }
  const StepOffsets offsets(shape);
  const size_t mask_words = draws ? batch.masks.size() : 0;
  const size_t pages_begin = mask_words * sizeof(uint32_t);
  for (auto* sequences : {&arrays.sequences, &arrays.in_windows}) {
    for (DeviceSequence& sequence : *sequences)
      sequence.first_page += static_cast<int32_t>(mask_words);
  }
  const size_t adjustments_begin = RoundedUp(pages_begin + arrays.pages.size() * sizeof(int32_t),
                                             sizeof(LogitAdjustment));
  for (SampleTask& row : sample_rows)
    row.first_adjustment += static_cast<int32_t>(adjustments_begin / sizeof(LogitAdjustment));

  step->bytes.assign(offsets.tail, std::byte{0});
  Append(step->bytes, offsets.sequences, arrays.sequences);
  Append(step->bytes, offsets.in_windows, arrays.in_windows);
  Append(step->bytes, offsets.states, states);
  Append(step->bytes, offsets.token_sequences, arrays.token_sequences);
  Append(step->bytes, offsets.tokens, arrays.tokens);
  Append(step->bytes, offsets.logit_rows, arrays.logit_rows);
  Append(step->bytes, offsets.sample_rows, sample_rows);
  if (draws) Append(step->bytes, offsets.tail, batch.masks);
  Append(step->bytes, offsets.tail + pages_begin, arrays.pages);
  if (draws) Append(step->bytes, offsets.tail + adjustments_begin, batch.adjustments);
}

DeviceStep::DeviceStep(const StepShape& shape, std::byte* base, const AttentionTiling& tiling)
    : num_wanted_tokens(shape.num_wanted_tokens),
      num_wanted_sequences(shape.num_wanted_sequences),
      generated_tiling(tiling),
      num_logit_rows(shape.num_logit_rows),
      num_sample_rows(shape.num_sample_rows) {
  const StepOffsets at(shape);
  const auto ints = [&](size_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
  const auto rows_of = [&](size_t offset) {
    const auto* sequences = reinterpret_cast<const DeviceSequence*>(base + offset);
    StepRows of;
    of.all = {shape.num_sequences, shape.num_tokens, sequences, ints(at.token_sequences),
              ints(at.tail)};
    of.generated = of.all;
    of.generated.num_sequences = shape.num_generated_sequences;
    of.generated.num_tokens = shape.num_generated_tokens;
    of.prompts = of.all;
    of.prompts.num_sequences -= of.generated.num_sequences;
    of.prompts.num_tokens -= of.generated.num_tokens;
    of.prompts.sequences += of.generated.num_sequences;
    of.prompts.token_sequences = nullptr;  // prefill does not use it
    return of;
  };
  rows = rows_of(at.sequences);
  in_windows = shape.has_windows ? rows_of(at.in_windows) : rows;
  const auto* states = reinterpret_cast<const StateSequence*>(base + at.states);
  for (const StepShape::Wave& wave : shape.waves) {
    waves.push_back({states, wave.num_sequences, wave.num_tokens, wave.num_tokens_max});
    states += wave.num_sequences;
  }
  tokens = ints(at.tokens);
  logit_rows = ints(at.logit_rows);
  sample_rows = reinterpret_cast<const SampleTask*>(base + at.sample_rows);
  adjustments = reinterpret_cast<LogitAdjustment*>(base + at.tail);
  masks = reinterpret_cast<const uint32_t*>(base + at.tail);
}

StepRows DeviceStep::Wanted(const StepRows& of) const {
  StepRows wanted = of;
  wanted.all.num_tokens = num_wanted_tokens;
  wanted.all.num_sequences = num_wanted_sequences;
  wanted.prompts.num_tokens = num_wanted_tokens - of.generated.num_tokens;
  wanted.prompts.num_sequences = num_wanted_sequences - of.generated.num_sequences;
  return wanted;
}

}  // namespace diffserve::cuda
