// SPDX-License-Identifier: Apache-2.0
#include "server/api/attention/request.h"

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxIndices = 1 << 16;  // of layers, heads or positions
constexpr size_t kMaxAttentionTokens = 1 << 20;

void ReadPrompt(JsonFields& fields, AttentionRequest* request) {
  int given = 0;
  for (const char* name : {"tokens", "text", "messages"}) {
    if (!fields.Has(name)) continue;
    request->names.prompt = name;
    ++given;
  }
  if (given != 1) {
    return fields.Fail(NotAllowed(std::to_string(given) + " of tokens, text and messages are set",
                                  "one of them", request->names.prompt));
  }
  if (fields.Has("tokens")) {
    std::vector<int32_t> tokens;
    fields.Ints("tokens", kMaxAttentionTokens, &tokens);
    request->prompt = std::move(tokens);
  } else if (fields.Has("text")) {
    std::string text;
    fields.String("text", kMaxTextBytes, &text);
    request->prompt = std::move(text);
  } else {
    request->prompt = ReadConversation(fields, /*add_generation_prompt=*/true);
  }
}

// A list, or the text "all", for which true is returned. An empty list is refused.
bool ReadIndices(JsonFields& fields, const char* name, std::vector<int>* out) {
  if (fields.IsString(name)) {
    std::string text;
    fields.String(name, kMaxNameBytes, &text);
    if (text == "all") return true;
    fields.Fail(NotOneOf(name, text, "a list of integers, \"all\""));
    return false;
  }
  fields.SignedInts(name, kMaxIndices, out);
  if (fields.Has(name) && out->empty()) {
    fields.Fail(IsEmpty(name, "at least 1 entry"));
  }
  return false;
}

void ReadSpan(JsonFields& fields, AttentionRequest* request) {
  if (!fields.Has("span")) return;
  std::vector<int> span;
  fields.SignedInts("span", kMaxIndices, &span);
  if (span.size() == 2) {
    request->span = {span[0], span[1]};
  } else {
    fields.Fail(
        NotAllowed("span has " + std::to_string(span.size()) + " entries", "[begin, end]", "span"));
  }
}

bool ReadEncoding(JsonFields& fields) {
  std::string encoding = "json";
  fields.String("encoding", kMaxNameBytes, &encoding);
  if (encoding != "json" && encoding != "float16") {
    fields.Fail(NotOneOf("encoding", encoding, "json, float16"));
  }
  return encoding == "float16";
}

}  // namespace

Result<OpenAiAttentionRequest> ParseAttentionRequest(std::string_view body, const ReadContext&) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kAttentionTables);
  OpenAiAttentionRequest request;
  AttentionRequest& attention = request.attention;
  fields.String("model", kMaxTextBytes, &attention.model);
  ReadPrompt(fields, &attention);
  ReadIndices(fields, "layers", &attention.layers);
  ReadIndices(fields, "heads", &attention.heads);
  attention.all_positions = ReadIndices(fields, "positions", &attention.positions);
  if (fields.Has("top_k")) fields.Int("top_k", &attention.top_k.emplace());
  ReadSpan(fields, &attention);
  request.float16 = ReadEncoding(fields);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace diffserve
