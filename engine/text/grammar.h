// SPDX-License-Identifier: Apache-2.0
// GrammarCompiler: compiles the required form of an answer (a JSON schema, a regular expression, a
// grammar) to a TokenConstraint over the model's vocabulary, with the Rust crate `llguidance`.
// Compiled grammars are cached by client and text within a byte budget, so the time of an answer
// tells nothing of another client's. Thread safety: every method may be called from any thread;
// text threads call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/contract/token_constraint.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/status.h"

namespace diffserve {

struct GrammarSpec {
  enum class Kind {
    kJsonObject,     // any JSON object; `text` is empty
    kJsonSchema,     // `text` is a JSON schema, draft 4 to 2020-12 or OpenAPI
    kRegex,          // `text` is a pattern that the whole answer matches
    kChoice,         // `text` is a JSON list of strings; the answer is one of them
    kLark,           // llguidance's Lark dialect, which may embed %json { } and %regex { }
    kEbnf,           // GBNF with a rule `root`, as in llama.cpp and SGLang
    kStructuralTag,  // `text` is {"format": ...}, or {"structures": [...], "triggers": [...]}
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  const char* param = "response_format";  // the client's name of the field, for errors
  bool is_of_tools = false;               // made from the schemas of many tools
  // In JSON of schemas: a pattern for the whitespace between two tokens, where none may be too;
  // nullopt: a space, or a line end, an empty line at most, and an indent.
  std::optional<std::string> whitespace = {};
  const char* whitespace_param = "whitespace_pattern";
};

// The context of an answer's first token.
struct AnswerStart {
  bool skip_special_tokens = true;
  bool opens_text = false;                // no text comes before it
  bool after_spaces = false;              // no token has the whitespace that it begins with
  std::string incomplete_character = {};  // first bytes of a character that the prompt leaves
                                          // incomplete; the answer completes it if it can
};

struct GrammarLimits {
  size_t max_text_bytes = 256 << 10;
  size_t max_tools_text_bytes = 2 << 20;
  size_t max_compiled_bytes = size_t{64} << 20;  // per grammar
  size_t max_cache_bytes = size_t{256} << 20;    // beyond it, the client that holds most loses
};

class GrammarCompiler {
 public:
  // `tokenizer` outlives this. `eos_token_ids` may be drawn where the text may end; at least one.
  static Result<std::unique_ptr<GrammarCompiler>> Make(const Tokenizer& tokenizer, int vocab_size,
                                                       std::vector<int32_t> eos_token_ids,
                                                       GrammarLimits limits = {});
  ~GrammarCompiler();

  // Error: kInvalidArgument with spec.param and the reason: the text does not parse, exceeds the
  // limits, or cannot be satisfied. For a schema, the error also names each keyword that is neither
  // enforced nor an annotation, with its location. `client`: a ClientName.
  Result<std::unique_ptr<TokenConstraint>> Compile(const GrammarSpec& spec,
                                                   const AnswerStart& start = {},
                                                   const std::string& client = {});

  struct Stats {
    uint64_t compiled = 0;
    uint64_t cache_hits = 0;
    size_t cache_bytes = 0;
  };
  Stats stats() const;

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
