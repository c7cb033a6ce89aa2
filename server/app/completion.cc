// SPDX-License-Identifier: Apache-2.0
#include "server/app/completion.h"

#include "server/app/option_table.h"

namespace diffserve {
namespace {

// For bash, and for zsh through its bashcompinit. @...@ are replaced.
constexpr std::string_view kBash = R"(_diffserve() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  COMPREPLY=()
  if [ "$current" = = ]; then
    current=
  elif [ "$previous" = = ]; then
    previous="${COMP_WORDS[COMP_CWORD-2]}"
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$current"))
    return
  fi
  case "${COMP_WORDS[1]} $previous" in
@VALUES@  esac
  case "${COMP_WORDS[1]} $current" in
@FLAGS@@ARGUMENTS@  esac
}
complete -o filenames -F _diffserve diffserve
)";
constexpr std::string_view kZshStart = "autoload -U +X bashcompinit && bashcompinit\n";

void Replace(std::string& text, std::string_view mark, std::string_view by) {
  text.replace(text.find(mark), mark.size(), by);
}

// Calls visit(command, bit) for each command of a mask.
template <typename Visit>
void ForEachCommand(unsigned commands, Visit visit) {
  for (unsigned bit = 1; const CommandSpec& command : CommandTable()) {
    if ((commands & bit) != 0) visit(command, bit);
    bit *= 2;
  }
}

std::string CommandNames(unsigned commands) {
  std::string names;
  ForEachCommand(commands, [&](const CommandSpec& command, unsigned) {
    names += (names.empty() ? "" : " ") + std::string(command.name);
  });
  return names;
}

std::string Choices(const FlagSpec& flag) {
  std::string words;
  for (const std::string_view value : flag.allowed)
    words += (words.empty() ? "" : " ") + std::string(value);
  return words;
}

bool IsFile(const FlagSpec& flag) { return flag.value_name.ends_with("FILE"); }
bool IsDirectory(const FlagSpec& flag) { return flag.value_name.ends_with("DIR"); }

std::string BashReply(const std::string& compgen) {
  return "COMPREPLY=($(compgen " + compgen + " -- \"$current\"))";
}

// A branch of bash's `case`; empty if nothing is known about the value. A number or a text of the
// user's own gets no completion.
std::string BashBranch(const std::string& pattern, const FlagSpec& flag) {
  std::string reply = "COMPREPLY=()";
  if (!flag.allowed.empty()) reply = BashReply("-W \"" + Choices(flag) + "\"");
  if (IsFile(flag)) reply = BashReply("-f");
  if (IsDirectory(flag)) reply = BashReply("-d");
  return "    " + pattern + ") " + reply + "; return ;;\n";
}

std::string BashScript() {
  std::string values = "    *\" --config\") " + BashReply("-f") + "; return ;;\n", flags, arguments;
  ForEachCommand(~0u, [&](const CommandSpec& command, unsigned bit) {
    const std::string name(command.name);
    std::string words = "--help --config";
    for (const FlagSpec& flag : FlagTable()) {
      if ((flag.commands & bit) == 0) continue;
      words += " " + std::string(flag.name);
      if (flag.Is<bool>())
        words += " --no-" + std::string(flag.name.substr(2));
      else
        values += BashBranch("\"" + name + " " + std::string(flag.name) + "\"", flag);
    }
    flags += "    \"" + name + " -\"*) " + BashReply("-W \"" + words + "\"") + " ;;\n";
    for (const FlagSpec& argument : ArgumentTable()) {
      if ((argument.commands & bit) == 0) continue;
      arguments += BashBranch("\"" + name + " \"*", argument);
      break;  // a second one is of the same kind
    }
  });
  std::string script(kBash);
  Replace(script, "@COMMANDS@", CommandNames(~0u));
  Replace(script, "@VALUES@", values);
  Replace(script, "@FLAGS@", flags);
  Replace(script, "@ARGUMENTS@", arguments);
  return script;
}

// In single quotes, up to the first semicolon.
std::string FishText(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, text.find(';'))) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string FishValues(const FlagSpec& flag) {
  if (!flag.allowed.empty()) return " -x -a '" + Choices(flag) + "'";
  if (IsFile(flag)) return " -r -F";
  return IsDirectory(flag) ? " -x -a '(__fish_complete_directories)'" : " -x";
}

std::string FishLine(unsigned commands, const std::string& what) {
  return "complete -c diffserve -n '__fish_seen_subcommand_from " + CommandNames(commands) + "'" +
         what + "\n";
}

std::string FishScript() {
  std::string script =
      "complete -c diffserve -f\ncomplete -c diffserve -l config -r -F\n"
      "complete -c diffserve -l help\ncomplete -c diffserve -l version\n";
  ForEachCommand(~0u, [&](const CommandSpec& command, unsigned) {
    script += "complete -c diffserve -n __fish_use_subcommand -a " + std::string(command.name) +
              " -d " + FishText(command.help) + "\n";
  });
  for (const FlagSpec& flag : FlagTable()) {
    const std::string name(flag.name.substr(2)), help = " -d " + FishText(flag.help);
    script += FishLine(flag.commands,
                       " -l " + name + (flag.Is<bool>() ? "" : FishValues(flag)) + help);
    if (flag.Is<bool>()) script += FishLine(flag.commands, " -l no-" + name + help);
  }
  for (const FlagSpec& argument : ArgumentTable())
    script += FishLine(argument.commands, FishValues(argument));
  return script;
}

}  // namespace

std::string CompletionScript(std::string_view shell) {
  if (shell == "fish") return FishScript();
  return (shell == "zsh" ? std::string(kZshStart) : "") + BashScript();
}

}  // namespace diffserve
