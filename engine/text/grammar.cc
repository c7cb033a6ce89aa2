// SPDX-License-Identifier: Apache-2.0
#include "engine/text/grammar.h"

#include <algorithm>
#include <compare>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "engine/text/bytes_ffi.h"
#include "engine/text/large_stack.h"
#include "kernels/base/refusal.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

struct FreeMatcher {
  void operator()(diffserve_ffi::FfiMatcher* matcher) const {
    diffserve_ffi::ffi_matcher_free(matcher);
  }
};
using MatcherHandle = std::unique_ptr<diffserve_ffi::FfiMatcher, FreeMatcher>;

struct FreeGrammars {
  void operator()(diffserve_ffi::FfiGrammars* grammars) const {
    diffserve_ffi::ffi_grammars_free(grammars);
  }
};
using GrammarsHandle = std::unique_ptr<diffserve_ffi::FfiGrammars, FreeGrammars>;

struct TokenSpellings {
  std::string bytes;
  std::vector<uint32_t> ends;  // [vocab] as in TokenTable
};

// Tokens of whitespace become empty.
TokenSpellings WithoutSpaces(const TokenSpellings& tokens) {
  TokenSpellings out;
  uint32_t begin = 0;
  for (const uint32_t end : tokens.ends) {
    std::string_view token(tokens.bytes.data() + begin, end - begin);
    token.remove_prefix(std::min(token.find_first_not_of(" \t\n\r"), token.size()));
    out.bytes += token;
    out.ends.push_back(static_cast<uint32_t>(out.bytes.size()));
    begin = end;
  }
  return out;
}

MatcherHandle CloneOf(const diffserve_ffi::FfiMatcher* matcher) {
  diffserve_ffi::FfiBytes message{};
  MatcherHandle copy(diffserve_ffi::ffi_matcher_clone(matcher, &message));
  DS_CHECK(copy != nullptr, Take(message));
  return copy;
}

Status CheckWhitespace(const GrammarSpec& spec) {
  diffserve_ffi::FfiBytes message{};
  if (!spec.whitespace || diffserve_ffi::ffi_whitespace_check(Borrow(*spec.whitespace), &message))
    return {};
  return InvalidArgument(std::string(spec.whitespace_param) + " " + Take(message),
                         spec.whitespace_param);
}

class GrammarConstraint : public TokenConstraint {
 public:
  explicit GrammarConstraint(MatcherHandle matcher) : matcher_(std::move(matcher)) {}

  Status Fill(std::span<uint32_t> mask) override {
    diffserve_ffi::FfiBytes message{};
    if (diffserve_ffi::ffi_matcher_fill(matcher_.get(), mask.data(), mask.size(), &message))
      return {};
    return Failed("no token may come", message);
  }

  Status Accept(int32_t token) override { return Accept(token, /*masked=*/true); }
  // Accepts a token that another constraint's mask allowed.
  Status AcceptUnmasked(int32_t token) { return Accept(token, /*masked=*/false); }

  Status AcceptBytes(std::string_view bytes) override {
    diffserve_ffi::FfiBytes message{};
    if (diffserve_ffi::ffi_matcher_accept_bytes(matcher_.get(), Borrow(bytes), &message)) return {};
    return Failed("a text may not begin so", message);
  }

  std::vector<int32_t> Forced(int limit) const override {
    std::vector<int32_t> tokens(static_cast<size_t>(std::max(0, limit)));
    diffserve_ffi::FfiBytes message{};
    tokens.resize(
        diffserve_ffi::ffi_matcher_forced(matcher_.get(), tokens.data(), tokens.size(), &message));
    Take(message);
    return tokens;
  }

  std::unique_ptr<TokenConstraint> Clone() const override { return Copy(); }
  std::unique_ptr<GrammarConstraint> Copy() const {
    return std::make_unique<GrammarConstraint>(CloneOf(matcher_.get()));
  }

 private:
  Status Accept(int32_t token, bool masked) {
    diffserve_ffi::FfiBytes message{};
    if (diffserve_ffi::ffi_matcher_accept(matcher_.get(), static_cast<uint32_t>(token), masked,
                                          &message))
      return {};
    return Failed("token " + std::to_string(token) + " may not come", message);
  }
  static Status Failed(const std::string& what, const diffserve_ffi::FfiBytes& message) {
    return Status(StatusCode::kInternal,
                  "the grammar of the answer: " + what + ": " + Take(message));
  }

