// SPDX-License-Identifier: Apache-2.0
#include "server/app/help_text.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/cuda/device.h"
#include "server/app/option_table.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

// "all that run a model, convert" instead of their names.
std::string ShortCommandsText(unsigned commands) {
  if ((commands & kAllCommands) != kAllCommands) return CommandsText(commands);
  const std::string others = CommandsText(commands & ~kAllCommands);
  return "all that run a model" + (others.empty() ? "" : ", " + others);
}

std::string Entry(std::string left, std::string_view help) {
  constexpr size_t kColumn = 32;
  if (left.size() >= kColumn) left += "\n" + std::string(kColumn, ' ');
  left.resize(std::max(left.size(), kColumn), ' ');
  return left.append(help);
}

// "  --port N    HTTP port; 0 to 65535 (default 8000)"
std::string FlagEntry(const FlagSpec& flag) {
  const std::string value(flag.value_name);
  std::string text = Entry("  " + std::string(flag.name) + (value.empty() ? "" : " " + value),
                           flag.help);
  const bool free_text = flag.allowed.empty() && (flag.Is<std::string>() || flag.Is<MemorySize>());
  if (!flag.Is<bool>() && !free_text) text += "; " + AllowedText(flag);
  const std::string fallback = DefaultText(flag);
  return fallback.empty() ? text : text + " (default " + fallback + ")";
}

// The folder of the documents: that of an installed program, or of the tree that built it.
std::string DocumentsLine() {
  std::error_code error;
  const auto program = std::filesystem::canonical("/proc/self/exe", error);
  for (const char* const place : {"../share/doc/diffserve/docs", "../../../docs"}) {
    const auto folder = (program.parent_path() / place).lexically_normal();
    if (!error && std::filesystem::exists(folder / "cli.md", error))
      return "\nDocuments: " + folder.string() + "\n";
  }
  return "\nDocuments: none came with " + program.string() + "\n";
}

}  // namespace

std::string HelpText(std::string_view command) {
  std::ostringstream out;
  out << "diffserve: an inference server for Diff Transformer models\n\n";
  unsigned chosen = 0;
  for (unsigned bit = 1; const CommandSpec& row : CommandTable()) {
    if (command.empty() || row.name == command) {
      chosen |= bit;
      out << Entry("  diffserve " + std::string(row.name) + ArgumentsText(bit), row.help) << "\n";
    }
    bit *= 2;
  }
  out << "\n  --help, --version             after a command: of its flags only\n"
         "  --config FILE                 JSON object of flag names and "
         "values (and model_dir)\n  Each flag has an environment variable: DIFFSERVE_MAX_MODEL_LEN "
         "for --max-model-len. Flags win over\n  variables, variables over the file. A switch is "
         "turned off with --no-NAME, or NAME=false as a variable.\n  Exit codes: 0 success, 1 "
         "failure, 2 wrong usage, 3 GPU lost.\n";
  std::string_view group;
  for (const FlagSpec& flag : FlagTable()) {
    if ((flag.commands & chosen) == 0) continue;
    if (flag.group != group) out << "\n" << (group = flag.group) << "\n";
    out << FlagEntry(flag);
    if (command.empty()) out << " [" << ShortCommandsText(flag.commands) << "]";
    out << "\n";
  }
  out << DocumentsLine();
  return out.str();
}

std::string VersionText() {
  std::string levels;
  for (CpuIsa isa : kCpuIsas) levels += (levels.empty() ? "" : ", ") + std::string(NameOf(isa));
  std::ostringstream out;
  out << "version: " << BuildVersion() << "\ncommit: " << BuildCommit() << "\n"
      << DIFFSERVE_COMPILERS << "backends: cpu" << (cuda::IsCompiledIn() ? ", cuda" : "")
      << "\ncpu levels: " << levels << "\ncpu level: " << NameOf(SupportedCpuIsas().back()) << "\n";
  return out.str();
}

}  // namespace diffserve
