// SPDX-License-Identifier: Apache-2.0
#include "server/app/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"
#include "server/api/door/nearest_name.h"
#include "server/api/head/cross_origin.h"
#include "server/app/environment.h"
#include "server/app/option_table.h"
#include "server/http/listen/unix_socket_file.h"
#include "server/http/url.h"

namespace diffserve {
namespace {

constexpr size_t kMaxConfigFileBytes = 1 << 20;

// The row of this name for this command; nullptr if there is none. `elsewhere` gets the commands
// that have it.
const FlagSpec* FindFlag(std::span<const FlagSpec> table, std::string_view name, unsigned command,
                         unsigned& elsewhere) {
  for (const FlagSpec& flag : table) {
    if (flag.name != name) continue;
    if ((flag.commands & command) != 0) return &flag;
    elsewhere |= flag.commands;
  }
  return nullptr;
}

// "did you mean --port?", or nothing.
std::string Suggestion(std::string_view written, std::span<const std::string_view> names) {
  const std::optional<std::string_view> nearest = NearestName(written, names);
  return nearest ? "did you mean " + std::string(*nearest) + "?" : "";
}

Status UnknownFlag(const std::string& name, std::span<const std::string> allowed) {
  const std::vector<std::string_view> names(allowed.begin(), allowed.end());
  const std::string suggestion = Suggestion(name, names);
  return InvalidArgument(name + " is not a flag" + (suggestion.empty() ? ";" : ": " + suggestion) +
                             " diffserve --help lists all flags",
                         name);
}

// Walks argv after the command: collects flags and arguments with their values, in order.
class ArgumentReader {
 public:
  ArgumentReader(const std::vector<std::string>& args, unsigned command)
      : args_(args), command_(command) {}

  Status Read() {
    const std::vector<const FlagSpec*> arguments = ArgumentsOf(command_);
    size_t num_arguments = 0;
    for (next_ = 1; next_ < args_.size();) {
      const std::string& arg = args_[next_++];
      if (arg.empty()) return NotAllowed("an argument is empty", ArgumentsText(command_).substr(1));
      if (arg.starts_with('-') && arg.size() > 1) {
        DS_RETURN_IF_ERROR(ReadFlag(arg));
      } else if (num_arguments < arguments.size()) {
        Assign(*arguments[num_arguments++], arg);
      } else if (list_ != nullptr) {
        Assign(*list_, arg);
      } else if (arguments.empty()) {
        return NotAllowed("found " + QuotedText(arg) + " after " + args_[0], "flags only");
      } else {
        const FlagSpec* last = arguments.back();
        const std::string name(last->value_name);
        const auto& value = std::ranges::find(assignments, last, &Assignment::flag)->value;
        return NotAllowed("found " + QuotedText(arg) + " after " + name + " " + QuotedText(value),
                          "one" + ArgumentsText(command_), name);
      }
    }
    return {};
  }

  std::vector<Assignment> assignments;
  std::string config_file;

 private:
  Status ReadFlag(const std::string& arg) {
    list_ = nullptr;
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = arg.substr(equals + 1);
    const bool is_off = name.starts_with("--no-"), is_config = name == "--config";
    unsigned elsewhere = 0;
    const FlagSpec* flag = FindFlag(FlagTable(), is_off ? "--" + name.substr(5) : name, command_,
                                    elsewhere);
    const bool is_switch = flag != nullptr && flag->Is<bool>();
    if (is_off ? !is_switch : flag == nullptr && !is_config) {
      if (elsewhere == 0) return UnknownFlag(name, FlagNames());
      return NotAllowed(name + " is set for " + args_[0], "only for " + CommandsText(elsewhere),
                        name);
    }
    if (is_off && value) return NotOneOf(name, *value, "no value");
    if (!value && is_switch) value = is_off ? "false" : "true";
    if (!value && next_ < args_.size() && !args_[next_].starts_with("--")) value = args_[next_++];
    if (!value)
      return NotAllowed(name + " has no value", is_config ? "a file" : AllowedText(*flag), name);
    if (is_config)
      config_file = *value;
    else
      Assign(*flag, *value);
    return {};
  }

  // A flag of several texts gets one more.
  void Assign(const FlagSpec& flag, const std::string& value) {
    list_ = flag.Is<std::vector<std::string>>() ? &flag : nullptr;
    const auto before = std::ranges::find(assignments, list_, &Assignment::flag);
    if (before != assignments.end())
      before->value += kTextSeparator + value;
    else
      assignments.push_back({&flag, value});
  }

  // Every name that is valid in place of a flag of this command.
  std::vector<std::string> FlagNames() const {
    std::vector<std::string> names = {"--help", "--version", "--config"};
    for (const FlagSpec& flag : FlagTable()) {
      if ((flag.commands & command_) == 0) continue;
      names.emplace_back(flag.name);
      if (flag.Is<bool>()) names.push_back("--no-" + std::string(flag.name.substr(2)));
    }
    return names;
  }

