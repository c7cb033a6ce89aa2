// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/load_outcome.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

// The fault of an error message, or "": it must be one line of sensible length that names the
// directory or a file in it.
std::string ProblemOfLine(const std::string& line, const std::string& dir) {
  if (line.empty()) return "it is empty";
  if (line.size() > 1000) return "it has " + std::to_string(line.size()) + " bytes";
  if (std::ranges::any_of(line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return "it has control characters";
  if (line.find(dir) == std::string::npos) return "it names no file";
  return "";
}

}  // namespace

LoadOutcome LoadAndAnswer(const std::string& dir, ThreadPool& pool) {
  ModelOptions options;
  options.model_dir = dir;
  const Result<ModelSummary> summary = InspectModel(options);
  if (!summary.ok()) return {false, summary.status().message()};
  const Result<std::unique_ptr<Model>> model = Model::Load(options, pool);
  if (!model.ok()) return {false, model.status().message()};
  const KvFormat layout = KvFormat::Of(summary->config.attention, 16, (*model)->dtype());
  KvCache kv = (*model)->MakeUniformKvCache(layout, {1}).value();
  const int32_t page = 0;
  const int num_tokens = std::min({4, summary->config.vocab_size, summary->config.max_positions});
  Batch batch;
  batch.tokens.resize(static_cast<size_t>(num_tokens));
  std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  batch.sequences = {{0, num_tokens, 0, &page}};
  batch.logit_rows = {num_tokens - 1};
  const Status run = (*model)->Forward(batch, kv);
  if (!run.ok() || !(*model)->Logits(0, 1).ok()) return {false, run.message()};
  return {true, ""};
}

std::string ProblemOf(const LoadOutcome& outcome, const Damage& damage, const std::string& dir) {
  if (outcome.loaded) return damage.expected == Expected::kRefused ? "it was loaded" : "";
  if (damage.expected == Expected::kLoaded) return "it was refused: " + outcome.line;
  const std::string problem = ProblemOfLine(outcome.line, dir);
  return problem.empty() ? "" : problem + ": " + outcome.line.substr(0, 2000);
}

std::vector<CheckpointToDamage> CheckpointsToDamage() {
  const std::filesystem::path cases = std::filesystem::path(SourceDirectory()) /
                                      "tests/golden/cases";
  constexpr const char* kFamilies[] = {"diff_",      "llama_", "unilm_v1_", "unilm_v2_",
                                       "motif_gda_", "motif_", "phi4flash_"};
  struct Smallest {
    uintmax_t bytes = UINTMAX_MAX;
    std::filesystem::path dir;
  };
  std::map<std::string, Smallest> smallest;
  for (const auto& entry : std::filesystem::directory_iterator(cases)) {
    const std::string name = entry.path().filename().string();
    const auto family = std::ranges::find_if(
        kFamilies, [&](const char* prefix) { return name.starts_with(prefix); });
    const std::filesystem::path weights = entry.path() / "model.safetensors";
    if (family == std::end(kFamilies) || !std::filesystem::exists(weights)) continue;
    Smallest& best = smallest[*family];
    const uintmax_t bytes = std::filesystem::file_size(weights);
    if (std::pair(bytes, entry.path()) < std::pair(best.bytes, best.dir))
      best = {bytes, entry.path()};
  }
  std::vector<CheckpointToDamage> checkpoints;
  for (const auto& [prefix, best] : smallest) {
    const std::string family = prefix.substr(0, prefix.size() - 1);
    checkpoints.push_back({family, best.dir, false});
    checkpoints.push_back({family, best.dir, true});
  }
  return checkpoints;
}

}  // namespace diffserve
