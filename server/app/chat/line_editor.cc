// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/line_editor.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr int kHistoryLines = 1000;

// In a locale without UTF-8, libedit accepts only ASCII. Containers set no locale, so glibc's own
// UTF-8 locale is used instead of the environment's.
void TakeUtf8() {
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
}

}  // namespace

struct LineEditor::Impl {
  static Impl& Of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  static char* Prompt(EditLine* editor) { return Of(editor).prompt.data(); }
  static unsigned char Interrupt(EditLine* editor, int) {
    Of(editor).interrupted = true;
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    return CC_EOF;
  }

  // Set before the prompt is shown and keys are typed. While a line is read, Ctrl-C is an ordinary
  // key.
  void PrepareTerminal() const {
    el_set(editor, EL_PREP_TERM, 1);
    termios settings{};
    if (tcgetattr(STDIN_FILENO, &settings) != 0) return;
    settings.c_cc[VINTR] = _POSIX_VDISABLE;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
  }

  std::string prompt;
  termios settings_before{};  // of the terminal
  EditLine* editor = nullptr;
  History* history = nullptr;
  bool interrupted = false;
};

LineEditor::LineEditor(std::string prompt) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.prompt = std::move(prompt);
  TakeUtf8();
  tcgetattr(STDIN_FILENO, &impl.settings_before);
  impl.editor = el_init("diffserve", stdin, stdout, stderr);
  impl.history = history_init();
  DS_CHECK(impl.editor != nullptr && impl.history != nullptr, "libedit has no memory");
  HistEvent event;
  history(impl.history, &event, H_SETSIZE, kHistoryLines);
  history(impl.history, &event, H_SETUNIQUE, 1);
  el_set(impl.editor, EL_CLIENTDATA, &impl);
  el_set(impl.editor, EL_PROMPT, &Impl::Prompt);
  el_set(impl.editor, EL_EDITOR, "emacs");
  el_set(impl.editor, EL_SIGNAL, 1);  // suspended, continued, resized
  el_set(impl.editor, EL_HIST, history, impl.history);
  el_set(impl.editor, EL_ADDFN, "interrupt", "clears the line", &Impl::Interrupt);
  el_set(impl.editor, EL_BIND, "^C", "interrupt", nullptr);
  el_set(impl.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() {
  el_end(impl_->editor);
  history_end(impl_->history);
  RestoreTerminal();
}

LineEditor::Line LineEditor::Read() {
  Impl& impl = *impl_;
  impl.interrupted = false;
  impl.PrepareTerminal();
  int count = 0;
  const char* const text = el_gets(impl.editor, &count);
  if (impl.interrupted) return {End::kInterrupted, {}};
  if (text == nullptr || count <= 0) return {End::kEndOfInput, {}};
  Line line{End::kLine, std::string(text)};
  while (!line.text.empty() && line.text.back() == '\n') line.text.pop_back();
  HistEvent event;
  if (!line.text.empty()) history(impl.history, &event, H_ENTER, line.text.c_str());
  return line;
}

void LineEditor::RestoreTerminal() const {
  tcsetattr(STDIN_FILENO, TCSANOW, &impl_->settings_before);
}

}  // namespace diffserve
