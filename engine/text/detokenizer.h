// Detokenizer: one sequence's stream of ids turned into text deltas, and StopMatcher: holds back
// what may become a stop string. What follows a prompt is decoded as its continuation: TextBefore
// and the concatenated deltas equal Tokenizer::Decode of all ids. No delta ends in half a UTF-8
// character.
// Owned by the output thread.
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
  // `context`: the tokens before the first one that is pushed. `tokenizer` outlives this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
              std::span<const int32_t> context = {});
  // Text that `id` completes; empty while a character is incomplete. An id outside the vocabulary
  // (a row that pads the model's embedding) has no text.
  std::string Push(int32_t id);
  // What is left at the end (an incomplete character becomes U+FFFD, as in a full decode).
  std::string Finish();
  // The next token that has text opens it: it stands for TokenTable::FirstBytes.
  bool at_start() const { return stream_ && stream_->at_start(); }
  // Where the decoder does not work token by token: the last ids, with text, that nothing was shown
  // of.
  size_t num_unread() const { return window_.size() - read_; }

 private:
  std::string PushWindow(int32_t id);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::optional<TokenStream> stream_;  // where the decoder works token by token
  // Else: the last ids are decoded together, once without and once with the new ones, and the
  // difference is shown.
  std::vector<int32_t> window_;
  size_t read_ = 0;           // ids of the window that have been shown
  std::string shown_prefix_;  // decode of window_[0, read_)
};

// The text of `ids` without a character that is incomplete at their end, which belongs to what
// follows. Error: as Tokenizer::Decode.
Result<std::string> TextBefore(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                               bool skip_special_tokens);

class StopMatcher {
 public:
  // Empty stop strings match nothing.
  StopMatcher(std::vector<std::string> stops, bool include_stop_in_output);
  struct Piece {
    std::string text;               // safe to show now
    std::optional<size_t> matched;  // index of the stop string that ended the text
  };
  // The stop string that is complete first wins; of two that end together, the longer one. How the
  // text is cut into deltas makes no difference. `may_stop` false (below min_tokens): a stop string
  // that ends within `delta` is ordinary text. After a match nothing more may be pushed.
  Piece Push(std::string_view delta, bool may_stop = true);
  // The held-back tail, when the sequence ends otherwise.
  std::string Finish();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // [i]: length of the longest proper border of text[0, i] (Knuth,
                                  // Morris, Pratt)
    size_t matched = 0;           // length of its prefix that the text now ends in
  };
  static void Advance(Stop& stop, char c);

  std::vector<Stop> stops_;
  bool include_stop_in_output_;
  std::string held_;  // the longest suffix of the text that is a prefix of a stop string
};

}  // namespace diffserve
