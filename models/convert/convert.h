// SPDX-License-Identifier: Apache-2.0
// `diffserve convert`: turns a source into a clean directory, which is checked by loading it. A
// source is a checkpoint directory, an original state dict of microsoft/unilm beside a config.json,
// or a run directory of guygrigsby/diff-mlx. The source is not trusted; the result appears whole or
// not at all. Tensors are copied in pieces, so memory does not depend on their sizes until the
// result is loaded. When packing, one linear layer at a time is in memory.
//
// Thread safety: one thread, which runs the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/weight_format.h"
#include "models/load_progress.h"

namespace diffserve {

struct ConvertOptions {
  std::string source_dir;
  std::string output_dir;  // new, or empty
  // nullopt: as stored. kBFloat16 rounds matrices and keeps the values of vectors (norms, biases,
  // lambda), as serving in bfloat16 does. So the model's logits have the same bits before and
  // after.
  std::optional<DType> dtype;
  // Packs the result (packed_format.h), for the levels that read the panels of `isa`. `dtype` is
  // then the type in which the source would be served, and weights are quantised as they are
  // stored.
  std::optional<WeightFormat> quantization;
  uint64_t max_shard_bytes = 5'000'000'000;
  CpuIsa isa = kBaseCpuIsa;  // also for the load that checks the result
  // Called between pieces; true ends the conversion with an error.
  std::function<bool()> interrupted;
  // Reports progress of the conversion and of that load.
  LoadProgress::Report report = [](const char*, uint64_t, uint64_t) {};
  LoadProgress::Pace pace;
};

struct ConvertReport {
  std::string family;
  size_t num_tensors = 0;
  uint64_t num_bytes = 0;  // of the tensors
  size_t num_files = 0;    // files that hold the tensors
  int num_renamed = 0;     // source tensors with another name than in the result
  int num_divided = 0;     // fused source tensors that were divided
  int64_t num_parameters = 0;
  std::string packed_for;                // levels that read the result; empty: it is not packed
  std::vector<std::string> dropped;      // source tensors that the model does not need
  std::vector<std::string> left_behind;  // source files that are not copied
};

// Errors are one line with the file or tensor; param is "max_shard_bytes" if that is at fault.
// After an error nothing has been written.
Result<ConvertReport> ConvertCheckpoint(const ConvertOptions& options, ThreadPool& pool);

}  // namespace diffserve
