#include "engine/text/grammar.h"

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "diffserve_text_ffi.h"
#include "kernels/base/memory_reserve.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// What the library takes at most while it compiles, beside what stays.
constexpr size_t kCompileBytes = size_t{32} << 20;
constexpr size_t kMatcherBytes = size_t{1} << 20;  // of a copy, as it grows from token to token

std::string Take(const diffserve_ffi::FfiBytes& bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
  diffserve_ffi::ffi_bytes_free(bytes);
  return text;
}

diffserve_ffi::FfiStr Borrow(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

struct FreeMatcher {
  void operator()(diffserve_ffi::FfiMatcher* matcher) const {
    diffserve_ffi::ffi_matcher_free(matcher);
  }
};
using MatcherHandle = std::unique_ptr<diffserve_ffi::FfiMatcher, FreeMatcher>;

MatcherHandle CloneOf(const diffserve_ffi::FfiMatcher* matcher) {
  RequireMemory(kMatcherBytes);
  const WorksForAllRequests uses_the_reserve;  // without memory the library ends the process
  diffserve_ffi::FfiBytes message{};
  MatcherHandle copy(diffserve_ffi::ffi_matcher_clone(matcher, &message));
  DS_CHECK(copy != nullptr, Take(message));
  return copy;
}

class GrammarConstraint : public TokenConstraint {
 public:
  explicit GrammarConstraint(MatcherHandle matcher) : matcher_(std::move(matcher)) {}

  Status Fill(std::span<uint32_t> mask) override {
    const WorksForAllRequests uses_the_reserve;
    diffserve_ffi::FfiBytes message{};
    if (diffserve_ffi::ffi_matcher_fill(matcher_.get(), mask.data(), mask.size(), &message))
      return {};
    return Failed("no token may come", message);
  }

  Status Accept(int32_t token) override {
    const WorksForAllRequests uses_the_reserve;
    diffserve_ffi::FfiBytes message{};
    if (diffserve_ffi::ffi_matcher_accept(matcher_.get(), static_cast<uint32_t>(token), &message))
      return {};
    return Failed("token " + std::to_string(token) + " may not come", message);
  }

  void Rollback(int count) override {
    diffserve_ffi::FfiBytes message{};
    DS_CHECK(
        diffserve_ffi::ffi_matcher_rollback(matcher_.get(), static_cast<size_t>(count), &message),
        Take(message));
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<GrammarConstraint>(CloneOf(matcher_.get()));
  }

 private:
  static Status Failed(const std::string& what, const diffserve_ffi::FfiBytes& message) {
    return Status(StatusCode::kInternal,
                  "the grammar of the answer: " + what + ": " + Take(message));
  }

  const MatcherHandle matcher_;
};

}  // namespace

struct GrammarCompiler::Impl {
  // What a text was compiled to. Whoever asks first compiles it, the others wait.
  struct Entry {
    std::mutex copying;     // of the matcher, which one thread at a time may look at
    MatcherHandle matcher;  // null: `error`
    Status error;
    bool done = false;
    size_t bytes = 0;
  };
  using Key = std::pair<GrammarSpec::Kind, std::string>;
  using Lines = std::list<std::pair<Key, std::shared_ptr<Entry>>>;

  ~Impl() { diffserve_ffi::ffi_grammars_free(grammars); }

  std::shared_ptr<Entry> Find(const Key& key);
  void CompileInto(const GrammarSpec& spec, Entry* entry) const;
  void Keep(const Key& key, const std::shared_ptr<Entry>& entry, bool compiled);

  diffserve_ffi::FfiGrammars* grammars = nullptr;
  int vocab_size = 0;
  GrammarLimits limits;

  std::mutex mutex;
  std::condition_variable compiled;
  Lines lines;  // the last asked for first
  std::map<Key, Lines::iterator> by_key;
  Stats stats;
};

// The entry, done; or a new one that the caller must compile and keep.
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
  try {
    by_key[key] = lines.begin();
  } catch (...) {
    lines.pop_front();
    throw;
  }
  return entry;
}

