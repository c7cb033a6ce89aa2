// SPDX-License-Identifier: Apache-2.0
#include "engine/text/tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/text/bytes_ffi.h"
#include "engine/text/token_files.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"

namespace diffserve {
namespace {

template <typename T>
std::vector<T> Take(const diffserve_ffi::FfiIds& ids) {
  std::vector<T> copy(ids.data, ids.data + ids.size);
  diffserve_ffi::ffi_ids_free(ids);
  return copy;
}

}  // namespace

Status NoTokenizer(std::string_view what, std::string param) {
  return InvalidArgument("this model has no tokenizer.json, which " + std::string(what) +
                             " needs; send token ids to /inference/v1/generate, /v1/completions, "
                             "/v1/attention, /pooling or /v1/embeddings",
                         std::move(param));
}

struct Tokenizer::Impl {
  explicit Impl(diffserve_ffi::FfiTokenizer* loaded) : handle(loaded) {}
  ~Impl() { diffserve_ffi::ffi_tokenizer_free(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // False on failure, with the reason in `error`.
  bool FillTable(std::string& error);

  diffserve_ffi::FfiTokenizer* const handle;
  TokenTable table;
  size_t max_token_bytes = 0;
  std::optional<int32_t> eos;
};

bool Tokenizer::Impl::FillTable(std::string& error) {
  diffserve_ffi::FfiTokenTable made{};
  diffserve_ffi::FfiBytes message{};
  if (!diffserve_ffi::ffi_tokenizer_table(handle, &made, &message)) {
    error = Take(message);
    return false;
  }
  table.bytes = Take(made.bytes);
  table.ends = Take<uint32_t>(made.ends);
  table.first_bytes = Take(made.first_bytes);
  table.first_ends = Take<uint32_t>(made.first_ends);
  table.flags = Take(made.flags);
  table.decoding = made.decoding == 1   ? TokenTable::Decoding::kCharacters
                   : made.decoding == 2 ? TokenTable::Decoding::kBytes
                                        : TokenTable::Decoding::kLibrary;
  max_token_bytes = made.max_token_bytes;
  if (made.eos >= 0) eos = static_cast<int32_t>(made.eos);
  return true;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const Result<TokenFiles> files = TokenFiles::Read(model_dir);
  if (!files.ok()) return files.status();
  if (files->tokenizer.empty())
    return Status(StatusCode::kNotFound, model_dir + "/tokenizer.json: no such file");
  diffserve_ffi::FfiBytes message{};
  diffserve_ffi::FfiTokenizer* handle = diffserve_ffi::ffi_tokenizer_load(files->ffi(), &message);
  if (handle == nullptr) return InvalidArgument(model_dir + "/" + Take(message));
  auto impl = std::make_unique<Impl>(handle);
  std::string error;
  if (!impl->FillTable(error)) return InvalidArgument(model_dir + "/" + error);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::unique_ptr<Tokenizer> Tokenizer::Missing() {
  auto impl = std::make_unique<Impl>(nullptr);
  impl->table.decoding = TokenTable::Decoding::kBytes;
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::LoadIfPresent(const std::string& model_dir) {
  Result<std::unique_ptr<Tokenizer>> loaded = Load(model_dir);
  if (loaded.ok() || loaded.status().code() != StatusCode::kNotFound) return loaded;
  std::error_code error;
  const auto place = std::filesystem::symlink_status(model_dir + "/tokenizer.json", error);
  if (std::filesystem::exists(place)) return loaded;  // a link to nothing
  Log(LogLevel::kWarning, "tokenizer_missing",
      {{"reason", loaded.status().message()}, {"served", "token ids only"}});
  return Missing();
}

bool Tokenizer::is_missing() const { return impl_->handle == nullptr; }

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (is_missing()) return NoTokenizer("text");
  diffserve_ffi::FfiIds ids{};
  diffserve_ffi::FfiBytes message{};
  if (!diffserve_ffi::ffi_tokenizer_encode(
          impl_->handle, Borrow(text),
          {options.add_special_tokens, options.guard, options.max_tokens}, &ids, &message)) {
    return InvalidArgument(Take(message));
  }
  return Take<int32_t>(ids);
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                      bool skip_special_tokens) const {
  if (is_missing()) return NoTokenizer("text");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!impl_->table.Contains(ids[i])) {
      return NotAllowed("token " + std::to_string(i) + " is " + std::to_string(ids[i]),
                        RangeText(0, vocab_size() - 1), "tokens");
    }
  }
  std::string text;
  if (impl_->table.decoding != TokenTable::Decoding::kLibrary) {
    TokenStream stream(impl_->table, skip_special_tokens);
    for (const int32_t id : ids) stream.Push(id, text);
    stream.Finish(text);
    return text;
  }
  const std::vector<uint32_t> unsigned_ids(ids.begin(), ids.end());
  diffserve_ffi::FfiBytes decoded{};
  diffserve_ffi::FfiBytes message{};
  if (!diffserve_ffi::ffi_tokenizer_decode(impl_->handle, unsigned_ids.data(), unsigned_ids.size(),
                                           skip_special_tokens, &decoded, &message)) {
    return InvalidArgument(Take(message), "tokens");
  }
  return Take(decoded);
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  return impl_->table.Contains(id) ? std::string(impl_->table.Bytes(id)) : std::string();
}

std::string Tokenizer::FirstTokenBytes(int32_t id) const {
  return impl_->table.Contains(id) ? std::string(impl_->table.FirstBytes(id)) : std::string();
}

bool Tokenizer::IsSpecial(int32_t id) const { return impl_->table.IsSpecial(id); }
std::optional<int32_t> Tokenizer::eos_token_id() const { return impl_->eos; }
int Tokenizer::vocab_size() const { return static_cast<int>(impl_->table.ends.size()); }
size_t Tokenizer::max_token_bytes() const { return impl_->max_token_bytes; }
const TokenTable& Tokenizer::table() const { return impl_->table; }
const diffserve_ffi::FfiTokenizer* Tokenizer::ffi() const { return impl_->handle; }

}  // namespace diffserve
