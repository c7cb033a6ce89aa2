// SPDX-License-Identifier: Apache-2.0
// What the test text of the Mamba operations runs. kernels_test and cuda_test compile the same text
// (tests/kernels/mamba_test.cc), each with its own backends (tests/kernels/mamba_on_cpu.cc,
// tests/cuda/mamba_on_cuda.cc); without a device cuda_test has none.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/gated_memory.h"
#include "kernels/mamba/selective_scan.h"
#include "tests/testing/kernels/kernel_tolerance.h"

namespace diffserve::testing {

// The rows of a case to compute, with the slots that they read and write.
struct StatefulRows {
  std::vector<StateSequence> sequences;

  // Sets the batch's maximum sequence length only if the number of sequences is odd, so that both
  // cases are tested.
  StateBatch Batch() const {
    int num_tokens = 0, max_tokens = 0;
    for (const StateSequence& sequence : sequences) {
      num_tokens += sequence.num_tokens;
      max_tokens = std::max(max_tokens, sequence.num_tokens);
    }
    return {sequences.data(), static_cast<int>(sequences.size()), num_tokens,
            sequences.size() % 2 == 1 ? max_tokens : 0};
  }
};

// Each case owns the memory of its arguments; a backend changes `out` and `state`.
struct ConvCase {
  StatefulRows rows;
  int channels = 0, width = 0;
  int64_t x_stride = 0, slot_stride = 0;
  std::vector<float> x = {}, taps = {}, bias = {}, out = {}, state = {};

  CausalConvArgs<float> Args() {
    return {.batch = rows.Batch(),
            .x = x.data(),
            .x_stride = x_stride,
            .taps = taps.data(),
            .bias = bias.empty() ? nullptr : bias.data(),
            .out = out.data(),
            .state = {state.data(), slot_stride},
            .channels = channels,
            .width = width};
  }
};

struct ScanCase {
  StatefulRows rows;
  int channels = 0, states = 0;
  int64_t bc_stride = 0, z_stride = 0, slot_stride = 0;
  std::vector<float> x = {}, dt = {}, dt_bias = {}, bc = {}, rates = {}, skip = {};
  std::vector<float> z = {};  // empty without a gate
  std::vector<float> out = {}, state = {};

  // b and c are parts of the same rows.
  SelectiveScanArgs<float> Args() {
    return {.batch = rows.Batch(),
            .x = x.data(),
            .dt = dt.data(),
            .dt_bias = dt_bias.data(),
            .b = bc.data(),
            .c = bc.data() + states,
            .bc_stride = bc_stride,
            .rates = rates.data(),
            .skip = skip.data(),
            .z = z.empty() ? nullptr : z.data(),
            .z_stride = z_stride,
            .out = out.data(),
            .state = {state.data(), slot_stride},
            .channels = channels,
            .states = states};
  }
};

// Inputs are of the type of activations.
struct MambaBackend {
  std::string name;
  DType activations;
  std::function<void(ConvCase&)> conv;
  std::function<void(ScanCase&)> scan;
  std::function<std::vector<float>(const GatedMemoryArgs<float>& args, bool in_place)> gate;
  // Calls check under other schedules of the threads.
  std::function<void(const std::function<void()>& check)> on_every_schedule =
      [](const auto& check) { check(); };
};
std::vector<MambaBackend> MambaBackends();

}  // namespace diffserve::testing
