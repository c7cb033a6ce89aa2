// What a step computes between its tokens and their final states, the same for every backend: one
// row a token, row-major. `Memory` is std::vector<float> on the CPU and device memory on a device,
// where everything is of the activations' type but for what is float32 by name.
#pragma once

#include <array>

#include "models/model_config.h"

namespace diffserve {

template <typename Memory>
struct Activations {
  Memory hidden;     // [tokens, hidden_size], float32: the residual stream
  Memory normed;     // [tokens, hidden_size]
  Memory qkv;        // [tokens, q_width + k_width + v_width]
  Memory q;          // [tokens, q_width], rotated
  Memory lambda;     // [tokens, num_q1_heads], float32: LambdaKind::kPerTokenHead
  Memory attention;  // [tokens, out_width]
  Memory gate_up;    // [tokens, 2 * intermediate_size]
  Memory mlp;        // [tokens, intermediate_size]

  struct Sized {
    Memory Activations::* memory;
    int width;
    bool is_float32 = false;
  };
  static std::array<Sized, 8> PerToken(const ModelConfig& config) {
    const DiffSpec& spec = config.attention;
    const bool has_lambdas = spec.lambda_kind == LambdaKind::kPerTokenHead;
    return {{{&Activations::hidden, config.hidden_size, /*is_float32=*/true},
             {&Activations::normed, config.hidden_size},
             {&Activations::qkv, spec.q_width() + spec.k_width() + spec.v_width()},
             {&Activations::q, spec.q_width()},
             {&Activations::lambda, has_lambdas ? spec.num_q1_heads : 0, /*is_float32=*/true},
             {&Activations::attention, spec.out_width()},
             {&Activations::gate_up, 2 * config.intermediate_size},
             {&Activations::mlp, config.intermediate_size}}};
  }
};

}  // namespace diffserve
