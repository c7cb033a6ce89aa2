// SPDX-License-Identifier: Apache-2.0
#include "server/app/options.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/cuda/device.h"
#include "kernels/base/regular_file.h"
#include "server/app/nearest_name.h"
#include "server/app/option_table.h"
#include "server/http/cross_origin.h"
#include "server/http/url.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

constexpr size_t kMaxConfigFileBytes = 1 << 20;

std::string CommandsText(unsigned commands) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < CommandTable().size(); ++i) {
    if ((commands & (1u << i)) != 0) names.push_back(CommandTable()[i].name);
  }
  return Joined(names);
}

// The same in few words: "all but convert, probe".
std::string ShortCommandsText(unsigned commands) {
  const unsigned others = ((1u << CommandTable().size()) - 1) & ~commands;
  return std::popcount(others) <= 2 ? "all but " + CommandsText(others) : CommandsText(commands);
}

// " MODEL_DIR NEW_DIR"
std::string ArgumentsText(const CommandSpec& command) {
  std::string text;
  for (const ArgumentSpec& argument : command.arguments) text += " " + std::string(argument.name);
  return text;
}

// The flag of this name for this command; nullptr if there is none. `elsewhere` gets the commands
// that have it.
const FlagSpec* FindFlag(std::string_view name, unsigned command, unsigned& elsewhere) {
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.name != name) continue;
    if ((flag.commands & command) != 0) return &flag;
    elsewhere |= flag.commands;
  }
  return nullptr;
}

// For "--no-FLAG" of a switch: the switch's name; else empty.
std::string WithoutNo(std::string_view name) {
  return name.starts_with("--no-") ? "--" + std::string(name.substr(5)) : std::string();
}

// ": did you mean --port?", or nothing.
std::string Suggestion(std::string_view written, std::span<const std::string_view> names) {
  const std::optional<std::string_view> nearest = NearestName(written, names);
  return nearest ? ": did you mean " + std::string(*nearest) + "?" : "";
}

// Every name that is valid in place of a flag of these commands.
std::vector<std::string> FlagNames(unsigned commands) {
  std::vector<std::string> names = {"--help", "--version", "--config"};
  for (const FlagSpec& flag : FlagTable()) {
    if ((flag.commands & commands) == 0) continue;
    names.emplace_back(flag.name);
    if (flag.Is<bool>()) names.push_back("--no-" + std::string(flag.name.substr(2)));
  }
  return names;
}

Status UnknownFlag(const std::string& name, std::span<const std::string> allowed) {
  const std::vector<std::string_view> names(allowed.begin(), allowed.end());
  const std::string suggestion = Suggestion(name, names);
  return InvalidArgument(name + " is not a flag" + (suggestion.empty() ? ";" : suggestion) +
                             " diffserve --help lists all flags",
                         name);
}

Status MisplacedFlag(const std::string& name, unsigned elsewhere, std::string_view command) {
  return InvalidArgument(name + " does not apply to " + std::string(command) +
                             "; it belongs to: " + CommandsText(elsewhere),
                         name);
}

// Walks argv after the command: flags are collected with their values, in order.
struct Assignment {
  const FlagSpec* flag;
  std::string value;
};

class ArgumentReader {
 public:
  ArgumentReader(const std::vector<std::string>& args, const CommandSpec& command, unsigned bit)
      : args_(args), command_(command), bit_(bit) {}

  Status Read() {
    for (next_ = 1; next_ < args_.size();) {
      const std::string& arg = args_[next_++];
      if (!arg.starts_with("--")) {
        if (arg.starts_with('-') && arg.size() > 1) return UnknownFlag(arg, FlagNames(bit_));
        if (arguments.size() == command_.arguments.size()) {
          const std::string last(command_.arguments.back().name);
          return InvalidArgument("found \"" + arg + "\" after " + last + " \"" + arguments.back() +
                                     "\"; allowed: one" + ArgumentsText(command_),
                                 last);
        }
        arguments.push_back(arg);
      } else {
        DS_RETURN_IF_ERROR(ReadFlag(arg));
      }
    }
    return {};
  }

  std::vector<Assignment> assignments;
  std::vector<std::string> arguments;  // those without a flag
  std::string config_file;
  bool help = false, version = false;

