// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/hidden_state_pool.h"

#include <algorithm>
#include <cmath>

#include "kernels/process/check.h"

namespace diffserve {

HiddenStatePool::HiddenStatePool(Kind kind, int hidden_size, int dimensions)
    : kind_(kind),
      hidden_size_(static_cast<size_t>(hidden_size)),
      dimensions_(static_cast<size_t>(dimensions)) {
  DS_CHECK(dimensions > 0 && dimensions <= hidden_size, "a part of the state counts");
}

size_t HiddenStatePool::bytes(size_t num_tokens) const {
  const size_t per_row = keeps_each() ? num_tokens * sizeof(float) : sizeof(double) + sizeof(float);
  return sizeof(*this) + dimensions_ * per_row;
}

void HiddenStatePool::Reserve(size_t num_tokens) {
  if (!keeps_each()) sum_.resize(dimensions_);
  values_.resize(keeps_each() ? num_tokens * dimensions_ : dimensions_);
}

int HiddenStatePool::FirstState(int begin, int end, int num_tokens) const {
  if (is_complete()) return end;
  const int wanted = wants_all() ? next_position_ : num_tokens - 1;
  return std::clamp(wanted, begin, end);
}

void HiddenStatePool::OnStates(int position, int num_tokens, std::span<const float> states) {
  DS_CHECK(values_.size() == dimensions_ * static_cast<size_t>(keeps_each() ? num_tokens : 1),
           "the memory is there before the step");
  DS_CHECK(!is_complete() && position == (wants_all() ? next_position_ : num_tokens - 1),
           "states come in the order of positions, each once");
  for (; !states.empty(); states = states.subspan(hidden_size_)) {
    if (keeps_each()) Keep(static_cast<size_t>(position), states.first(dimensions_));
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += states[i];
    next_position_ = ++position;
  }
  if (position == num_tokens) Complete();
}

bool HiddenStatePool::CheckSquares(double squares) {
  if (!std::isfinite(squares)) {
    status_ = Status(StatusCode::kInternal, "the model produced non-finite hidden states");
  } else if (squares == 0) {
    status_ = Status(StatusCode::kInternal, "the pooled hidden state is zero: it has no direction");
  }
  return status_.ok();
}

void HiddenStatePool::Keep(size_t position, std::span<const float> state) {
  double squares = 0;
  for (const float x : state) squares += double{x} * x;
  if (!CheckSquares(squares)) return;
  const double length = kind_ == Kind::kEach ? 1 : std::sqrt(squares);
  std::ranges::transform(state, values_.begin() + static_cast<ptrdiff_t>(position * dimensions_),
                         [length](float x) { return static_cast<float>(x / length); });
}

// Normalising the length also removes the divisor of a mean.
void HiddenStatePool::Complete() {
  double squares = 0;
  for (const double x : sum_) squares += x * x;
  if (!keeps_each() && CheckSquares(squares)) {
    const double length = std::sqrt(squares);
    std::ranges::transform(sum_, values_.begin(),
                           [length](double x) { return static_cast<float>(x / length); });
  }
  is_complete_.store(true, std::memory_order_release);
}

}  // namespace diffserve