void GrammarCompiler::Impl::CompileInto(const GrammarSpec& spec, Entry* entry) const {
  RequireMemory(kCompileBytes);
  const WorksForAllRequests uses_the_reserve;  // without memory the library ends the process
  const Clock::time_point begin = Clock::now();
  diffserve_ffi::FfiBytes message{};
  MatcherHandle made(diffserve_ffi::ffi_grammars_compile(grammars, static_cast<uint32_t>(spec.kind),
                                                         Borrow(spec.text), limits.max_whitespace,
                                                         &entry->bytes, &message));
  const std::chrono::duration<float> took = Clock::now() - begin;
  if (made == nullptr) {
    entry->error = InvalidArgument(Take(message));
  } else if (entry->bytes > limits.max_compiled_bytes) {
    entry->error = InvalidArgument("it takes " + std::to_string(entry->bytes) + " bytes; at most " +
                                   std::to_string(limits.max_compiled_bytes) + " are allowed");
  } else if (took.count() > limits.max_compile_s) {
    entry->error = InvalidArgument("it takes longer to compile than is allowed, " +
                                   std::to_string(limits.max_compile_s) + " s");
  } else {
    entry->matcher = std::move(made);
  }
  if (entry->matcher == nullptr) entry->bytes = entry->error.message().size();
}

// Also what was refused, so that it costs its time once.
void GrammarCompiler::Impl::Keep(const Key& key, const std::shared_ptr<Entry>& entry,
                                 bool is_compiled) {
  std::lock_guard lock(mutex);
  entry->done = true;
  compiled.notify_all();
  if (!is_compiled) {
    const auto found = by_key.find(key);
    lines.erase(found->second);
    by_key.erase(found);
    return;
  }
  ++stats.compiled;
  entry->bytes += 2 * key.second.size() + sizeof(Entry);
  stats.cache_bytes += entry->bytes;
  for (auto last = lines.end(); stats.cache_bytes > limits.max_cache_bytes;) {
    if (last == lines.begin()) break;
    --last;
    if (!last->second->done) continue;
    stats.cache_bytes -= last->second->bytes;
    by_key.erase(last->first);
    last = lines.erase(last);
  }
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer& tokenizer,
                                                               int vocab_size,
                                                               std::vector<int32_t> eos_token_ids,
                                                               GrammarLimits limits) {
  const TokenTable& table = tokenizer.table();
  if (table.decoding == TokenTable::Decoding::kLibrary) {
    return Status(StatusCode::kUnimplemented,
                  "this model's tokenizer does not say what bytes a token stands for, which "
                  "structured output needs");
  }
  const std::vector<uint32_t> eos(eos_token_ids.begin(), eos_token_ids.end());
  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  impl->vocab_size = vocab_size;
  const WorksForAllRequests uses_the_reserve;
  diffserve_ffi::FfiBytes message{};
  impl->grammars = diffserve_ffi::ffi_grammars_new(
      Borrow(table.bytes), {table.ends.data(), table.ends.size()}, Borrow(table.flags),
      static_cast<size_t>(vocab_size), {eos.data(), eos.size()}, &message);
  if (impl->grammars == nullptr)
    return Status(StatusCode::kUnimplemented, "structured output: " + Take(message));
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::Compile(const GrammarSpec& spec) {
  if (spec.text.size() > impl_->limits.max_text_bytes) {
    return InvalidArgument(std::string(spec.param) + " has " + std::to_string(spec.text.size()) +
                               " bytes; at most " + std::to_string(impl_->limits.max_text_bytes) +
                               " are allowed",
                           spec.param);
  }
  const Impl::Key key(spec.kind, spec.text);
  const std::shared_ptr<Impl::Entry> entry = impl_->Find(key);
  if (!entry->done) {
    try {
      impl_->CompileInto(spec, entry.get());
    } catch (...) {
      entry->error = OutOfMemoryStatus();
      impl_->Keep(key, entry, /*is_compiled=*/false);
      throw;
    }
    impl_->Keep(key, entry, /*is_compiled=*/true);
  }
  if (entry->matcher == nullptr) {
    return Status(entry->error.code(), std::string(spec.param) + ": " + entry->error.message(),
                  spec.param);
  }
  std::lock_guard lock(entry->copying);
  return std::unique_ptr<TokenConstraint>(
      std::make_unique<GrammarConstraint>(CloneOf(entry->matcher.get())));
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace diffserve