  const MatcherHandle matcher_;
};

// The constraint of an answer that opens a text. `opening` uses the bytes that tokens have there
// and applies until a token has text; `rest` then receives that token's bytes and applies.
class OpeningConstraint : public TokenConstraint {
 public:
  OpeningConstraint(const Tokenizer& tokenizer, int vocab_size, bool skip_special_tokens,
                    std::unique_ptr<GrammarConstraint> opening,
                    std::unique_ptr<GrammarConstraint> rest)
      : table_(tokenizer.table()),
        vocab_size_(vocab_size),
        skip_special_tokens_(skip_special_tokens),
        opening_(std::move(opening)),
        rest_(std::move(rest)) {}

  Status Fill(std::span<uint32_t> mask) override {
    if (opened_) return rest_->Fill(mask);
    const Status status = opening_->Fill(mask);
    if (!status.ok()) std::ranges::fill(mask, 0u);
    bool any = status.ok();
    for (int32_t id = 0; id < std::min(vocab_size_, static_cast<int>(table_.ends.size())); ++id) {
      if (!IsOnlyTheSpace(id)) continue;
      mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      any = true;
    }
    return any ? Status() : status;
  }

  Status Accept(int32_t token) override {
    if (opened_) return rest_->Accept(token);
    if (!IsOnlyTheSpace(token)) DS_RETURN_IF_ERROR(opening_->Accept(token));
    if (!table_.HasText(token, skip_special_tokens_) || table_.IsSpecial(token))
      return rest_->AcceptUnmasked(token);
    DS_RETURN_IF_ERROR(rest_->AcceptBytes(table_.FirstBytes(token)));
    opened_ = true;
    return {};
  }

  std::vector<int32_t> Forced(int limit) const override {
    return opened_ ? rest_->Forced(limit) : std::vector<int32_t>();
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::unique_ptr<TokenConstraint>(new OpeningConstraint(*this));
  }

 private:
  OpeningConstraint(const OpeningConstraint& other)
      : table_(other.table_),
        vocab_size_(other.vocab_size_),
        skip_special_tokens_(other.skip_special_tokens_),
        opening_(other.opening_->Copy()),
        rest_(other.rest_->Copy()),
        opened_(other.opened_) {}

  // Whether the token has text elsewhere but none at the start of a text. Such a token is always
  // allowed there.
  bool IsOnlyTheSpace(int32_t id) const {
    return table_.HasText(id, skip_special_tokens_) && table_.FirstBytes(id).empty();
  }

  const TokenTable& table_;
  const int vocab_size_;
  const bool skip_special_tokens_;
  const std::unique_ptr<GrammarConstraint> opening_;
  const std::unique_ptr<GrammarConstraint> rest_;
  bool opened_ = false;  // a token with text has come
};

}  // namespace

struct GrammarCompiler::Impl {
  // Where a grammar's first token comes: within a text, at its start, or after whitespace that it
  // may have brought along.
  enum class Place { kWithin, kOpening, kAfterSpaces };
  // The compiled form of a text. The first caller compiles it; the others wait.
  struct Entry {
    std::mutex copying;     // guards `matcher` while it is copied
    MatcherHandle matcher;  // null: see `error`
    Status error;
    std::string no_first_token;  // why no first token is possible; empty: some are
    bool done = false;
    size_t bytes = 0;
  };
  struct Key {
    std::string client;
    GrammarSpec::Kind kind;
    Place place;
    std::string text;
    std::optional<std::string> whitespace;
    auto operator<=>(const Key&) const = default;
  };
  using Lines = std::list<std::pair<Key, std::shared_ptr<Entry>>>;

  Impl(const Tokenizer& its_tokenizer, int its_vocab_size, std::vector<int32_t> eos,
       GrammarLimits its_limits)
      : tokenizer(its_tokenizer),
        vocab_size(its_vocab_size),
        eos_token_ids(std::move(eos)),
        limits(its_limits) {}

  // The library's tables of token bytes at this place, built on first use.
  Result<const diffserve_ffi::FfiGrammars*> Grammars(Place place);
  Result<std::shared_ptr<Entry>> Compiled(const GrammarSpec& spec, Place place,
                                          const std::string& client);
  std::shared_ptr<Entry> Find(const Key& key);
  void CompileInto(const GrammarSpec& spec, Place place, Entry* entry);
  void Keep(const Key& key, const std::shared_ptr<Entry>& entry);
  bool DropOne();

