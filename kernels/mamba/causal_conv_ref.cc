// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/mamba/causal_conv.h"
#include "kernels/process/check.h"

namespace diffserve {

std::vector<float> ConvTaps(std::span<const float> weight, int channels, int width) {
  DS_CHECK(weight.size() == static_cast<size_t>(channels) * static_cast<size_t>(width),
           "a convolution has `width` weights per channel");
  std::vector<float> taps(weight.size());
  for (size_t channel = 0; channel < static_cast<size_t>(channels); ++channel) {
    for (size_t j = 0; j < static_cast<size_t>(width); ++j)
      taps[j * static_cast<size_t>(channels) + channel] =
          weight[channel * static_cast<size_t>(width) + j];
  }
  return taps;
}

namespace {

// The sequence's channel over time, from width - 1 tokens before the batch on.
std::vector<double> PastAndPresent(const CausalConvArgs<float>& args, const StateSequence& sequence,
                                   int64_t channel) {
  std::vector<double> values(static_cast<size_t>(args.width - 1));
  for (size_t i = 0; i < values.size() && sequence.from != kNoState; ++i) {
    values[i] = args.state.data[sequence.from * args.state.stride +
                                static_cast<int64_t>(i) * args.channels + channel];
  }
  for (int row = 0; row < sequence.num_tokens; ++row)
    values.push_back(double{args.x[(sequence.first_row + row) * args.x_stride + channel]});
  return values;
}

void Sequence(const CausalConvArgs<float>& args, const StateSequence& sequence) {
  const auto past = static_cast<size_t>(args.width - 1);
  for (int64_t channel = 0; channel < args.channels; ++channel) {
    const std::vector<double> values = PastAndPresent(args, sequence, channel);
    for (size_t row = 0; row + past < values.size(); ++row) {
      double sum = args.bias == nullptr ? 0.0 : double{args.bias[channel]};
      for (size_t j = 0; j <= past; ++j) {
        sum += double{args.taps[static_cast<int64_t>(j) * args.channels + channel]} *
               values[row + j];
      }
      args.out[(sequence.first_row + static_cast<int64_t>(row)) * args.channels + channel] =
          static_cast<float>(sum / (1.0 + std::exp(-sum)));
    }
    float* state = args.state.data + sequence.to * args.state.stride + channel;
    for (size_t i = 0; i < past; ++i) {
      state[static_cast<int64_t>(i) * args.channels] = static_cast<float>(
          values[values.size() - past + i]);
    }
  }
}

}  // namespace

void CausalConvRef(const CausalConvArgs<float>& args) {
  for (int i = 0; i < args.batch.num_sequences; ++i) {
    if (args.batch.sequences[i].num_tokens > 0) Sequence(args, args.batch.sequences[i]);
  }
}

}  // namespace diffserve
