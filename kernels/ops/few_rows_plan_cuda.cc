// SPDX-License-Identifier: Apache-2.0
// Which thread blocks compute what of a product with few rows: the choice of least estimated time.
// Plain host code. No choice changes a bit of a result.
#include <algorithm>
#include <limits>
#include <string>

#include "kernels/ops/few_rows_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kTiles[] = {kFewRowsTileMax, 32, 16, 8, 4, 2, 1};
constexpr int kSplits[] = {1, 2, 4, 8};
constexpr int kStages[] = {3, 2};

// Time is counted in bytes that the multiprocessors take from the L2 cache, all at once.
constexpr double kSplitBytes = 7e6;     // what the last sums of split products cost, some 1.5 us
constexpr double kShallowShare = 0.1;   // of the weights: one piece on its way is too little
constexpr int kPartialBytesPerSum = 8;  // written and read
// What a memory delivers in the pause between two products, some 3 us, while it stays in a small
// part of the cache.
constexpr double kAheadBytes = 14e6;
constexpr double kAheadShare = 0.25;

int RoundedUp(int count, int unit) { return (count + unit - 1) / unit; }

int UnitsMax(const FewRowsProduct& product, const FewRowsPlan& plan) {
  return RoundedUp(product.Tiles().NumUnits(), plan.columns * plan.splits);
}

double Cost(const FewRowsProduct& product, const FewRowsPlan& plan) {
  const int workers = plan.columns * plan.splits;
  const double in_features = product.in_features, out_features = product.out_features;
  const FewRowsTiles tiles = product.Tiles();
  const double token_tiles = plan.TokenTiles(product);
  // As if every worker had as many units as the one that has most.
  const double weights = static_cast<double>(product.StripBytes() * tiles.StripsOfUnit()) *
                         UnitsMax(product, plan) * workers * token_tiles;
  // A norm reads whole rows of float32, PolyNorm gates and ups.
  const double row_bytes = product.MakesX() ? 4 * in_features : 2 * in_features / plan.splits;
  const double x = row_bytes * std::min(plan.tile, product.num_tokens) * workers * token_tiles;
  const double partials = plan.splits == 1 ? 0
                                           : kSplitBytes + out_features * product.num_tokens *
                                                               plan.splits * kPartialBytesPerSum;
  return weights * (plan.stages == 2 ? 1 + kShallowShare : 1) + x + partials;
}

}  // namespace

int FewRowsPlan::Passes(const FewRowsProduct& product) const {
  return RoundedUp(UnitsMax(product, *this), product.Tiles().UnitsOfTile());
}

size_t FewRowsPlan::NumCounters(const FewRowsProduct& product) const {
  if (splits == 1) return 0;
  return static_cast<size_t>(TokenTiles(product)) * static_cast<size_t>(columns) *
         static_cast<size_t>(Passes(product));
}

size_t FewRowsPlan::PartialBytes(const FewRowsProduct& product) const {
  constexpr size_t kTileRows = 16;
  const size_t sums = static_cast<size_t>(splits) * static_cast<size_t>(8 * Columns8()) * kTileRows;
  return NumCounters(product) * static_cast<size_t>(splits) * sums * sizeof(float);
}