  const Tokenizer& tokenizer;
  const int vocab_size;
  const std::vector<int32_t> eos_token_ids;
  const GrammarLimits limits;
  std::mutex grammars_mutex;
  std::map<Place, GrammarsHandle> grammars;  // by place, made when first used

  std::mutex mutex;
  std::condition_variable compiled;
  Lines lines;  // most recently used first
  std::map<Key, Lines::iterator> by_key;
  std::map<std::string, size_t> bytes_of;  // of each client, in finished entries
  Stats stats;
};

// Returns the finished entry, or a new one that the caller must compile and pass to Keep.
std::shared_ptr<GrammarCompiler::Impl::Entry> GrammarCompiler::Impl::Find(const Key& key) {
  std::unique_lock lock(mutex);
  if (const auto found = by_key.find(key); found != by_key.end()) {
    lines.splice(lines.begin(), lines, found->second);
    std::shared_ptr<Entry> entry = found->second->second;
    compiled.wait(lock, [&entry] { return entry->done; });
    ++stats.cache_hits;
    return entry;
  }
  auto entry = std::make_shared<Entry>();
  lines.emplace_front(key, entry);
  by_key[key] = lines.begin();
  return entry;
}

Result<const diffserve_ffi::FfiGrammars*> GrammarCompiler::Impl::Grammars(Place place) {
  std::lock_guard lock(grammars_mutex);
  GrammarsHandle& made = grammars[place];
  if (made != nullptr) return made.get();
  const TokenTable& table = tokenizer.table();
  TokenSpellings tokens{place == Place::kOpening ? table.first_bytes : table.bytes,
                        place == Place::kOpening ? table.first_ends : table.ends};
  if (place == Place::kAfterSpaces) tokens = WithoutSpaces(tokens);
  const std::vector<uint32_t> eos(eos_token_ids.begin(), eos_token_ids.end());
  diffserve_ffi::FfiBytes message{};
  made.reset(diffserve_ffi::ffi_grammars_new(
      Borrow(tokens.bytes), {tokens.ends.data(), tokens.ends.size()}, Borrow(table.flags),
      static_cast<size_t>(vocab_size), {eos.data(), eos.size()}, &message));
  if (made != nullptr) return made.get();
  return Status(StatusCode::kUnimplemented, "structured output: " + Take(message));
}

void GrammarCompiler::Impl::CompileInto(const GrammarSpec& spec, Place place, Entry* entry) {
  const Result<const diffserve_ffi::FfiGrammars*> grammars = Grammars(place);
  if (!grammars.ok()) {
    entry->error = grammars.status();
    return;
  }
  diffserve_ffi::FfiBytes message{}, no_first_token{};
  MatcherHandle made;
  const diffserve_ffi::FfiStr whitespace = Borrow(
      spec.whitespace ? std::string_view(*spec.whitespace) : std::string_view());
  entry->error = RunOnLargeStack([&] {
    made.reset(diffserve_ffi::ffi_grammars_compile(
        *grammars, static_cast<uint32_t>(spec.kind), Borrow(spec.text),
        spec.whitespace ? &whitespace : nullptr, &entry->bytes, &no_first_token, &message));
  });
  if (!entry->error.ok()) return;
  entry->no_first_token = Take(no_first_token);
  if (made == nullptr) {
    entry->error = InvalidArgument(Take(message));
  } else if (entry->bytes > limits.max_compiled_bytes) {
    entry->error = NotAllowed("it takes " + std::to_string(entry->bytes) + " bytes",
                              "at most " + std::to_string(limits.max_compiled_bytes));
  } else {
    entry->matcher = std::move(made);
  }
  if (entry->matcher == nullptr) entry->bytes = entry->error.message().size();
}

// Publishes the entry and keeps it in the cache. Refused texts are kept too, so that their error
// costs its time once; a text for which the machine had no thread is not.
void GrammarCompiler::Impl::Keep(const Key& key, const std::shared_ptr<Entry>& entry) {
  std::lock_guard lock(mutex);
  entry->done = true;
  compiled.notify_all();
  if (entry->error.code() == StatusCode::kResourceExhausted) {
    lines.erase(by_key[key]);
    by_key.erase(key);
    return;
  }
  ++stats.compiled;
  entry->bytes += 2 * (key.text.size() + key.client.size()) + sizeof(Entry);
  stats.cache_bytes += entry->bytes;
  bytes_of[key.client] += entry->bytes;
  while (stats.cache_bytes > limits.max_cache_bytes && DropOne()) {
  }
}

