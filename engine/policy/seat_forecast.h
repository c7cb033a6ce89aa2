// SPDX-License-Identifier: Apache-2.0
// SeatForecast: when running sequences are expected to end, so that waiting ones can start. It
// counts in tokens per sequence, and so in steps. It knows how many tokens each sequence may still
// generate, and how likely each token ends its sequence before. A value; no clock.
#pragma once

#include <vector>

namespace diffserve {

class SeatForecast {
 public:
  SeatForecast() = default;
  struct Lengths {
    double max_tokens = 0;   // that a sequence may generate if it starts later
    double stop_chance = 0;  // the part of all tokens that ends a sequence before its max_tokens
  };
  // `tokens_left`: how many tokens each running sequence may generate. `free_seats`: how many
  // sequences could start in addition to these.
  SeatForecast(const std::vector<int>& tokens_left, int free_seats, const Lengths& lengths);

  int seats() const { return seats_; }
  // How many tokens each sequence generates until the next request can start after `ahead` others.
  // Each starts as soon as there is a seat.
  double TokensUntilStart(double ahead) const;

 private:
  double EndsWithin(double tokens) const;
  // The part of the sequences that generate this number of tokens.
  double Survival(double tokens) const;

  struct End {
    double tokens = 0;  // the most that the sequence generates
    double count = 0;   // how many sequences generate all that they may, this and the earlier ones
  };
  std::vector<End> ends_;  // of the running sequences and of those that take the free seats
  int seats_ = 0, free_seats_ = 0;
  double max_tokens_ = 1;
  double stop_chance_ = 0;
  double log_going_on_ = 0;  // of the part of the tokens that end no sequence
  double survival_ = 0;      // the part of the sequences that generate max_tokens_
};

}  // namespace diffserve
