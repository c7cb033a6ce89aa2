// SPDX-License-Identifier: Apache-2.0
// `diffserve chat`: a conversation in the terminal. Lines are read by libedit if stdin and stdout
// are a terminal, and directly otherwise.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/process/terminal_text.h"
#include "server/api/door/nearest_name.h"
#include "server/app/chat/chat_history.h"
#include "server/app/chat/chat_model.h"
#include "server/app/chat/line_editor.h"
#include "server/app/commands/commands.h"
#include "server/app/stop_signals.h"

namespace diffserve {
namespace {

constexpr size_t kMaxInputBytes = 1 << 20;
constexpr char kPrompt[] = "> ";

// The answer that SIGINT stops. Thread-safe.
class AnswerStop {
 public:
  std::stop_token Begin() {
    const std::lock_guard lock(mutex_);
    return source_.emplace().get_token();
  }
  void End() {
    const std::lock_guard lock(mutex_);
    source_.reset();
  }
  // Between answers there is nothing to stop.
  void Ask() {
    const std::lock_guard lock(mutex_);
    if (source_) source_->request_stop();
  }

 private:
  std::mutex mutex_;
  std::optional<std::stop_source> source_;
};

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Prints a note that is not part of the conversation.
void Note(const std::string& text) { std::fprintf(stderr, "(%s)\n", text.c_str()); }

class Chat {
 public:
  Chat(ChatModel& model, std::string system)
      : model_(model), history_(std::move(system)), to_terminal_(isatty(STDOUT_FILENO) == 1) {}

  AnswerStop& answer_stop() { return answer_stop_; }
  bool ended() const { return ended_; }  // by /quit
  // Handles a line: a message, which is answered, or a command. Error: the model's; the
  // conversation is then unchanged.
  Status Take(const std::string& line);

 private:
  struct Command {
    std::string_view name, argument, help;
    void (Chat::*run)(const std::string& argument);
  };
  static std::span<const Command> Commands();

  void RunCommand(const std::string& line);
  void Help(const std::string&);
  void Reset(const std::string&);
  void SetSystem(const std::string& text);
  void Quit(const std::string&) { ended_ = true; }
  Status Answer(const std::string& question);
  void Tell(const ChatAnswer& answer) const;