  const std::vector<std::string>& args_;
  const unsigned command_;
  size_t next_ = 0;
  const FlagSpec* list_ = nullptr;  // a flag of several texts to which the last one belongs
};

// A JSON value as text for ApplyFlag; nullopt if the flag accepts no such value.
std::optional<std::string> ValueText(const FlagSpec& flag, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (flag.group.empty()) return std::nullopt;  // an argument is a text
  if (value.is_boolean() || value.is_number()) return value.dump();
  if (!value.is_array() || value.empty()) return std::nullopt;
  const bool of_texts = flag.Is<std::vector<std::string>>();
  std::string text;
  for (const nlohmann::json& item : value) {
    if (of_texts ? !item.is_string() : !item.is_number()) return std::nullopt;
    if (&item != &value.front()) text += of_texts ? kTextSeparator : ',';
    text += of_texts ? item.get<std::string>() : item.dump();
  }
  return text;
}

// Applies the file's keys. Keys of other commands are skipped, so that one file can serve several
// commands. `applied` gets the others.
Status ApplyConfigFile(const std::string& path, unsigned command, Options& options,
                       std::vector<Assignment>& applied) {
  const Result<std::string> text = ReadRegularFile(path, kMaxConfigFileBytes);
  if (!text.ok()) return InvalidArgument("--config " + text.status().message(), "--config");
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return !(too_deep |= depth > 2);
  };
  const nlohmann::json root = nlohmann::json::parse(*text, limit_depth, /*allow_exceptions=*/false);
  if (too_deep || !root.is_object()) {
    const std::string found = too_deep              ? "nested JSON"
                              : root.is_discarded() ? "no valid JSON"
                                                    : std::string("a JSON ") + root.type_name();
    return NotAllowed("--config " + path + " holds " + found, "one flat JSON object", "--config");
  }