 private:
  Status ReadFlag(const std::string& arg) {
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = arg.substr(equals + 1);
    if (name == "--help") return help = true, Status();
    if (name == "--version") return version = true, Status();
    if (name == "--config") return TakeValue(name, value, config_file);

    unsigned elsewhere = 0;
    if (const FlagSpec* flag = FindFlag(name, bit_, elsewhere)) {
      std::string text = "true";
      if (flag->Is<bool>()) {
        text = value.value_or(text);
      } else {
        DS_RETURN_IF_ERROR(TakeValue(name, value, text));
      }
      const bool adds = flag->Is<std::vector<std::string>>();
      const auto before = std::ranges::find(assignments, flag, &Assignment::flag);
      if (adds && before != assignments.end()) {
        before->value += kTextSeparator + text;
      } else {
        assignments.push_back({flag, std::move(text)});
      }
      if (adds) TakeFurtherValues(*std::ranges::find(assignments, flag, &Assignment::flag));
      return {};
    }
    const FlagSpec* positive = FindFlag(WithoutNo(name), bit_, elsewhere);
    if (positive == nullptr || !positive->Is<bool>()) {
      return elsewhere != 0 ? MisplacedFlag(name, elsewhere, args_[0])
                            : UnknownFlag(name, FlagNames(bit_));
    }
    if (value) return InvalidArgument(name + " is \"" + *value + "\", allowed: no value", name);
    assignments.push_back({positive, "false"});
    return {};
  }

  // A surplus argument is another value of the flag before it.
  void TakeFurtherValues(Assignment& assignment) {
    while (arguments.size() == command_.arguments.size() && next_ < args_.size() &&
           !args_[next_].starts_with('-')) {
      assignment.value += kTextSeparator + args_[next_++];
    }
  }

  Status TakeValue(const std::string& name, const std::optional<std::string>& inline_value,
                   std::string& out) {
    if (inline_value) {
      out = *inline_value;
    } else if (next_ < args_.size() && !args_[next_].starts_with("--")) {
      out = args_[next_++];
    } else {
      return InvalidArgument(name + " needs a value", name);
    }
    return {};
  }

  const std::vector<std::string>& args_;
  const CommandSpec& command_;
  const unsigned bit_;
  size_t next_ = 0;
};

// A JSON value as text for ApplyFlag; nullopt if no flag accepts such a value.
std::optional<std::string> ValueText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  if (!value.is_array() || value.empty()) return std::nullopt;
  const bool of_texts = value.front().is_string();
  std::string text;
  for (const nlohmann::json& item : value) {
    if (of_texts ? !item.is_string() : !item.is_number()) return std::nullopt;
    if (&item != &value.front()) text += of_texts ? kTextSeparator : ',';
    text += of_texts ? item.get<std::string>() : item.dump();
  }
  return text;
}

// A file's key for the argument, in a flag's form: "--model-dir".
std::string KeyOf(const ArgumentSpec& argument) {
  std::string key = "--" + std::string(argument.name);
  for (char& c : key)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

// The argument that a key of the file names, such as "model_dir"; nullptr if there is none. `name`
// has a flag's form.
const ArgumentSpec* FindArgument(std::string_view name) {
  for (const CommandSpec& command : CommandTable()) {
    for (const ArgumentSpec& argument : command.arguments) {
      if (KeyOf(argument) == name) return &argument;
    }
  }
  return nullptr;
}

Status UnknownKey(const std::string& name) {
  std::vector<std::string> names;
  for (const FlagSpec& flag : FlagTable()) names.emplace_back(flag.name);
  for (const CommandSpec& command : CommandTable()) {
    for (const ArgumentSpec& argument : command.arguments) names.push_back(KeyOf(argument));
  }
  return UnknownFlag(name, names);
}

// Applies the file's keys. Keys of other commands are skipped, so that one file can serve several
// commands.
Status ApplyConfigFile(const std::string& path, unsigned command, Options& options) {
  const Result<std::string> text = ReadRegularFile(path, kMaxConfigFileBytes);
  if (!text.ok()) return InvalidArgument("--config " + text.status().message(), "--config");
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return !(too_deep |= depth > 2);
  };
  const nlohmann::json root = nlohmann::json::parse(*text, limit_depth, /*allow_exceptions=*/false);
  if (too_deep || !root.is_object())
    return InvalidArgument("--config " + path + ": expected one flat JSON object", "--config");

  for (const auto& [key, value] : root.items()) {
    std::string name = "--" + key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (const ArgumentSpec* argument = FindArgument(name)) {
      if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
        return InvalidArgument(
            "--config " + path + ": " + key + " is " + value.dump() + ", allowed: text, not empty",
            name);
      }
      argument->place(options) = value.get<std::string>();
      continue;
    }
    unsigned elsewhere = 0;
    const FlagSpec* flag = FindFlag(name, command, elsewhere);
    if (flag == nullptr && elsewhere != 0) continue;
    if (flag == nullptr)
      return InvalidArgument("--config " + path + ": " + UnknownKey(name).message(), name);
    const std::optional<std::string> as_text = ValueText(value);
    const Status status = as_text ? ApplyFlag(*flag, *as_text, options)
                                  : InvalidArgument(name + " is a JSON " + value.type_name() +
                                                        ", allowed: " + AllowedText(*flag),
                                                    name);
    if (!status.ok()) return InvalidArgument("--config " + path + ": " + status.message(), name);
  }
  return {};
}

