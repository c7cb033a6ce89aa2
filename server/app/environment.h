// SPDX-License-Identifier: Apache-2.0
// Environment variables as flags: DIFFSERVE_MAX_MODEL_LEN has the value of --max-model-len. Flags
// on the command line win over variables, variables over --config FILE.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/app/option_table.h"

namespace diffserve {

std::string VariableOf(std::string_view flag);  // "--port": "DIFFSERVE_PORT"

// The value of a variable in `environment` ("NAME=value" each); empty if it is not set.
std::string_view ValueOfVariable(std::span<const std::string> environment, std::string_view name);

// Applies the variables of this command's flags. Those of other commands are skipped, empty ones
// are as if they were not set, and so are the addresses that Kubernetes sets for a Service called
// diffserve (DIFFSERVE_PORT=tcp://10.0.0.1:8000). The values of a list of texts are separated by
// white space. A variable that is nearly the name of a flag's goes to options.warnings,
// and what was applied is appended to `applied`.
// Error: kInvalidArgument naming the variable, the value and what is allowed.
Status ApplyEnvironment(std::span<const std::string> environment, unsigned command,
                        Options& options, std::vector<Assignment>& applied);

}  // namespace diffserve
