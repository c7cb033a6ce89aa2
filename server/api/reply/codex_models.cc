// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/codex_models.h"

#include <cstddef>

namespace diffserve {
namespace {

// Codex takes them instead of its own, which have 17 KB.
constexpr char kInstructions[] =
    "You are a coding agent in the user's terminal. Work on the task until it is done: read the "
    "files that matter, change them, and run commands to check the result. Use the tools; do not "
    "guess what a file or a command says. Change only what the task needs. At the end, tell the "
    "user in a few sentences what you did and what you could not check.";
constexpr int kMaxToolOutputBytes = 10'000;  // as Codex has it for models that it does not know

// All members that some version of Codex refuses to miss.
void AddCodexModel(const CodexModel& model, size_t priority, JsonWriter& json) {
  json.Begin('{').Add("slug", model.name).Add("display_name", model.name);
  json.Add("description", nullptr).Add("base_instructions", kInstructions);
  json.Add("context_window", model.max_model_len).Add("priority", priority);
  json.Add("visibility", "list").Add("supported_in_api", true).Add("upgrade", nullptr);
  json.Key("input_modalities").Begin('[').Value("text").End(']');
  json.Key("supported_reasoning_levels").Begin('[').End(']');
  json.Add("supports_reasoning_summaries", false).Add("support_verbosity", false);
  json.Add("default_verbosity", nullptr).Add("shell_type", "default");
  json.Add("apply_patch_tool_type", nullptr).Add("supports_parallel_tool_calls", true);
  json.Key("truncation_policy").Begin('{').Add("mode", "bytes").Add("limit", kMaxToolOutputBytes);
  json.End('}').Key("experimental_supported_tools").Begin('[').End(']').End('}');
}

}  // namespace

void AddCodexModels(const std::vector<CodexModel>& models, JsonWriter* json) {
  json->Key("models").Begin('[');
  for (size_t i = 0; i < models.size(); ++i) AddCodexModel(models[i], i, *json);
  json->End(']');
}

}  // namespace diffserve
