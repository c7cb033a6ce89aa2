// GrammarCompiler: what a client's answer has to look like (JSON of a schema, a regular expression,
// a grammar) made a TokenConstraint over the model's vocabulary (the Rust crate `llguidance`).
// Compiled grammars are kept by their text within a byte budget, so the same one is compiled once.
// Thread safety: every method may be called from any thread; text threads do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/token_constraint.h"
#include "kernels/base/status.h"

namespace diffserve {

struct GrammarSpec {
  enum class Kind {
    kJsonObject,     // any JSON object; `text` is empty
    kJsonSchema,     // `text` is a JSON schema of draft 4 to 2020-12, or OpenAPI's
    kRegex,          // the whole answer matches
    kChoice,         // `text` is a JSON list of strings, one of which is the answer
    kLark,           // llguidance's Lark, which may embed %json { } and %regex { }
    kEbnf,           // GBNF, as llama.cpp and SGLang have it, with `root`
    kStructuralTag,  // `text` is {"format": ...}, or {"structures": [...], "triggers": [...]}
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  const char* param = "response_format";  // as the client calls it, for errors
};

// What comes before an answer's first token.
struct AnswerStart {
  bool skip_special_tokens = true;
  bool opens_text = false;           // no text does
  std::string incomplete_character;  // its bytes so far, with which the answer begins if it can
};

struct GrammarLimits {
  size_t max_text_bytes = 256 << 10;
  size_t max_compiled_bytes = size_t{64} << 20;  // of one
  float max_compile_s = 1;
  size_t max_cache_bytes = size_t{256} << 20;
  size_t max_whitespace = 20;  // characters in a run of it between JSON's tokens
};

class GrammarCompiler {
 public:
  // `tokenizer` outlives it. `eos_token_ids`: where the text may end, these may be drawn; at least
  // one.
  static Result<std::unique_ptr<GrammarCompiler>> Make(const Tokenizer& tokenizer, int vocab_size,
                                                       std::vector<int32_t> eos_token_ids,
                                                       GrammarLimits limits = {});
  ~GrammarCompiler();

  // Error: kInvalidArgument with spec.param and the reason: what does not parse, what asks for
  // more than the limits, what no text can satisfy, and each keyword of a schema that is neither
  // enforced nor an annotation, by name and place.
  Result<std::unique_ptr<TokenConstraint>> Compile(const GrammarSpec& spec,
                                                   const AnswerStart& start = {});

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
