// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/embedding_request.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

void ReadInput(JsonFields& fields, std::vector<Prompt>* prompts) {
  if (!fields.Has("input")) fields.Fail(Missing("input"));
  std::vector<JsonFields::TextOrIds> values;
  fields.Prompts("input", kMaxPrompts, &values);
  for (JsonFields::TextOrIds& value : values) {
    std::visit([prompts](auto& input) { prompts->emplace_back(std::move(input)); }, value);
  }
}

// Which of two names a member has: false for the first, which is also the default.
bool ReadSecond(JsonFields& fields, const char* name, const char* first, const char* second) {
  std::string text = first;
  fields.String(name, kMaxNameBytes, &text);
  if (text != first && text != second) {
    fields.Fail(NotOneOf(name, text, std::string(first) + ", " + second));
  }
  return text == second;
}

void ReadDimensions(JsonFields& fields, EmbeddingRequest* request) {
  if (!fields.Has("dimensions")) return;
  int dimensions = 1;
  fields.Count("dimensions", &dimensions);
  fields.Fail(CheckDimensions(dimensions));
  request->dimensions = dimensions;
}

void ReadTokenization(JsonFields& fields, GenerateRequest* generate) {
  if (fields.Has("add_special_tokens"))
    fields.Bool("add_special_tokens", &generate->add_special_tokens.emplace());
  if (fields.Has("truncate_prompt_tokens"))
    fields.Count("truncate_prompt_tokens", &generate->truncate_prompt_tokens.emplace());
  fields.String("cache_salt", kMaxCacheSaltBytes, &generate->cache_salt);
}

void ReadNormalization(JsonFields& fields) {
  for (const char* name : {"normalize", "use_activation"}) {
    bool normalize = true;
    fields.Bool(name, &normalize);
    if (!normalize) fields.Fail(Unsupported(name, " other than true: vectors are of unit length"));
  }
}

void ReadTask(JsonFields& fields) {
  constexpr std::string_view kTask = "token_embed";
  std::string task(kTask);
  fields.String("task", kMaxNameBytes, &task);
  if (task == kTask) return;
  fields.Fail(NotOneOf("task", task, kTask));
}

void ReadInputOrMessages(JsonFields& fields, std::vector<Prompt>* prompts) {
  if (!fields.Has("messages")) return ReadInput(fields, prompts);
  if (fields.Has("input")) fields.Fail(NotBoth("messages", "input"));
  prompts->emplace_back(ReadConversation(fields, /*add_generation_prompt=*/false));
}

// What both routes share.
void ReadGenerate(JsonFields& fields, const ReadContext& context, GenerateRequest* generate) {
  generate->sampling = context.default_sampling;
  generate->max_tokens = 0;
  generate->names.prompt = generate->names.n = "input";
  generate->holds = AnswerHolds::kText;
  fields.String("model", kMaxTextBytes, &generate->model);
  ReadTokenization(fields, generate);
}

}  // namespace

Result<EmbeddingRequest> ParsePoolingRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  EmbeddingRequest request;
  CheckMembers(fields, members::kPoolingTables);
  ReadTask(fields);
  bool unit_length = true;
  for (const char* name : {"normalize", "use_activation"}) fields.Bool(name, &unit_length);
  request.pooling = unit_length ? HiddenStatePool::Kind::kEachAtUnitLength
                                : HiddenStatePool::Kind::kEach;
  ReadInputOrMessages(fields, &request.generate.prompts);
  request.base64 = ReadSecond(fields, "encoding_format", "float", "base64");
  ReadGenerate(fields, context, &request.generate);
  if (!fields.status().ok()) return fields.status();
  return request;
}

Result<EmbeddingRequest> ParseEmbeddingRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  EmbeddingRequest request;
  CheckMembers(fields, members::kEmbeddingTables);
  ReadNormalization(fields);
  ReadInput(fields, &request.generate.prompts);
  request.base64 = ReadSecond(fields, "encoding_format", "float", "base64");
  if (ReadSecond(fields, "pooling", "mean", "last")) request.pooling = HiddenStatePool::Kind::kLast;
  ReadDimensions(fields, &request);
  ReadGenerate(fields, context, &request.generate);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace diffserve
