// SPDX-License-Identifier: Apache-2.0
// Detokenizer: turns one sequence's token ids into text deltas. StopMatcher: holds back text that
// may become a stop string. A text after a prompt is decoded as the prompt's continuation:
// TextBefore and the concatenated deltas equal Tokenizer::Decode of all ids. No delta ends inside a
// UTF-8 character. Both are owned by the output thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token_table.h"
#include "engine/text/tokenizer.h"

namespace diffserve {

class Detokenizer {
 public:
  // `context`: the tokens before the first pushed one. `tokenizer` outlives this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
              std::span<const int32_t> context = {});
  // Returns the text that `id` completes; empty while a character is incomplete. An id outside the
  // vocabulary (a padding row of the model's embedding) has no text.
  std::string Push(int32_t id);
  // Returns the rest of the text. An incomplete character becomes U+FFFD, as in a full decode.
  std::string Finish();
  // Whether the next token with text is the first of the text, so that TokenTable::FirstBytes
  // applies.
  bool at_start() const { return stream_ && stream_->at_start(); }
  // For decoders that do not work token by token: how many of the last ids have text of which
  // nothing was returned yet.
  size_t num_unread() const { return window_.size() - read_; }

 private:
  std::string PushWindow(int32_t id);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::optional<TokenStream> stream_;  // set if the decoder works token by token
  // Otherwise the last ids are decoded twice, without and with the new ones, and the difference is
  // returned.
  std::vector<int32_t> window_;
  size_t read_ = 0;           // ids of the window whose text was returned
  std::string shown_prefix_;  // decoded text of window_[0, read_)
};

// Returns the text of `ids` except an incomplete character at its end, which belongs to the text
// after it. Error: as Tokenizer::Decode.
Result<std::string> TextBefore(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                               bool skip_special_tokens);

class StopMatcher {
 public:
  // Empty stop strings match nothing.
  StopMatcher(std::vector<std::string> stops, bool include_stop_in_output);
  struct Piece {
    std::string text;               // text that can be returned now
    std::optional<size_t> matched;  // index of the stop string that ended the text
  };
  // The stop string that is complete first wins; if two end together, the longer one wins. The
  // split of the text into deltas makes no difference. With `may_stop` false (below min_tokens), a
  // stop string that ends within `delta` is ordinary text. REQUIRES: no match so far.
  Piece Push(std::string_view delta, bool may_stop = true);
  // Returns the held-back text when the sequence ends without a match.
  std::string Finish();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // [i]: length of the longest proper border of text[0, i] (Knuth,
                                  // Morris, Pratt)
    size_t matched = 0;           // length of its longest prefix that is a suffix of the text
  };
  static void Advance(Stop& stop, char c);

  std::vector<Stop> stops_;
  bool include_stop_in_output_;
  std::string held_;  // the longest suffix of the text that is a prefix of a stop string
};

}  // namespace diffserve