// Drops what the client that holds most has used least recently. False if nothing is finished.
bool GrammarCompiler::Impl::DropOne() {
  const auto most = std::ranges::max_element(bytes_of, {},
                                             [](const auto& of) { return of.second; });
  if (most == bytes_of.end()) return false;
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [&most](const auto& line) {
    return line.second->done && line.first.client == most->first;
  });
  DS_CHECK(last != lines.rend(), "a client with bytes has an entry");
  const size_t bytes = last->second->bytes;
  stats.cache_bytes -= bytes;
  most->second -= bytes;
  if (most->second == 0) bytes_of.erase(most);
  by_key.erase(last->first);
  lines.erase(std::prev(last.base()));
  return true;
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer& tokenizer,
                                                               int vocab_size,
                                                               std::vector<int32_t> eos_token_ids,
                                                               GrammarLimits limits) {
  const TokenTable& table = tokenizer.table();
  if (table.decoding == TokenTable::Decoding::kLibrary) {
    return Status(
        StatusCode::kUnimplemented,
        "this model's tokenizer does not define the bytes of each token, which structured "
        "output needs");
  }
  auto impl = std::make_unique<Impl>(tokenizer, vocab_size, std::move(eos_token_ids), limits);
  const auto within = impl->Grammars(Impl::Place::kWithin);
  if (!within.ok()) return within.status();
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

Result<std::shared_ptr<GrammarCompiler::Impl::Entry>> GrammarCompiler::Impl::Compiled(
    const GrammarSpec& spec, Place place, const std::string& client) {
  const Key key{client, spec.kind, place, spec.text, spec.whitespace};
  std::shared_ptr<Entry> entry = Find(key);
  if (!entry->done) {
    CompileInto(spec, place, entry.get());
    Keep(key, entry);
  }
  if (entry->matcher != nullptr) return entry;
  if (entry->error.code() == StatusCode::kResourceExhausted) return entry->error;
  return Status(entry->error.code(), std::string(spec.param) + ": " + entry->error.message(),
                spec.param);
}

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::Compile(const GrammarSpec& spec,
                                                                  const AnswerStart& start,
                                                                  const std::string& client) {
  const GrammarLimits& limits = impl_->limits;
  const size_t max_bytes = spec.is_of_tools ? limits.max_tools_text_bytes : limits.max_text_bytes;
  if (spec.text.size() > max_bytes) {
    return TooMany(spec.param, spec.text.size(), "bytes", max_bytes);
  }
  DS_RETURN_IF_ERROR(CheckWhitespace(spec));
  const auto copy_of = [](Impl::Entry& entry) {
    std::lock_guard lock(entry.copying);
    return std::make_unique<GrammarConstraint>(CloneOf(entry.matcher.get()));
  };
  if (start.after_spaces) {
    const auto after = impl_->Compiled(spec, Impl::Place::kAfterSpaces, client);
    if (!after.ok()) return after.status();
    return std::unique_ptr<TokenConstraint>(copy_of(**after));
  }
  const auto within = impl_->Compiled(spec, Impl::Place::kWithin, client);
  if (!within.ok()) return within.status();
  std::unique_ptr<GrammarConstraint> constraint = copy_of(**within);
  if (start.opens_text && !impl_->tokenizer.table().first_ends.empty()) {
    const auto opening = impl_->Compiled(spec, Impl::Place::kOpening, client);
    if (!opening.ok()) return opening.status();
    auto made = std::make_unique<OpeningConstraint>(impl_->tokenizer, impl_->vocab_size,
                                                    start.skip_special_tokens, copy_of(**opening),
                                                    std::move(constraint));
    std::vector<uint32_t> mask(MaskWords(impl_->vocab_size));
    if (made->Fill(mask).ok()) return std::unique_ptr<TokenConstraint>(std::move(made));
    return InvalidArgument(std::string(spec.param) + ": " + (*opening)->no_first_token, spec.param);
  }
  if (!(*within)->no_first_token.empty()) {
    return InvalidArgument(std::string(spec.param) + ": " + (*within)->no_first_token, spec.param);
  }
  // If no allowed text continues the incomplete character, it stays broken and the answer begins
  // after it.
  if (!constraint->AcceptBytes(start.incomplete_character).ok()) constraint = copy_of(**within);
  return std::unique_ptr<TokenConstraint>(std::move(constraint));
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace diffserve