  ChatModel& model_;
  ChatHistory history_;
  const bool to_terminal_;
  AnswerStop answer_stop_;
  bool ended_ = false;
};

std::span<const Chat::Command> Chat::Commands() {
  static constexpr Command kCommands[] = {
      {"/help", "", "list the commands", &Chat::Help},
      {"/reset", "", "forget the conversation, but keep the system message", &Chat::Reset},
      {"/system", " TEXT", "set the system message; without TEXT, remove it", &Chat::SetSystem},
      {"/quit", "", "end the conversation, as Ctrl-D does", &Chat::Quit},
  };
  return kCommands;
}

Status Chat::Take(const std::string& line) {
  if (line.find_first_not_of(" \t") == std::string::npos) return {};
  if (!line.starts_with('/')) return Answer(line);
  RunCommand(line);
  return {};
}

void Chat::RunCommand(const std::string& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, end);
  const size_t begin = std::min(line.find_first_not_of(' ', end), line.size());
  std::vector<std::string_view> names;
  for (const Command& command : Commands()) {
    if (command.name == name) return (this->*command.run)(line.substr(begin));
    names.push_back(command.name);
  }
  const std::optional<std::string_view> nearest = NearestName(name, names);
  const std::string meant = nearest ? ": did you mean " + std::string(*nearest) + "?" : ";";
  Note(QuotedOnTerminal(name) + " is not a command" + meant +
       " /help lists the commands; put a blank before a message that begins with /");
}

void Chat::Help(const std::string&) {
  for (const Command& command : Commands()) {
    std::string usage = std::string(command.name) + std::string(command.argument);
    usage.resize(16, ' ');
    Print(usage + std::string(command.help) + "\n");
  }
  Print(
      "Ctrl-C stops an answer or clears the line; Ctrl-C twice, or Ctrl-D, ends the "
      "conversation.\n");
}

void Chat::Reset(const std::string&) {
  history_.Reset();
  Note("the conversation starts over");
}

void Chat::SetSystem(const std::string& text) {
  history_.SetSystem(text);
  Note(text.empty() ? "there is no system message" : "the system message is set");
}

Status Chat::Answer(const std::string& question) {
  TerminalText terminal;
  const auto show = [&](std::string_view piece) {
    Print(to_terminal_ ? terminal.Push(piece) : std::string(piece));
  };
  const std::stop_token stop = answer_stop_.Begin();
  const Result<ChatAnswer> answer = model_.Answer(history_.With(question), show, stop);
  answer_stop_.End();
  Print(terminal.Finish() + "\n");
  if (!answer.ok()) return answer.status();
  Tell(*answer);
  if (!answer->text.empty()) history_.Add(question, answer->text);
  return {};
}

// Notes why an answer is incomplete or empty.
void Chat::Tell(const ChatAnswer& answer) const {
  if (answer.finish_reason.empty()) {
    Note(answer.text.empty() ? "stopped before the answer began; the message is forgotten"
                             : "stopped");
  } else if (answer.finish_reason == "length") {
    Note("cut off: --max-tokens or the end of the context was reached");
  } else if (answer.text.empty()) {
    Note("the answer ended at once, by the model's end token or --stop; it is forgotten");
  }
}

// The next line of stdin; nullopt at its end.
Result<std::optional<std::string>> PlainLine() {
  std::string line;
  for (int c = std::getc(stdin); c != EOF; c = std::getc(stdin)) {
    if (c == '\n') return std::optional(line);
    if (line.size() == kMaxInputBytes)
      return InvalidArgument("a line of stdin is longer than 1 MiB, the limit of a message");
    line += static_cast<char>(c);
  }
  return line.empty() ? std::nullopt : std::optional(line);
}

// The first answer that fails ends the program, so that a script sees it by the exit code.
Status ConversePlainly(Chat& chat) {
  const EndsOnSignal ends_on_signal("chatting");
  while (!chat.ended()) {
    const Result<std::optional<std::string>> line = PlainLine();
    if (!line.ok()) return line.status();
    if (!line->has_value()) break;
    DS_RETURN_IF_ERROR(chat.Take(**line));
  }
  return {};
}

void ConverseAtTerminal(Chat& chat, const std::string& name) {
  LineEditor editor(kPrompt);
  const EndsOnSignal ends_on_signal("chatting", [&](int signal) {
    if (signal == SIGINT) chat.answer_stop().Ask();
    if (signal != SIGINT) editor.RestoreTerminal();
    return signal == SIGINT;
  });
  Note(QuotedOnTerminal(name) + "; /help lists the commands");
  bool interrupted = false;
  while (!chat.ended()) {
    const LineEditor::Line line = editor.Read();
    if (line.end == LineEditor::End::kEndOfInput) return Print("\n");
    if (line.end == LineEditor::End::kInterrupted) {
      if (std::exchange(interrupted, true)) return;
      Note("Ctrl-C again ends the conversation");
      continue;
    }
    interrupted = false;
    const Status status = chat.Take(line.text);
    if (!status.ok()) Note("no answer: " + ShownOnTerminal(status.message()));
  }
}

}  // namespace

Status RunChat(const SessionOptions& options, const GenerateOptions& generate,
               const ChatOptions& chat_options, const ExecutorWrapper& wrap) {
  BlockStopSignals();
  std::optional<EndsOnSignal> ends_on_signal(std::in_place, "loading");
  Result<std::unique_ptr<ChatModel>> model =
      chat_options.url.empty() ? LoadChatModel(options, generate, chat_options, wrap)
                               : ConnectChatModel(options, generate, chat_options);
  if (!model.ok()) return model.status();
  ends_on_signal.reset();
  Chat chat(**model, chat_options.system);
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return ConversePlainly(chat);
  ConverseAtTerminal(chat, (*model)->name());
  return {};
}

}  // namespace diffserve