  std::vector<std::string> names;
  for (const auto table : {FlagTable(), ArgumentTable()}) {
    for (const FlagSpec& flag : table) names.emplace_back(flag.name);
  }
  for (const auto& [key, value] : root.items()) {
    std::string name = "--" + key;
    std::ranges::replace(name, '_', '-');
    unsigned elsewhere = 0;
    const FlagSpec* flag = FindFlag(FlagTable(), name, command, elsewhere);
    if (flag == nullptr) flag = FindFlag(ArgumentTable(), name, command, elsewhere);
    if (flag == nullptr && elsewhere != 0) continue;
    Status status;
    if (flag == nullptr) {
      status = UnknownFlag(name, names);
    } else if (const std::optional<std::string> as_text = ValueText(*flag, value)) {
      status = ApplyFlag(*flag, *as_text, options);
      applied.push_back({flag, *as_text});
    } else {
      status = NotAllowed(name + " is a JSON " + value.type_name(), AllowedText(*flag));
    }
    if (!status.ok()) return InvalidArgument("--config " + path + ": " + status.message(), name);
  }
  return {};
}

Status CheckChatUrl(const Options& options) {
  const ChatOptions& chat = options.chat;
  if (chat.url.empty()) {
    if (chat.api_key_file.empty()) return {};
    return OnlyWith("--api-key-file", "--url: a local model needs no key");
  }
  if (!options.session.model_dir.empty()) {
    return NotBoth("MODEL_DIR", "--url");
  }
  return ParseServerUrl(chat.url).status();
}

// The guesses of a draft model join those of the text.
Status ImplyProposals(SessionOptions& session) {
  if (session.draft_dir.empty()) return {};
  if (session.speculation == Speculation::kOff) {
    return NotAllowed("--speculative is off with --speculative-model", "auto, prompt-lookup",
                      "--speculative");
  }
  session.speculation = Speculation::kPromptLookup;
  return {};
}

bool InspectsDirectoryOnly(const Options& options) {
  return options.command == "inspect" && !options.serve.kv_cache_dir.empty() &&
         options.inspect.activations.empty();
}

Status CheckTogether(unsigned command, Options& options) {
  if (!options.models.file.empty() && !options.session.model_dir.empty()) {
    return NotBoth("MODEL_DIR", "--models");
  }
  if (options.command == "chat") DS_RETURN_IF_ERROR(CheckChatUrl(options));
  DS_RETURN_IF_ERROR(ImplyProposals(options.session));
  DS_RETURN_IF_ERROR(CrossOrigin::Parse(options.serve.cors_origins).status());
  DS_RETURN_IF_ERROR(CheckUnixSocketPath(options.serve.unix_socket));
  for (const FlagSpec* argument : ArgumentsOf(command)) {
    const auto text = std::get<FlagSpec::Place<std::string>>(argument->target);
    if (!text(options).empty() || !options.chat.url.empty() || !options.models.file.empty() ||
        InspectsDirectoryOnly(options))
      continue;
    const std::string name(argument->value_name), run = "diffserve " + options.command;
    const bool takes_model_only = ArgumentsText(command) == " MODEL_DIR";
    return NotAllowed(name + " is missing",
                      run + ArgumentsText(command) +
                          (takes_model_only ? "; " + run + " demo takes the bundled model" : ""),
                      name);
  }
  if (options.command == "probe") return ParseServerPlace(options.probe.url).status();
  const int prompts = !options.prompt.text.empty() + !options.prompt.tokens.empty();
  if ((options.command == "generate" || options.command == "logits") && prompts != 1) {
    return NotAllowed("found " + std::to_string(prompts) + " prompts",
                      "exactly one of --prompt, --tokens", "--prompt");
  }
  if (options.command == "generate" && options.prompt.chat && options.prompt.text.empty())
    return OnlyWith("--chat", "--prompt: token ids are used as they are");
  if (options.command == "logits" && options.logits.output.empty())
    return Missing("--output", "the .npy file to write");
  if (options.command == "run-batch") {
    if (options.batch.input.empty()) return Missing("--input", "the file of requests");
    if (options.batch.output.empty()) return Missing("--output", "the file for the answers");
  }
  return {};
}

// The flags that the parent process of several models has itself, and those that would be the same
// for every model and so collide.
constexpr std::string_view kParentFlags[] = {
    "--host",      "--port",         "--unix-socket", "--grpc",          "--grpc-port",
    "--ui",        "--api-key-file", "--cors-origin", "--drain-timeout", "--stop-with-stdin",
    "--log-format"};
constexpr std::string_view kOneModelFlags[] = {
    "--served-model-name", "--health-port", "--kv-events-endpoint", "--kv-events-replay-endpoint"};

// "--threads=2"; a switch as "--no-ui"; several texts as several flags.
void AppendArguments(const Assignment& assignment, std::vector<std::string>* arguments) {
  const std::string name(assignment.flag->name);
  if (assignment.flag->Is<bool>()) {
    arguments->push_back(assignment.value == "true" ? name : "--no-" + name.substr(2));
    return;
  }
  std::istringstream texts(assignment.value);
  for (std::string text; std::getline(texts, text, kTextSeparator);)
    arguments->push_back(name + "=" + text);
}

// Which of the given flags every model inherits.
Status TakeModelsFlags(const std::vector<Assignment>& assignments, ModelsOptions& models) {
  for (const Assignment& assignment : assignments) {
    const std::string name(assignment.flag->name);
    const bool is_of_models = assignment.flag->group == kModelsGroup;
    if (models.file.empty() && is_of_models) return OnlyWith(name, "--models");
    if (models.file.empty() || is_of_models || std::ranges::count(kParentFlags, name) > 0) continue;
    if (std::ranges::count(kOneModelFlags, name) > 0) {
      return NotAllowed(name + " is set with --models",
                        "in its file only, where models are named and have flags of their own",
                        name);
    }
    AppendArguments(assignment, &models.inherited_flags);
  }
  return {};
}

// What `serve` takes of a command line, so that it runs as that command was asked to.
std::vector<std::string> FlagsOfServe(const ArgumentReader& reader) {
  const std::vector<const FlagSpec*> arguments = ArgumentsOf(kServe);
  std::vector<std::string> flags;
  if (!reader.config_file.empty()) flags.push_back("--config=" + reader.config_file);
  for (const Assignment& assignment : reader.assignments) {
    if ((assignment.flag->commands & kServe) != 0 &&
        std::ranges::count(arguments, assignment.flag) == 0)
      AppendArguments(assignment, &flags);
  }
  return flags;
}

// Commands of other servers, and what to type here.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"run", "diffserve chat MODEL_DIR"},
    {"start", "diffserve serve MODEL_DIR"},
    {"list", "diffserve models"},
    {"ls", "diffserve models"},
    {"ps", "diffserve models"},
    {"show", "diffserve inspect MODEL_DIR"},
    {"pull", "diffserve inspect hf:ORG/NAME, which fetches it"},
    {"complete", "diffserve generate MODEL_DIR"},
};

Status UnknownCommand(const std::string& written) {
  const std::string allowed = CommandsText(~0u) + "; see diffserve --help";
  if (written.empty()) return NotAllowed("a command is missing", allowed, "command");
  const auto elsewhere = std::ranges::find(kElsewhere, written,
                                           [](const auto& row) { return row.first; });
  std::vector<std::string_view> names;
  for (const CommandSpec& command : CommandTable()) names.push_back(command.name);
  const std::string suggestion = elsewhere == std::end(kElsewhere)
                                     ? Suggestion(written, names)
                                     : "did you mean " + std::string(elsewhere->second) + "?";
  return NotAllowed(QuotedText(written) + " is not a command",
                    allowed + (suggestion.empty() ? "" : "; ") + suggestion, "command");
}

