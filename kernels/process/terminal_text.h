// SPDX-License-Identifier: Apache-2.0
// TerminalText: makes foreign text, such as that of a model or a hub, safe for a terminal. Control
// characters, and characters that change the direction of text, are shown as symbols. Otherwise it
// could move the cursor, hide text or make the terminal answer. Thread safety: one thread at a
// time.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

class TerminalText {
 public:
  // The new text that can be shown. Line feeds and tabs stay; other control characters become their
  // pictures (U+2400 and on). Invalid UTF-8 and changes of direction become U+FFFD.
  std::string Push(std::string_view piece);
  // The rest of an incomplete character.
  std::string Finish();

 private:
  std::string rest_;  // the start of a character
};

// A whole text.
std::string ShownOnTerminal(std::string_view text);

// The start of a text on one line, for quoting foreign text in an error.
std::string QuotedOnTerminal(std::string_view text);

}  // namespace diffserve
