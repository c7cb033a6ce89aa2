// SPDX-License-Identifier: Apache-2.0
// UnknownModel: the error for a model that is not served, which lists those that are.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

// kNotFound. `param` names the member that held the name. At most 20 served names are listed.
Status UnknownModel(std::string_view found, std::span<const std::string> served,
                    std::string param = "model");

}  // namespace diffserve
