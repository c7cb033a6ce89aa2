// SPDX-License-Identifier: Apache-2.0
// The table of all flags, used by the parser, the help text and the tests of options.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/app/options.h"
#include "server/serving/request/sampling_numbers.h"

namespace diffserve {

// Commands that a flag applies to, as bits. kAllCommands: those that run a model or report how they
// would run it. The others do neither.
enum CommandBit : unsigned {
  kServe = 1,
  kLogits = 2,
  kGenerate = 4,
  kChat = 8,
  kBench = 16,
  kInspect = 32,
  kConvert = 64,
  kProbe = 128,
  kCompletion = 256,
  kModels = 512,
  kRunBatch = 1024,
  kDevices = 2048,
  kAllCommands = kServe | kLogits | kGenerate | kChat | kBench | kInspect | kRunBatch
};

struct CommandSpec {
  std::string_view name;
  std::string_view help;
};

// One row of the table. Members that most rows leave unchanged have setter functions.
struct FlagSpec {
  // The destination of the value. A setter gets a value that is in `allowed`.
  template <typename T>
  using Place = T& (*)(Options& options);
  using Setter = void (*)(Options& options, std::string_view value);
  using Target = std::variant<Place<bool>, Place<int>, Place<int64_t>, Place<uint64_t>,
                              Place<float>, Place<std::string>, Place<std::vector<int>>,
                              Place<std::vector<std::string>>, Place<MemorySize>, Setter>;

  // `usage`: the name and, except for switches, the name of the value: "--port N".
  FlagSpec(std::string_view usage, unsigned commands, Target target, std::string_view help);
  // A number, or each one of a list; of a MemorySize, its bytes.
  FlagSpec& In(double low, double high, int step = 1) {
    min = low, max = high, multiple_of = step;
    return *this;
  }
  FlagSpec& In(const NumberRange& range) { return In(range.low, range.high); }
  FlagSpec& OneOf(std::vector<std::string_view> values) {
    return allowed = std::move(values), *this;
  }
  // Choices that may have a number after them: "cuda:1".
  FlagSpec& Numbered(std::vector<std::string_view> values) {
    return numbered = std::move(values), *this;
  }
  // Known values that this build does not offer.
  FlagSpec& Refusing(std::vector<std::string_view> values, std::string_view why) {
    return refused = std::move(values), refusal = why, *this;
  }
  FlagSpec& OrShare() { return is_share_allowed = true, *this; }  // a MemorySize may be a share
  // The default's text, if the value itself does not show it.
  FlagSpec& Default(std::string_view text) { return default_text = text, *this; }

  template <typename T>
  bool Is() const {
    return std::holds_alternative<Place<T>>(target);
  }

  std::string_view group;       // heading in the help text
  std::string_view name;        // with its dashes
  std::string_view value_name;  // empty for a switch
  unsigned commands;            // CommandBit
  Target target;
  std::string_view help;
  double min = 0, max = 0;
  int multiple_of = 1;
  std::vector<std::string_view> allowed;  // choices; empty: any text
  std::vector<std::string_view> numbered;
  std::vector<std::string_view> refused;
  std::string_view refusal;  // why `refused` is
  bool is_share_allowed = false;
  std::string_view default_text;
};

// The member of Options at the end of a path of members.
template <auto... Path>
FlagSpec::Target At() {
  return +[](Options& options) -> auto& { return (options.*....*Path); };
}

// The rows of the table for how the texts of conversations are made and read.
std::vector<FlagSpec> ConversationFlags();

// The group of flags that only `serve --models` has.
inline constexpr std::string_view kModelsGroup = "Several models";

std::span<const FlagSpec> FlagTable();
std::span<const CommandSpec> CommandTable();  // in the order of CommandBit

// The positional arguments, in order. `value_name` is the argument's name, `name` is its key in
// --config FILE. All are required, except that chat needs none with --url.
std::span<const FlagSpec> ArgumentTable();

// The separator between the values of a flag that takes several texts, however they were given.
inline constexpr char kTextSeparator = '\n';

// A flag and its value as ApplyFlag reads it.
struct Assignment {
  const FlagSpec* flag;
  std::string value;
};

// Checks `value` and stores it. The error names the flag, the value and what is allowed.
Status ApplyFlag(const FlagSpec& flag, std::string_view value, Options& options);

// "0 to 65535", "auto, cpu", "a number"...
std::string AllowedText(const FlagSpec& flag);
std::string DefaultText(const FlagSpec& flag);

// The names of commands: "serve, chat".
std::string CommandsText(unsigned commands);
std::vector<const FlagSpec*> ArgumentsOf(unsigned command);
std::string ArgumentsText(unsigned command);  // " MODEL_DIR NEW_DIR"

// "a, b, c"
std::string Joined(std::span<const std::string_view> names);

}  // namespace diffserve
