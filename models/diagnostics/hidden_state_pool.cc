// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/hidden_state_pool.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace diffserve {

HiddenStatePool::HiddenStatePool(Kind kind, int hidden_size, int dimensions)
    : kind_(kind),
      hidden_size_(static_cast<size_t>(hidden_size)),
      dimensions_(static_cast<size_t>(dimensions)) {
  DS_CHECK(dimensions > 0 && dimensions <= hidden_size, "a part of the state counts");
}

size_t HiddenStatePool::bytes() const {
  return sizeof(*this) + dimensions_ * (sizeof(double) + sizeof(float));
}

void HiddenStatePool::Reserve() {
  sum_.resize(dimensions_);
  values_.resize(dimensions_);
}

int HiddenStatePool::FirstState(int begin, int end, int num_tokens) const {
  if (is_complete()) return end;
  const int wanted = wants_all() ? next_position_ : num_tokens - 1;
  return std::clamp(wanted, begin, end);
}

void HiddenStatePool::OnStates(int position, int num_tokens, std::span<const float> states) {
  DS_CHECK(sum_.size() == dimensions_, "the memory is there before the step");
  DS_CHECK(!is_complete() && position == (wants_all() ? next_position_ : num_tokens - 1),
           "states come in the order of positions, each once");
  for (; !states.empty(); states = states.subspan(hidden_size_)) {
    for (size_t i = 0; i < dimensions_; ++i) sum_[i] += states[i];
    next_position_ = ++position;
  }
  if (position == num_tokens) Complete();
}

// Normalising the length also removes the divisor of a mean.
void HiddenStatePool::Complete() {
  double squares = 0;
  for (const double x : sum_) squares += x * x;
  if (!std::isfinite(squares)) {
    status_ = Status(StatusCode::kInternal, "the model produced non-finite hidden states");
  } else if (squares == 0) {
    status_ = Status(StatusCode::kInternal, "the pooled hidden state is zero: it has no direction");
  }
  const double length = std::sqrt(squares);
  for (size_t i = 0; status_.ok() && i < dimensions_; ++i)
    values_[i] = static_cast<float>(sum_[i] / length);
  is_complete_.store(true, std::memory_order_release);
}

}  // namespace diffserve
