// SPDX-License-Identifier: Apache-2.0
// Buffers between a step's tokens and their final states, the same for every backend: row-major,
// one row per token. `Memory` is std::vector<float> on the CPU and device memory on a device. There
// everything has the activations' type unless marked float32.
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
  // For Mamba layers and gated memory units; `inner` is MambaSpec's.
  Memory projected;  // [tokens, 2 * inner]: x and z; a gated memory unit's gate: [tokens, inner]
  Memory convolved;  // [tokens, inner]
  Memory selection;  // [tokens, dt_rank + 2 * state_dim]: dt before its projection, B, C
  Memory dt;         // [tokens, inner]
  Memory scanned;    // [tokens, inner], the input of out_proj
  Memory memory;     // [tokens, inner], from the layer that makes it

  struct Sized {
    Memory Activations::* memory;
    int width;
    bool is_float32 = false;
  };
  static std::array<Sized, 14> PerToken(const ModelConfig& config) {
    const DiffSpec& spec = config.attention;
    const MambaSpec& mamba = config.mamba;
    const bool has_lambdas = spec.lambda_kind == LambdaKind::kPerTokenHead;
    return {{{&Activations::hidden, config.hidden_size, /*is_float32=*/true},
             {&Activations::normed, config.hidden_size},
             {&Activations::qkv, spec.q_width() + spec.k_width() + spec.v_width()},
             {&Activations::q, spec.q_width()},
             {&Activations::lambda, has_lambdas ? spec.num_q1_heads : 0, /*is_float32=*/true},
             {&Activations::attention, spec.out_width()},
             {&Activations::gate_up, 2 * config.intermediate_size},
             {&Activations::mlp, config.intermediate_size},
             {&Activations::projected, 2 * mamba.inner},
             {&Activations::convolved, mamba.inner},
             {&Activations::selection, mamba.dt_rank + 2 * mamba.state_dim},
             {&Activations::dt, mamba.inner},
             {&Activations::scanned, mamba.inner},
             {&Activations::memory, mamba.inner}}};
  }
};

}  // namespace diffserve
