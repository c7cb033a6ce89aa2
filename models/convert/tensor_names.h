// SPDX-License-Identifier: Apache-2.0
// Maps source tensors to tensors of the converted checkpoint: one table of names (tensor_names.cc),
// and the plan that it gives for one source.
#pragma once

#include <string>
#include <vector>

#include "models/convert/source_directory.h"
#include "models/model_config.h"

namespace diffserve {

struct PlannedTensor {
  std::string name;  // in the converted checkpoint
  std::vector<int64_t> shape;
  const SourceTensor* source = nullptr;
  int64_t first_row = 0;  // in the source: a fused tensor gives its rows to several
};

struct TensorPlan {
  // In model order: embedding, layers, final norm, output matrix.
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> dropped;  // source tensors that no model needs
  int num_renamed = 0;               // source tensors with another name
  int num_divided = 0;               // fused source tensors
};

// Families of microsoft/unilm accept the names in use around that code, fused or not. The others
// accept only transformers' names: with a different name the order of rows is different too.
// (Meta's wq and transformers' q_proj hold the same weights in two orders.) Refused are a tensor
// without a place in the model, two tensors for one place, and a fused tensor whose rows do not fit
// the config. `where` names the source in errors. `sources` must outlive the plan.
Result<TensorPlan> PlanTensors(const ModelConfig& config, const std::vector<SourceTensor>& sources,
                               const std::string& where);

}  // namespace diffserve
