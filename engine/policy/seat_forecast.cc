// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/seat_forecast.h"

#include <algorithm>
#include <cmath>

namespace diffserve {

SeatForecast::SeatForecast(const std::vector<int>& tokens_left, int free_seats,
                           const Lengths& lengths)
    : seats_(static_cast<int>(tokens_left.size()) + free_seats),
      free_seats_(free_seats),
      max_tokens_(std::max(1.0, lengths.max_tokens)),
      stop_chance_(lengths.stop_chance),
      log_going_on_(std::log1p(-stop_chance_)),
      survival_(Survival(max_tokens_)) {
  ends_.reserve(tokens_left.size() + 1);
  for (const int tokens : tokens_left) {
    const double most = std::max(1, tokens);
    ends_.push_back({most, Survival(most)});
  }
  if (free_seats > 0) ends_.push_back({max_tokens_, free_seats * survival_});
  std::ranges::sort(ends_, {}, &End::tokens);
  double count = 0;
  for (End& end : ends_) end.count = count += end.count;
}

double SeatForecast::Survival(double tokens) const { return std::exp(tokens * log_going_on_); }

// Every seat is taken all the time, so the same part of all its tokens stops a sequence. The others
// end with their last token: first those that run now, then those that started when one ended.
double SeatForecast::EndsWithin(double tokens) const {
  double ends = 0, survival = 1;
  for (; tokens > 0 && survival > 1e-3; tokens -= max_tokens_, survival *= survival_) {
    const auto later = std::ranges::upper_bound(ends_, tokens, {}, &End::tokens);
    const double whole = later == ends_.begin() ? 0 : std::prev(later)->count;
    ends += survival * (seats_ * stop_chance_ * tokens + whole);
  }
  return ends;
}

double SeatForecast::TokensUntilStart(double ahead) const {
  double ends = ahead + 1 - free_seats_;
  if (ends_.empty() || ends <= 0) return 0;
  // In the long run as many sequences end as there are seats while one sequence lasts.
  const double length = stop_chance_ > 0 ? -std::expm1(max_tokens_ * log_going_on_) / stop_chance_
                                         : max_tokens_;
  const double rounds = std::max(0.0, std::floor(ends / seats_) - 2);
  ends -= rounds * seats_;
  double low = 0, high = 1;
  for (; EndsWithin(high) < ends; high *= 2) low = high;
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (EndsWithin(middle) < ends ? low : high) = middle;
  }
  return high + rounds * length;
}

}  // namespace diffserve
