// The table of every flag: what the parser, the help text and the tests of options.h work from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/options.h"

namespace diffserve {

// Commands that a flag applies to, as bits. kAllCommands: those that run a model or tell how they
// would, which convert and probe do not.
enum CommandBit : unsigned {
  kServe = 1,
  kLogits = 2,
  kGenerate = 4,
  kBench = 8,
  kInspect = 16,
  kAllCommands = 31,
  kConvert = 32,
  kProbe = 64
};

// What a command takes without a flag, in this order; none may be missing. In --config FILE its key
// is the name in lower case.
struct ArgumentSpec {
  std::string_view name;  // MODEL_DIR
  std::string Options::* target;
};

struct CommandSpec {
  std::string_view name;
  std::vector<ArgumentSpec> arguments;
  std::string_view help;
};

struct FlagSpec {
  // Where the value goes. A setter gets a value that was found among `allowed`.
  using Setter = void (*)(Options& options, std::string_view value);
  using Target =
      std::variant<bool Options::*, int Options::*, int64_t Options::*, uint64_t Options::*,
                   float Options::*, std::string Options::*, std::vector<int> Options::*, Setter>;

  std::string_view group;       // heading in the help text
  std::string_view name;        // with its dashes
  std::string_view value_name;  // in the help text; empty for a switch
  unsigned commands;            // CommandBit
  Target target;
  std::string_view help;
  double min = 0, max = 0;                     // numbers, and each number of a list
  std::vector<std::string_view> allowed = {};  // choices; empty: any text
  std::vector<std::string_view> refused = {};  // known values that this build does not offer,
  std::string_view refusal = {};               // and why
  std::string_view default_text = {};          // where the member's own default does not tell
  int multiple_of = 1;
};

std::span<const FlagSpec> FlagTable();
std::span<const CommandSpec> CommandTable();  // in the order of CommandBit

// Checks `value` and stores it. The error names the flag, the value and what is allowed.
Status ApplyFlag(const FlagSpec& flag, std::string_view value, Options& options);

// "0..65535", "auto, cpu", "a number"...
std::string AllowedText(const FlagSpec& flag);
std::string DefaultText(const FlagSpec& flag);

}  // namespace diffserve
