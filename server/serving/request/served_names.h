// SPDX-License-Identifier: Apache-2.0
// ServedNames: the names by which requests may call the served model. UnknownModel: the error for
// a model that is not served, which lists those that are.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

// kNotFound. `param` names the member that held the name. At most 20 served names are listed.
Status UnknownModel(std::string_view found, std::span<const std::string> served,
                    std::string param = "model");

struct ServedNames {
  std::string name;                  // the name in answers
  std::vector<std::string> further;  // requests may use these too
  std::vector<std::string> All() const;
  bool Has(std::string_view name) const;
  // An empty name means the model that is served. Error: UnknownModel.
  Status Check(std::string_view name) const;
};

}  // namespace diffserve
