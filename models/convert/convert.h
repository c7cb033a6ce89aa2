// `diffserve convert`: a checkpoint directory, an original state dict of microsoft/unilm beside a
// config.json, or a run directory of guygrigsby/diff-mlx becomes a clean directory, which has been
// checked by loading it. The source is trusted in nothing; the result appears whole or not at all.
// Tensors are copied in pieces, so that memory does not depend on their sizes until the result is
// loaded; what is packed on the way is in memory a linear layer at a time.
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
  // lambda), as a model that is served in bfloat16 does: its logits have the same bits before and
  // after.
  std::optional<DType> dtype;
  // The result is packed (packed_format.h), for the levels that read the panels of `isa`. `dtype`
  // then is what the source would be served in, and weights are quantised as they are stored.
  std::optional<WeightFormat> quantization;
  uint64_t max_shard_bytes = 5'000'000'000;
  CpuIsa isa = CpuIsa::kAvx2;         // of the load that checks the result too
  std::function<bool()> interrupted;  // asked between pieces; true ends the conversion with an
                                      // error
  // Of the conversion, and of that load.
  LoadProgress::Report report = [](const char*, uint64_t, uint64_t) {};
  LoadProgress::Pace pace;
};

struct ConvertReport {
  std::string family;
  size_t num_tensors = 0;
  uint64_t num_bytes = 0;  // of the tensors
  size_t num_files = 0;    // that hold them
  int num_renamed = 0;     // tensors of the source with another name than in the result
  int num_divided = 0;     // fused tensors of the source
  int64_t num_parameters = 0;
  std::string packed_for;                // levels that read the result; empty: it is not packed
  std::vector<std::string> dropped;      // tensors of the source that the model does not need
  std::vector<std::string> left_behind;  // files of the source that are not copied
};

// Errors are one line that names the file or tensor; param is "max_shard_bytes" where that is at
// fault. Nothing has been written then.
Result<ConvertReport> ConvertCheckpoint(const ConvertOptions& options, ThreadPool& pool);

}  // namespace diffserve