Result<FewRowsPlan> PlanFewRows(const FewRowsProduct& product, const FewRowsLimits& limits,
                                std::optional<int> only_splits) {
  FewRowsPlan best;
  double least = std::numeric_limits<double>::infinity();
  for (const int tile : kTiles) {
    if (tile >= 2 * product.num_tokens && tile > 1) continue;
    if (product.MakesX() && tile > kFewRowsNormTokens) continue;
    for (const int splits : kSplits) {
      if (splits != only_splits.value_or(splits)) continue;
      FewRowsPlan plan = {.splits = splits, .tile = std::min(tile, product.num_tokens)};
      plan.tiles_at_once = std::clamp(limits.num_sms / splits, 1, plan.TokenTiles(product));
      plan.columns = std::max(1, limits.num_sms / (splits * plan.tiles_at_once));
      const auto fits = [&](int stages) {
        plan.stages = stages;
        return plan.SharedBytes(product) <= limits.shared_bytes_max;
      };
      if (std::ranges::none_of(kStages, fits)) continue;
      if (plan.NumCounters(product) > kFewRowsCounters ||
          plan.PartialBytes(product) > limits.partial_bytes) {
        continue;
      }
      if (const double cost = Cost(product, plan); cost < least) {
        least = cost;
        best = plan;
      }
    }
  }
  if (least < std::numeric_limits<double>::infinity()) return best;
  return Status(StatusCode::kUnimplemented,
                "a product of " + std::to_string(product.num_tokens) + " rows and " +
                    std::to_string(product.in_features) + " input features does not fit the " +
                    std::to_string(limits.shared_bytes_max) +
                    " bytes of shared memory of a thread block and " +
                    std::to_string(limits.partial_bytes) + " bytes for sums");
}

FewRowsAhead AheadOf(const FewRowsProduct& product, const FewRowsPlan& plan, double bytes) {
  const FewRowsTiles tiles = product.Tiles();
  const int64_t strip_bytes = product.StripBytes();
  const bool has_all_rows = product.format != WeightFormat::kBFloat16;
  FewRowsAhead ahead = {.weight = static_cast<const std::byte*>(product.weight),
                        .bytes = has_all_rows ? RoundedUp(product.out_features, 8) * strip_bytes
                                              : product.out_features * strip_bytes / 8,
                        .strip_bytes = strip_bytes,
                        .tiles = tiles,
                        .workers = plan.columns * plan.splits};
  const int64_t bytes_at_once = strip_bytes * tiles.StripsOfUnit() * ahead.workers;
  ahead.units = std::min(static_cast<int>(bytes / static_cast<double>(bytes_at_once)),
                         UnitsMax(product, plan));
  return ahead;
}

FewRowsPairs FewRowsPairs::Of(const RopeAppendArgs<BFloat16>& append) {
  if (append.style != RopeStyle::kHalfSplit) return {};
  const DiffSpec& spec = append.spec;
  return {spec.head_dim, spec.q_width() + (append.has_kv ? spec.k_width() : 0)};
}

FewRowsAhead FewRows::AheadOf(const FewRowsProduct& next) const {
  if (limits_.ahead_bytes == 0) return {};
  const Result<FewRowsPlan> plan = PlanFewRows(next, limits_);
  return plan.ok() ? cuda::AheadOf(next, *plan, limits_.ahead_bytes) : FewRowsAhead();
}

Result<FewRows> FewRows::Create(const DeviceInfo& device, size_t partial_bytes,
                                const Stream& stream) {
  FewRows few_rows;
  few_rows.limits_ = {device.num_sms, device.shared_memory_bytes_max, partial_bytes,
                      std::min(kAheadBytes, kAheadShare * static_cast<double>(device.l2_bytes))};
  few_rows.compute_capability_ = device.compute_capability;
  DS_RETURN_IF_ERROR(Assign(&few_rows.partials_, DeviceBuffer::Allocate(partial_bytes)));
  DS_RETURN_IF_ERROR(
      Assign(&few_rows.counters_, DeviceBuffer::Allocate(kFewRowsCounters * sizeof(int))));
  DS_RETURN_IF_ERROR(FillBytes(few_rows.counters_, std::byte{0}, stream));
  return few_rows;
}

Status FewRows::Multiply(const FewRowsProduct& product, const Stream& stream) const {
  // As many tokens at once as a plan fits.
  for (int begin = 0, count = product.num_tokens; begin < product.num_tokens;) {
    const FewRowsProduct part = product.Tokens(begin, count);
    const Result<FewRowsPlan> plan = PlanFewRows(part, limits_);
    if (plan.ok()) {
      DS_RETURN_IF_ERROR(Multiply(part, *plan, stream));
      begin += count;
    } else if (count == 1) {
      return plan.status();
    } else {
      count = (count + 1) / 2;
    }
  }
  return Status();
}

}  // namespace diffserve::cuda