Status CheckChatUrl(const Options& options) {
  const ChatOptions& chat = options.chat;
  if (chat.url.empty()) {
    if (chat.api_key_file.empty()) return {};
    return InvalidArgument("--api-key-file needs --url: a local model needs no key",
                           "--api-key-file");
  }
  if (!options.session.model_dir.empty()) {
    return InvalidArgument("found MODEL_DIR \"" + options.session.model_dir + "\" and --url \"" +
                               chat.url + "\", allowed: one of them",
                           "--url");
  }
  return ParseServerUrl(chat.url).status();
}

Status CheckTogether(const CommandSpec& command, Options& options) {
  if (options.command == "chat") DS_RETURN_IF_ERROR(CheckChatUrl(options));
  DS_RETURN_IF_ERROR(CrossOrigin::Parse(options.serve.cors_origins).status());
  for (const ArgumentSpec& argument : command.arguments) {
    if (!argument.place(options).empty() || !options.chat.url.empty()) continue;
    const std::string name(argument.name);
    return InvalidArgument(
        name + " is missing: diffserve " + options.command + ArgumentsText(command), name);
  }
  if (options.command == "probe") return ParseHttpUrl(options.probe.url).status();
  const int prompts = !options.prompt.text.empty() + !options.prompt.tokens.empty() +
                      !options.prompt.tokens_file.empty();
  if (options.command == "generate" && prompts != 1) {
    return InvalidArgument(
        "found " + std::to_string(prompts) +
            " prompts, allowed: exactly one of --prompt, --tokens, --tokens-file",
        "--prompt");
  }
  if (options.command == "generate" && options.prompt.chat && options.prompt.text.empty())
    return InvalidArgument("--chat needs --prompt: token ids are used as they are", "--chat");
  if (options.command == "logits") {
    if (prompts != 1) {
      return InvalidArgument("found " + std::to_string(prompts) +
                                 " prompts, allowed: exactly one of --tokens, --tokens-file",
                             "--tokens");
    }
    if (options.logits.output.empty())
      return InvalidArgument("--output is missing: the .npy file to write", "--output");
  }
  return {};
}

Status UnknownCommand(const std::string& written) {
  std::string found = "a command is missing";
  if (!written.empty()) {
    std::vector<std::string_view> names;
    for (const CommandSpec& command : CommandTable()) names.push_back(command.name);
    found = "\"" + written + "\" is not a command" + Suggestion(written, names);
  }
  return InvalidArgument(found + (found.ends_with('?') ? " Allowed: " : ", allowed: ") +
                             CommandsText(~0u) + "; see diffserve --help",
                         "command");
}

// Flags that configure a model in this process have no effect on a remote server.
Status CheckFlagsOfServer(const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    const FlagSpec& flag = *assignment.flag;
    if ((flag.commands & kServe) == 0 || flag.name == "--seed" || flag.name == "--log-level")
      continue;
    return InvalidArgument(std::string(flag.name) + " does not apply to chat --url; it is a " +
                               "setting of the server",
                           std::string(flag.name));
  }
  return {};
}

}  // namespace

Result<Options> ParseOptions(const std::vector<std::string>& args) {
  Options options;
  const auto commands = CommandTable();
  const auto command = std::find_if(commands.begin(), commands.end(), [&](const CommandSpec& c) {
    return !args.empty() && c.name == args[0];
  });
  if (command == commands.end()) {
    for (const std::string& arg : args) {
      if (arg == "--help" || arg == "-h" || arg == "help") return options.command = "help", options;
      if (arg == "--version" || arg == "version") return options.command = "version", options;
    }
    return UnknownCommand(args.empty() ? "" : args[0]);
  }
  options.command = command->name;
  const unsigned bit = 1u << (command - commands.begin());
  ArgumentReader reader(args, *command, bit);
  DS_RETURN_IF_ERROR(reader.Read());
  if (reader.help || reader.version)
    return options.command = reader.help ? "help" : "version", options;
  if (!reader.config_file.empty())
    DS_RETURN_IF_ERROR(ApplyConfigFile(reader.config_file, bit, options));
  for (size_t i = 0; i < reader.arguments.size(); ++i)
    command->arguments[i].place(options) = reader.arguments[i];
  for (const Assignment& assignment : reader.assignments)
    DS_RETURN_IF_ERROR(ApplyFlag(*assignment.flag, assignment.value, options));
  DS_RETURN_IF_ERROR(CheckTogether(*command, options));
  if (options.command == "chat" && !options.chat.url.empty())
    DS_RETURN_IF_ERROR(CheckFlagsOfServer(reader.assignments));
  return options;
}

