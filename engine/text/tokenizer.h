// SPDX-License-Identifier: Apache-2.0
// Tokenizer: converts between text and token ids, as defined by a model directory's tokenizer.json
// (the Rust crate `tokenizers` behind engine/text/crates). Thread safety: const after Load; all
// methods may run on many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token_table.h"
#include "kernels/base/status.h"

namespace diffserve_ffi {
struct FfiTokenizer;
}

namespace diffserve {

struct EncodeOptions {
  bool add_special_tokens = false;  // whether the post-processor adds BOS and similar tokens (true
                                    // for plain prompts, false after a chat template)
  char32_t guard = 0;               // RenderedChat::guard
  size_t max_tokens = 0;            // once there are more tokens, the rest of the text is skipped;
                                    // 0: no limit
};

// The error for work with text where Tokenizer::is_missing().
Status NoTokenizer(std::string_view what, std::string param = {});

class Tokenizer {
 public:
  // Reads the files of TokenFiles. Error: one line with the file and the reason.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  // That of a model without tokenizer.json: it has no token, and Encode and Decode fail.
  static std::unique_ptr<Tokenizer> Missing();
  // Missing() with a warning in the log if there is no tokenizer.json, else as Load.
  static Result<std::unique_ptr<Tokenizer>> LoadIfPresent(const std::string& model_dir);
  bool is_missing() const;
  ~Tokenizer();

  // Takes time linear in the text for every pattern that models use; the caller limits the length.
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const;
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const {
    return Encode(text, {.add_special_tokens = add_special_tokens});
  }
  // Upper bound of the text bytes that one token covers: a text has at least bytes /
  // max_token_bytes tokens. 0: no bound for this vocabulary.
  size_t max_token_bytes() const;
  // Decodes as transformers does without clean-up, with one exception: where byte tokens (<0xNN>)
  // mix whole and broken characters in one run, the whole ones are kept, so that they can be
  // streamed. Error: an id outside the vocabulary.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  // The bytes of a token inside a text (TokenBytes) or at its start (FirstTokenBytes), for
  // logprobs. They may be part of a UTF-8 character. Empty for an id without a token.
  std::string TokenBytes(int32_t id) const;
  std::string FirstTokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // The id of the eos_token in the files; nullopt: they name none, or the vocabulary lacks it.
  std::optional<int32_t> eos_token_id() const;
  int vocab_size() const;  // including added tokens: ids 0 .. vocab_size - 1
  const TokenTable& table() const;
  const diffserve_ffi::FfiTokenizer* ffi() const;  // for ChatTemplate; nullptr: it is missing

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
