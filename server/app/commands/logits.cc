// SPDX-License-Identifier: Apache-2.0
// `diffserve logits`: the logits of every position of one prompt, through the model, KV pages and
// chunks that the server uses. The pages are numbered in order here, since one sequence needs no
// pool.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <system_error>

#include "kernels/base/refusal.h"
#include "kernels/process/terminal_text.h"
#include "server/app/commands/commands.h"
#include "server/app/commands/prompt_input.h"
#include "server/app/session/model_session.h"

namespace diffserve {
namespace {

static_assert(std::endian::native == std::endian::little, "the .npy header says little-endian");

// A .npy file (format 1.0) of float32 [rows, columns], written row by row. One that is not closed
// is removed, unless its path is a link, a device or a pipe.
class NpyFile {
 public:
  static Result<NpyFile> Create(const std::string& path, int64_t rows, int64_t columns) {
    NpyFile npy(path, std::fopen(path.c_str(), "wb"));
    if (npy.file_ == nullptr)
      return InvalidArgument("--output " + path + ": " + std::strerror(errno), "--output");
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                         std::to_string(rows) + ", " + std::to_string(columns) + "), }";
    constexpr size_t kPrefixBytes = 10;
    header.resize((kPrefixBytes + header.size() + 1 + 63) / 64 * 64 - kPrefixBytes - 1, ' ');
    header += '\n';
    const auto size = static_cast<uint16_t>(header.size());
    const char prefix[kPrefixBytes] = {'\x93',
                                       'N',
                                       'U',
                                       'M',
                                       'P',
                                       'Y',
                                       1,
                                       0,
                                       static_cast<char>(size & 0xff),
                                       static_cast<char>(size >> 8)};
    const bool written = std::fwrite(prefix, 1, kPrefixBytes, npy.file_.get()) == kPrefixBytes &&
                         std::fwrite(header.data(), 1, header.size(), npy.file_.get()) ==
                             header.size();
    if (!written) return npy.WriteFailed();
    return npy;
  }

  Status Append(std::span<const float> values) {
    return std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) == values.size()
               ? Status()
               : WriteFailed();
  }
  Status Close() {
    if (std::fflush(file_.get()) != 0) return WriteFailed();
    return std::fclose(file_.release()) == 0 ? Status() : WriteFailed();
  }

 private:
  struct RemoveFile {
    void operator()(std::FILE* file) const {
      std::fclose(file);
      std::error_code ignored;
      if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
        std::filesystem::remove(path, ignored);
    }
    std::string path;
  };
  NpyFile(std::string path, std::FILE* file) : path_(path), file_(file, RemoveFile{path}) {}
  Status WriteFailed() const {
    return InvalidArgument(path_ + ": cannot be written: " + std::strerror(errno));
  }

  std::string path_;
  std::unique_ptr<std::FILE, RemoveFile> file_;
};

// The token that the last row rates highest, with its text if the model has a tokenizer.
std::string NextToken(std::span<const float> row, const Tokenizer* tokenizer) {
  const auto best = std::ranges::max_element(row);
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - *best);
  const auto id = static_cast<int32_t>(best - row.begin());
  char probability[32];
  std::snprintf(probability, sizeof(probability), "%.3f", 1 / sum);
  const std::string text = tokenizer == nullptr
                               ? std::string()
                               : " \"" + QuotedOnTerminal(tokenizer->TokenBytes(id)) + "\"";
  return std::to_string(id) + text + ", probability " + probability;
}

// Not checked against the vocabulary.
Result<std::vector<int32_t>> ReadPrompt(const PromptOptions& prompt, const Tokenizer* tokenizer) {
  if (!prompt.text.empty()) return tokenizer->Encode(prompt.text, /*add_special_tokens=*/true);
  return PromptTokenIds(prompt, std::numeric_limits<int32_t>::max());
}

}  // namespace

Status RunLogits(const SessionOptions& options, const PromptOptions& prompt,
                 const LogitsOptions& logits_options) {
  const bool is_text = !prompt.text.empty();
  const Result<std::unique_ptr<Tokenizer>> loaded_text = LoadTokenizer(options.model_dir, is_text);
  if (is_text && !loaded_text.ok()) return loaded_text.status();
  const Tokenizer* const tokenizer = loaded_text.ok() ? loaded_text->get() : nullptr;
  const Result<std::vector<int32_t>> read = ReadPrompt(prompt, tokenizer);
  if (!read.ok()) return read.status();
  const std::vector<int32_t>& tokens = *read;
  const auto count = static_cast<int64_t>(tokens.size());
  SessionNeeds needs;
  needs.kv = [count](int, int) { return KvDemand{count, count}; };
  needs.sequences = 1;
  needs.has_window_pages = false;
  Result<SessionPlan> plan = PlanSession(options, needs);
  if (!plan.ok()) return plan.status();
  const int vocab_size = plan->summary.config.vocab_size;
  DS_RETURN_IF_ERROR(CheckIds(tokens, vocab_size, is_text ? "--prompt" : kTokensFlag));
  if (count > plan->engine.max_model_len) {
    return NotAllowed("the prompt has " + std::to_string(count) + " tokens",
                      RangeText(1, plan->engine.max_model_len));
  }
  Result<NpyFile> output = NpyFile::Create(logits_options.output, count, vocab_size);
  if (!output.ok()) return output.status();
  Result<std::unique_ptr<ModelSession>> loaded = ModelSession::Load(options,
                                                                    std::move(plan).value());
  if (!loaded.ok()) return loaded.status();
  ModelSession& session = **loaded;

  std::vector<int32_t> pages(static_cast<size_t>(session.plan().engine.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const int chunk = options.engine.max_num_batched_tokens;
  const int slice = static_cast<int>(std::max<int64_t>(1, kMaxLogitElements / vocab_size));
  std::vector<float> last_row;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int step_tokens = static_cast<int>(std::min<int64_t>(chunk, count - begin));
    Batch batch;
    batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + step_tokens);
    batch.sequences = {{0, step_tokens, static_cast<int>(begin), pages.data()}};
    batch.logit_rows.resize(static_cast<size_t>(step_tokens));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    DS_RETURN_IF_ERROR(session.model().Forward(batch, session.kv()));
    for (int first = 0; first < step_tokens; first += slice) {
      const Result<std::span<const float>> logits = session.model().Logits(
          first, std::min(slice, step_tokens - first));
      if (!logits.ok()) return logits.status();
      DS_RETURN_IF_ERROR(output->Append(*logits));
      const std::span<const float> last = logits->last(static_cast<size_t>(vocab_size));
      last_row.assign(last.begin(), last.end());
    }
  }
  DS_RETURN_IF_ERROR(output->Close());
  // On stderr, because the file may be /dev/stdout.
  std::fprintf(stderr, "%s: float32 [%lld, %d]; most probable next token: %s\n",
               logits_options.output.c_str(), static_cast<long long>(count), vocab_size,
               NextToken(last_row, tokenizer).c_str());
  return {};
}

}  // namespace diffserve