// Flags that configure a model in this process have no effect on a remote server.
Status CheckFlagsOfServer(const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    const FlagSpec& flag = *assignment.flag;
    if ((flag.commands & kServe) == 0 || flag.name == "--seed" || flag.name == "--log-level")
      continue;
    return NotAllowed(std::string(flag.name) + " is set with chat --url",
                      "only for the server, whose setting it is", std::string(flag.name));
  }
  return {};
}

// The command whose help is asked for: `serve --help`, `help serve`; empty: all.
std::string HelpSubject(const std::vector<std::string>& args) {
  for (const CommandSpec& command : CommandTable()) {
    if (args[0] == command.name ||
        (args[0] == "help" && args.size() > 1 && args[1] == command.name))
      return std::string(command.name);
  }
  return "";
}

}  // namespace

Result<Options> ParseOptions(const std::vector<std::string>& args,
                             std::span<const std::string> environment) {
  Options options;
  for (const std::string& arg : args) {
    const bool is_first = &arg == &args[0];
    const std::string name = arg.substr(0, arg.find('='));
    if (name == "--help" || arg == "-h" || (is_first && arg == "help")) {
      options.help_of = HelpSubject(args);
      return options.command = "help", options;
    }
    if (name == "--version" || (is_first && arg == "version"))
      return options.command = "version", options;
  }
  const std::string first = args.empty() ? "" : args[0];
  const auto command = std::ranges::find(CommandTable(), first, &CommandSpec::name);
  if (command == CommandTable().end()) return UnknownCommand(first);
  options.command = first;
  const unsigned bit = 1u << (command - CommandTable().begin());
  if (bit == kRunBatch) options.log_level = LogLevel::kWarning;  // info has a line per request
  ArgumentReader reader(args, bit);
  DS_RETURN_IF_ERROR(reader.Read());
  std::string config_file = reader.config_file;
  if (config_file.empty()) config_file = ValueOfVariable(environment, VariableOf("--config"));
  std::vector<Assignment> all;  // the last of a flag wins
  if (!config_file.empty()) DS_RETURN_IF_ERROR(ApplyConfigFile(config_file, bit, options, all));
  DS_RETURN_IF_ERROR(ApplyEnvironment(environment, bit, options, all));
  for (const auto& [flag, value] : reader.assignments)
    DS_RETURN_IF_ERROR(ApplyFlag(*flag, value, options));
  DS_RETURN_IF_ERROR(CheckTogether(bit, options));
  all.insert(all.end(), reader.assignments.begin(), reader.assignments.end());
  DS_RETURN_IF_ERROR(TakeModelsFlags(all, options.models));
  if (bit == kInspect) options.inspect.serve_flags = FlagsOfServe(reader);
  if (options.command == "chat" && !options.chat.url.empty())
    DS_RETURN_IF_ERROR(CheckFlagsOfServer(reader.assignments));
  return options;
}

std::optional<MemorySize> ParseMemorySize(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number,
                                            std::chars_format::fixed);
  std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error != std::errc() || !std::isfinite(number) || number <= 0) return std::nullopt;
  if (suffix.empty() && number <= 1)
    return MemorySize{.text = std::string(text), .bytes = 0, .share = number};
  // K, KB or KiB, and so on.
  constexpr std::string_view kUnits = "KMGT";
  const double factor = suffix.ends_with("iB") ? 1024 : 1000;
  if (!suffix.empty()) {
    const size_t unit = kUnits.find(suffix.front());
    suffix.remove_prefix(1);
    if (unit == std::string_view::npos || (suffix != "" && suffix != "B" && suffix != "iB"))
      return std::nullopt;
    number *= std::pow(factor, static_cast<double>(unit + 1));
  }
  if (number > 9e18) return std::nullopt;
  return MemorySize{.text = std::string(text), .bytes = static_cast<int64_t>(number)};
}

Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view param) {
  constexpr std::string_view kSeparators = ", \n\t\r";
  const std::string flag(param);
  std::vector<int32_t> ids;
  size_t begin = 0;
  while ((begin = text.find_first_not_of(kSeparators, begin)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0) {
      const std::string found(text.substr(begin, std::min<size_t>(end - begin, 40)));
      return NotAllowed(flag + ": " + QuotedText(found) + " is not a token id",
                        RangeText(0, std::numeric_limits<int32_t>::max()), flag);
    }
    ids.push_back(id);
    begin = end;
  }
  if (ids.empty()) return NotAllowed(flag + " has no token ids", "at least 1", flag);
  return ids;
}

}  // namespace diffserve
