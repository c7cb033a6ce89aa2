// SPDX-License-Identifier: Apache-2.0
// The texts of --help and --version, made from the tables of commands and flags.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

// `command`: a name of CommandTable(), whose flags are printed; empty: all commands and flags. The
// last line says where the documents are.
std::string HelpText(std::string_view command = {});
std::string VersionText();  // lines "key: value": version, commit, compilers, backends, CPU levels
                            // and the one in use

}  // namespace diffserve
