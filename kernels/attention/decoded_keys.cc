// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/decoded_keys.h"

#include <algorithm>

#include "kernels/base/thread_pool.h"
#include "kernels/process/check.h"

namespace diffserve {

DecodedKeys::DecodedKeys(const PagedKv& kv, const SequenceTokens& sequence, ThreadPool& pool)
    : num_slots_(sequence.position + sequence.num_tokens),
      head_dim_(kv.format.head_dim),
      k_maps_(kv.format.k_maps) {
  const KvFormat& format = kv.format;
  const int num_maps = format.num_groups * k_maps_;
  values_.resize(static_cast<size_t>(num_maps) * static_cast<size_t>(head_dim_) *
                 static_cast<size_t>(num_slots_));
  RunShares(pool, num_slots_, /*worth_waking=*/true, [&](int begin, int end) {
    for (int slot = begin; slot < end; ++slot) {
      for (int map = 0; map < num_maps; ++map) {
        const std::byte* page = kv.Page(sequence.pages[slot / format.page_size], map / k_maps_);
        const std::vector<double> k = KRow(format, page, map % k_maps_, slot % format.page_size);
        float* value = values_.data() + int64_t{map} * head_dim_ * num_slots_ + slot;
        for (size_t d = 0; d < k.size(); ++d, value += num_slots_)
          *value = static_cast<float>(k[d]);
      }
    }
  });
}

void DecodedKeys::Logits(int group, int k_map, const float* q, float scale,
                         std::span<float> logits) const {
  DS_CHECK(logits.size() <= static_cast<size_t>(num_slots_) && head_dim_ % 2 == 0,
           "slots that the sequence has, and pairs of dims");
  float* __restrict sums = logits.data();
  std::ranges::fill(logits, 0.0f);
  for (int d = 0; d < head_dim_; d += 2) {
    const int64_t row = (int64_t{group} * k_maps_ + k_map) * head_dim_ + d;
    const float *k0 = values_.data() + row * num_slots_, *k1 = k0 + num_slots_;
    const float q0 = scale * q[d], q1 = scale * q[d + 1];
    for (size_t slot = 0; slot < logits.size(); ++slot) sums[slot] += q0 * k0[slot] + q1 * k1[slot];
  }
}

}  // namespace diffserve
