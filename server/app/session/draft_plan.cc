// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/draft_plan.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/text/token_files.h"
#include "engine/text/tokenizer.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "models/config_reader.h"
#include "models/load_config.h"

namespace diffserve {
namespace {

constexpr std::string_view kDraftFlag = "--speculative-model";

Status RefuseDraft(const std::string& dir, const std::string& found, const std::string& allowed) {
  const std::string flag(kDraftFlag);
  return NotAllowed(flag + " " + dir + " has " + found, allowed, flag);
}

bool HasTokenizer(const std::string& dir) {
  std::error_code error;
  return std::filesystem::exists(dir + "/tokenizer.json", error);
}

// Refuses tokenizers in which a token id has another text. Directories without one are used with
// token ids only.
Status CheckSameTokens(const std::string& draft_dir, const std::string& model_dir, int vocab_size) {
  if (!HasTokenizer(draft_dir) || !HasTokenizer(model_dir)) return {};
  const Result<TokenFiles> draft_files = TokenFiles::Read(draft_dir);
  if (!draft_files.ok()) return draft_files.status();
  const Result<TokenFiles> model_files = TokenFiles::Read(model_dir);
  if (!model_files.ok()) return model_files.status();
  if (draft_files->tokenizer == model_files->tokenizer) return {};
  const Result<std::unique_ptr<Tokenizer>> draft = Tokenizer::Load(draft_dir);
  if (!draft.ok()) return draft.status();
  const Result<std::unique_ptr<Tokenizer>> model = Tokenizer::Load(model_dir);
  if (!model.ok()) return model.status();
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string found = (*draft)->TokenBytes(id), expected = (*model)->TokenBytes(id);
    if (found == expected) continue;
    return RefuseDraft(draft_dir,
                       "\"" + ConfigReader::OneLine(found) + "\" as token " + std::to_string(id),
                       "\"" + ConfigReader::OneLine(expected) + "\", as in " + model_dir);
  }
  return {};
}

}  // namespace

Result<DraftPlan> PlanDraft(const SessionOptions& options, const ModelOptions& model,
                            const ModelConfig& config, int page_size) {
  const std::string& dir = options.draft_dir;
  if (model.device == Device::kCuda) {
    return NotAllowed(std::string(kDraftFlag) + " is " + dir + " on a GPU",
                      "none (or --device cpu)", std::string(kDraftFlag));
  }
  DraftPlan plan;
  plan.model = model;
  plan.model.model_dir = dir;
  plan.model.config_text.reset();
  Result<ModelConfig> draft = LoadModelConfig(dir);
  // A packed directory has formats of its own.
  if (draft.ok() && draft->packed) plan.model.weight_format = plan.model.linear_format = {};
  DS_RETURN_IF_ERROR(Assign(&plan.summary, InspectModel(plan.model)));
  plan.model.config_text = plan.summary.config_text;
  const ModelConfig& found = plan.summary.config;
  if (found.vocab_size != config.vocab_size) {
    return RefuseDraft(dir, std::to_string(found.vocab_size) + " tokens",
                       std::to_string(config.vocab_size) + ", as many as " + model.model_dir);
  }
  if (found.num_state_layers() > 0) {
    return RefuseDraft(dir, std::to_string(found.num_state_layers()) + " layers that keep states",
                       "none, as these cannot go back to before a wrong guess");
  }
  DS_RETURN_IF_ERROR(CheckSameTokens(dir, model.model_dir, config.vocab_size));
  const DType dtype = options.kv_cache_dtype.value_or(DTypeOf(plan.summary.weight_format));
  const KvFormat layout = KvFormat::Of(found.attention, page_size, dtype);
  if (!cpu::TakesPages(found.attention, layout.codec)) {
    return RefuseDraft(dir,
                       "heads (head_dim " + std::to_string(found.attention.head_dim) +
                           ") that pages of --kv-cache-dtype " + std::string(NameOf(dtype)) +
                           " cannot hold",
                       "another --kv-cache-dtype");
  }
  plan.layouts.assign(static_cast<size_t>(found.num_kv_layers()), layout);
  plan.page_bytes = KvCache::BytesPerPage(plan.layouts);
  plan.commits_pages = options.kv_cache_commit;
  return plan;
}

Result<std::unique_ptr<DraftRunner>> LoadDraft(const DraftPlan& plan, int num_pages,
                                               ThreadPool& pool, ProgressLine::Form form) {
  ProgressLine line(form);
  LoadProgress progress(line.report(), line.pace());
  ModelOptions options = plan.model;
  options.progress = &progress;
  Result<std::unique_ptr<Model>> model = Model::Load(options, pool);
  if (!model.ok()) return model.status();
  Result<KvCache> kv = (*model)->MakeKvCache(plan.layouts, {.num_pages = num_pages});
  if (!kv.ok()) return kv.status();
  if (plan.commits_pages) kv->Commit(pool);
  Log(LogLevel::kInfo, "draft_model",
      {{"directory", plan.model.model_dir},
       {"parameters", std::to_string(plan.summary.num_parameters)},
       {"max_tokens", std::to_string(plan.summary.config.max_positions)}});
  return std::make_unique<DraftRunner>(std::move(*model), std::move(*kv));
}

}  // namespace diffserve
