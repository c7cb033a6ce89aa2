// SPDX-License-Identifier: Apache-2.0
#include "server/api/trial/routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api_context.h"
#include "server/api/fields/sampling_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxPromptBytes = size_t{1} << 20;

Result<AnswerRequest> ParseTrialRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kTrialTables);
  AnswerRequest request;
  GenerateRequest& generate = request.generate;
  generate.sampling = context.default_sampling;
  fields.String("model", kMaxNameBytes, &generate.model);
  std::string prompt;
  fields.String("prompt", kMaxPromptBytes, &prompt);
  if (prompt.empty()) fields.Fail(InvalidArgument("prompt is missing or empty", "prompt"));
  generate.prompts.emplace_back(std::move(prompt));
  ReadGeneration(fields, *context.limits, &generate);
  ReadStream(fields, &request);
  generate.max_tokens_default = 16;
  generate.holds = request.stream ? AnswerHolds::kEvents : AnswerHolds::kText;
  if (!fields.status().ok()) return fields.status();
  return request;
}

class TrialWriter : public AnswerWriter {
 public:
  TrialWriter(std::string id, const AnswerRequest& request)
      : id_(std::move(id)), stream_(request.stream), texts_(request.generate.n) {}

  void OnDelta(ResponseDelta event, AnswerState* answer) override {
    const auto choice = static_cast<size_t>(event.choice);
    if (!stream_) {
      texts_[choice] += event.text;
      return;
    }
    answer->started = true;
    answer->AddEvent("", [&](JsonWriter& json) {
      json.Add("id", id_).Key("choices").Begin('[').Begin('{');
      json.Add("index", choice).Add("text", event.text);
      json.Add("finish_reason", OpenAiNameOf(event.finish)).End('}').End(']');
    });
  }
  void OnDone(AnswerState* answer) override {
    if (!answer->status.ok()) {
      if (answer->started) answer->AddEvent("", OpenAiErrorBody(answer->status));
      return;
    }
    if (stream_) return answer->AddEvent("", "[DONE]");
    JsonWriter json(&answer->pieces);
    json.Begin('{').Add("id", id_).Key("choices");
    json.List(texts_.size(), [this](size_t i, JsonWriter& item) {
      item.Begin('{').Add("index", i).Key("text").LongText(texts_[i]).End('}');
    });
    json.End('}');
  }

 private:
  const std::string id_;
  const bool stream_;
  std::vector<std::string> texts_;
};

HttpAnswer Complete(ApiContext& api, RouteCall& call, Result<AnswerRequest> parsed) {
  if (!parsed.ok()) return api.Refused(parsed.status());
  auto writer = std::make_unique<TrialWriter>("trial-" + call.account.request_id, *parsed);
  return api.StartResponse(call, {std::move(parsed->generate), std::move(writer), parsed->stream});
}

}  // namespace

Api TrialApi() {
  return {{{"POST", "/v1/trial/completions", OnBody(ParseTrialRequest, Complete)}}};
}

}  // namespace diffserve
