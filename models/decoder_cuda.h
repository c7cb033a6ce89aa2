// The decoder of models/decoder.h on a CUDA device: the whole step runs there, from token ids to
// drawn tokens. Its bodies are in decoder_cuda.cc; a build without the CUDA backend has
// decoder_absent.cc. No CUDA type shows here.
//
// Matrices, activations and KV pages are bfloat16; the residual stream, lambda, norms' sums and
// logits are float32.
#pragma once

#include <memory>
#include <string>

#include "models/checkpoint.h"
#include "models/model.h"
#include "models/weights.h"

namespace diffserve::cuda {

// Whether there are kernels for this model. Errors: kUnimplemented without the backend, else
// kInvalidArgument that names what is found and what is allowed.
Status CheckModel(const std::string& model_dir, const ModelConfig& config, WeightFormat format);

// Of the device's memory that steps within the limits take.
size_t StepBytes(const ModelConfig& config, StepLimits limits);

struct DecoderOptions {
  ModelConfig config;
  int max_positions = 0;
  WeightSizes sizes;
  StepLimits limits;
  bool batch_invariant = false;
};

// Opens the device, uploads the weights, takes the memory of steps within the limits, and runs one
// small step, so that what is free afterwards is KV pages'. Errors: as OpenDevice,
// kResourceExhausted with the numbers, and those of reading.
Result<std::unique_ptr<Model>> LoadDecoder(DecoderOptions options, Checkpoint& checkpoint);

}  // namespace diffserve::cuda
