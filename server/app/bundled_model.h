// SPDX-License-Identifier: Apache-2.0
// The model that packages install beside the program, which goes by the name "demo".
#pragma once

#include <string>

namespace diffserve {

// For "demo", its directory, PREFIX/share/diffserve/models/demo of `program` PREFIX/bin/NAME. Any
// other name, a directory of that name, or a program without the model: `model_dir` as it is.
std::string WithBundledModel(const std::string& model_dir,
                             const std::string& program = "/proc/self/exe");

}  // namespace diffserve