Result<MemorySize> ParseMemorySize(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number,
                                            std::chars_format::fixed);
  std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  const Status bad = InvalidArgument(
      "\"" + std::string(text) +
      "\" is not a size, allowed: bytes with suffix (2G, 512MiB) or a share (0.3)");
  if (error != std::errc() || !std::isfinite(number) || number <= 0) return bad;
  MemorySize size{std::string(text)};
  if (suffix.empty() && number <= 1) return size.share = number, size;
  // K, KB or KiB, and so on.
  constexpr std::string_view kUnits = "KMGT";
  const double factor = suffix.ends_with("iB") ? 1024 : 1000;
  if (!suffix.empty()) {
    const size_t unit = kUnits.find(suffix.front());
    suffix.remove_prefix(1);
    if (unit == std::string_view::npos || (suffix != "" && suffix != "B" && suffix != "iB"))
      return bad;
    number *= std::pow(factor, static_cast<double>(unit + 1));
  }
  if (number > 9e18) return bad;
  return size.bytes = static_cast<int64_t>(number), size;
}

Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view param) {
  std::vector<int32_t> ids;
  const auto is_separator = [](char c) {
    return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
  };
  for (size_t begin = 0; begin < text.size();) {
    if (is_separator(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && !is_separator(text[end])) ++end;
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0) {
      return InvalidArgument(
          std::string(param) + ": \"" +
              std::string(text.substr(begin, std::min<size_t>(end - begin, 40))) +
              "\" is not a token id, allowed: 0..2147483647",
          std::string(param));
    }
    ids.push_back(id);
    begin = end;
  }
  if (ids.empty())
    return InvalidArgument(std::string(param) + ": no token id found", std::string(param));
  return ids;
}

std::string HelpText() {
  std::ostringstream out;
  const auto entry = [&](std::string left, std::string_view help) {
    constexpr size_t kColumn = 32;
    if (left.size() >= kColumn) left += "\n" + std::string(kColumn, ' ');
    left.resize(std::max(left.size(), kColumn), ' ');
    out << left << help;
  };
  out << "diffserve: an inference server for Diff Transformer models\n\n";
  for (const CommandSpec& command : CommandTable()) {
    entry("  diffserve " + std::string(command.name) + ArgumentsText(command), command.help);
    out << "\n";
  }
  out << "\n  --help, --version\n  --config FILE                 JSON object of flag names and "
         "values (and model_dir); flags on the command line take precedence\n  A switch can be "
         "turned off with --no-NAME. Exit codes: 0 success, 1 failure, 2 wrong usage.\n";
  std::string_view group;
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.group != group) out << "\n" << (group = flag.group) << "\n";
    entry("  " + std::string(flag.name) +
              (flag.value_name.empty() ? "" : " " + std::string(flag.value_name)),
          flag.help);
    const bool free_text = flag.allowed.empty() &&
                           (flag.Is<std::string>() || flag.Is<MemorySize>());
    if (!flag.Is<bool>() && !free_text) out << "; " << AllowedText(flag);
    const std::string fallback = DefaultText(flag);
    if (!fallback.empty()) out << " (default " << fallback << ")";
    out << " [" << ShortCommandsText(flag.commands) << "]\n";
  }
  return out.str();
}

std::string VersionText() {
  std::string levels;
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.name == "--cpu-isa")
      levels = Joined(std::span(flag.allowed).subspan(1));  // after "auto"
  }
  const Result<CpuIsa> isa = ChooseCpuIsa("auto");
  std::ostringstream out;
  out << "version: " << BuildVersion() << "\ncommit: " << BuildCommit() << "\n"
      << DIFFSERVE_COMPILERS << "backends: cpu" << (cuda::IsCompiledIn() ? ", cuda" : "")
      << "\ncpu levels: " << levels << "\ncpu level: "
      << (isa.ok() ? std::string(NameOf(isa.value())) : "none: " + isa.status().message()) << "\n";
  return out.str();
}

}  // namespace diffserve
