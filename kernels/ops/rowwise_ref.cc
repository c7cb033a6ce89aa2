// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/ops/rowwise.h"

namespace diffserve {

void RmsNormRef(const RmsNormArgs<float>& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const float* x = args.x + (args.indices == nullptr ? token : args.indices[token]) * args.width;
    float* out = args.out + token * args.width;
    double squares = 0;
    for (int i = 0; i < args.width; ++i)
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double factor = 1.0 / std::sqrt(squares / args.width + static_cast<double>(args.eps));
    for (int i = 0; i < args.width; ++i) {
      out[i] = static_cast<float>(static_cast<double>(x[i]) * factor *
                                  static_cast<double>(args.weight[i]));
    }
  }
}

void LayerNormRef(const LayerNormArgs<float>& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const float* x = args.x + (args.indices == nullptr ? token : args.indices[token]) * args.width;
    float* out = args.out + token * args.width;
    double sum = 0, squares = 0;
    for (int i = 0; i < args.width; ++i) sum += static_cast<double>(x[i]);
    const double mean = sum / args.width;
    for (int i = 0; i < args.width; ++i) {
      const double deviation = static_cast<double>(x[i]) - mean;
      squares += deviation * deviation;
    }
    const double factor = 1.0 / std::sqrt(squares / args.width + static_cast<double>(args.eps));
    for (int i = 0; i < args.width; ++i) {
      out[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * factor *
                                      static_cast<double>(args.weight[i]) +
                                  static_cast<double>(args.bias[i]));
    }
  }
}

void SiluMulRef(const SiluMulArgs<float>& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const float* gate = args.x + token * 2 * args.width;
    const float* up = gate + args.width;
    float* out = args.out + token * args.width;
    for (int i = 0; i < args.width; ++i) {
      const double z = static_cast<double>(gate[i]);
      out[i] = static_cast<float>(z / (1.0 + std::exp(-z)) * static_cast<double>(up[i]));
    }
  }
}

void PolyNormMulRef(const PolyNormMulArgs<float>& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const float* gate = args.x + token * 2 * args.width;
    const float* up = gate + args.width;
    float* out = args.out + token * args.width;
    double factor[3];  // of z^3, z^2 and z
    for (int term = 0; term < 3; ++term) {
      double squares = 0;
      for (int i = 0; i < args.width; ++i)
        squares += std::pow(static_cast<double>(gate[i]), 2 * (3 - term));
      factor[term] = static_cast<double>(args.weight[term]) /
                     std::sqrt(squares / args.width + static_cast<double>(args.eps));
    }
    for (int i = 0; i < args.width; ++i) {
      const double z = static_cast<double>(gate[i]);
      const double value = factor[0] * z * z * z + factor[1] * z * z + factor[2] * z +
                           static_cast<double>(args.bias);
      out[i] = static_cast<float>(value * static_cast<double>(up[i]));
    }
  }
}

void SigmoidRef(const SigmoidArgs& args) {
  for (int64_t i = 0; i < args.count; ++i)
    args.x[i] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(args.x[i]))));
}

}  // namespace diffserve
