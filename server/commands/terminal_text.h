// TerminalText: what a model wrote, as it may be sent to a terminal. Control characters, and those
// that change the direction of what follows, are shown instead of obeyed: a model's text could
// otherwise move the cursor, hide what was written or ask the terminal to answer.
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

class TerminalText {
 public:
  // What can be shown of the text so far and was not before. Line feeds and tabs stay; other
  // control characters become their pictures (U+2400 and on), what is not UTF-8 or changes
  // direction U+FFFD.
  std::string Push(std::string_view piece);
  // What is left of a broken character.
  std::string Finish();

 private:
  std::string rest_;  // the begin of a character
};

// All of a text at once.
std::string ShownOnTerminal(std::string_view text);

// The begin of a text, on one line: what others wrote, as an error line quotes it.
std::string QuotedOnTerminal(std::string_view text);

}  // namespace diffserve
