// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/mamba/selective_scan.h"
#include "kernels/process/check.h"

namespace diffserve {

std::vector<float> ScanRates(std::span<const float> a_log, int channels, int states) {
  DS_CHECK(a_log.size() == static_cast<size_t>(channels) * static_cast<size_t>(states),
           "a scan has `states` rates per channel");
  std::vector<float> rates(a_log.size());
  for (size_t channel = 0; channel < static_cast<size_t>(channels); ++channel) {
    for (size_t n = 0; n < static_cast<size_t>(states); ++n) {
      const double log = a_log[channel * static_cast<size_t>(states) + n];
      rates[n * static_cast<size_t>(channels) + channel] = static_cast<float>(-std::exp(log));
    }
  }
  return rates;
}

namespace {

double Softplus(double v) { return v > 20 ? v : std::log1p(std::exp(v)); }

// y of the channel's token; advances `s` to the next token.
double Token(const SelectiveScanArgs<float>& args, int64_t row, int64_t channel,
             std::vector<double>& s) {
  const double x = args.x[row * args.channels + channel];
  const double delta = Softplus(double{args.dt[row * args.channels + channel]} +
                                double{args.dt_bias[channel]});
  double y = double{args.skip[channel]} * x;
  for (size_t n = 0; n < s.size(); ++n) {
    const auto at = static_cast<int64_t>(n);
    const double rate = args.rates[at * args.channels + channel];
    s[n] = std::exp(delta * rate) * s[n] + delta * x * double{args.b[row * args.bc_stride + at]};
    y += s[n] * double{args.c[row * args.bc_stride + at]};
  }
  return y;
}

void Sequence(const SelectiveScanArgs<float>& args, const StateSequence& sequence) {
  for (int64_t channel = 0; channel < args.channels; ++channel) {
    std::vector<double> s(static_cast<size_t>(args.states));
    for (size_t n = 0; n < s.size() && sequence.from != kNoState; ++n) {
      s[n] = args.state.data[sequence.from * args.state.stride +
                             static_cast<int64_t>(n) * args.channels + channel];
    }
    for (int64_t row = sequence.first_row; row < sequence.first_row + sequence.num_tokens; ++row) {
      double out = Token(args, row, channel, s);
      if (args.z != nullptr) {
        const double z = args.z[row * args.z_stride + channel];
        out *= z / (1.0 + std::exp(-z));
      }
      args.out[row * args.channels + channel] = static_cast<float>(out);
    }
    for (size_t n = 0; n < s.size(); ++n) {
      args.state.data[sequence.to * args.state.stride + static_cast<int64_t>(n) * args.channels +
                      channel] = static_cast<float>(s[n]);
    }
  }
}

}  // namespace

void SelectiveScanRef(const SelectiveScanArgs<float>& args) {
  for (int i = 0; i < args.batch.num_sequences; ++i) {
    if (args.batch.sequences[i].num_tokens > 0) Sequence(args, args.batch.sequences[i]);
  }
}

}  // namespace diffserve
