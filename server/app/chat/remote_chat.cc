// SPDX-License-Identifier: Apache-2.0
// The model of `diffserve chat --url`: a server's, asked over OpenAI's API.
#include <utility>

#include "kernels/process/terminal_text.h"
#include "server/api/head/api_key.h"
#include "server/app/chat/chat_model.h"
#include "server/app/chat/chunk_reader.h"
#include "server/http/client/fetcher.h"
#include "server/json/json.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

constexpr size_t kMaxModelsBytes = 1 << 20;
constexpr size_t kMaxModels = 1024;
constexpr int kOk = 200, kUnauthorized = 401;  // of HTTP's status codes

Status Refusal(const std::string& url, const HttpOutcome& outcome) {
  const std::string hint = outcome.status == kUnauthorized ? " (--api-key-file)" : "";
  return Status(StatusCode::kUnavailable,
                url + ": status " + std::to_string(outcome.status) + hint + ": " +
                    QuotedOnTerminal(OpenAiErrorMessage(outcome.error_body)));
}

// Members of every request, except its messages. Values that are the API's defaults are omitted, so
// that other servers accept the request too.
std::string RequestHead(const std::string& model, const SessionOptions& options,
                        const GenerateOptions& generate, const ChatOptions& chat) {
  const SamplingSpec& sampling = generate.sampling;
  const SamplingParams api;
  std::string members;
  JsonWriter json(&members);
  json.Add("model", model).Add("stream", true).Add("temperature", sampling.temperature);
  json.Add("seed", options.seed);
  const auto add = [&](const char* name, auto value, auto silent) {
    if (value != silent) json.Add(name, value);
  };
  add("max_tokens", chat.max_tokens, 0);
  add("top_p", sampling.top_p, api.top_p);
  add("top_k", sampling.top_k, api.top_k);
  add("min_p", sampling.min_p, api.min_p);
  add("ignore_eos", sampling.ignore_eos, false);
  if (!generate.stop.empty()) json.Add("stop", generate.stop);
  return members;
}

class RemoteChat : public ChatModel {
 public:
  RemoteChat(HttpFetcher client, std::string url, const std::string& model, std::string head)
      : client_(std::move(client)),
        url_(std::move(url)),
        model_(model),
        name_(model_ + " at " + url_),
        head_(std::move(head)) {}

  const std::string& name() const override { return name_; }

  Result<ChatAnswer> Answer(const Conversation& conversation, const TakeText& take,
                            const std::stop_token& stop) override {
    HttpRequestText request{.method = "POST", .path = "/v1/chat/completions"};
    request.body = JsonObjectOf([&](JsonWriter& json) {
      json.Members(head_).Key("messages").Json(TemplateJsonOf(conversation).messages);
    });
    ChatAnswer answer;
    ChunkReader reader;
    Status status;
    const auto take_body = [&](std::string_view bytes) {
      status = reader.Take(bytes, [&](std::string_view piece) {
        answer.text += piece;
        take(piece);
      });
      return status.ok() && !reader.done();
    };
    const Result<HttpOutcome> outcome = client_.Ask(request, take_body, stop);
    if (!outcome.ok() && outcome.status().code() == StatusCode::kCancelled) return answer;
    if (!outcome.ok()) return outcome.status();
    if (outcome->status != kOk) return Refusal(url_, *outcome);
    if (!status.ok())
      return Status(status.code(), url_ + ": " + QuotedOnTerminal(status.message()));
    if (!reader.done())
      return Status(StatusCode::kUnavailable,
                    url_ + ": the connection ended before the answer did");
    answer.finish_reason = reader.finish_reason();
    return answer;
  }

 private:
  const HttpFetcher client_;
  const std::string url_, model_, name_;
  const std::string head_;
};

// The first model that the server serves.
Result<std::string> ServedModel(const HttpFetcher& client, const std::string& url) {
  std::string body;
  const auto take = [&](std::string_view piece) {
    body += piece;
    return body.size() <= kMaxModelsBytes;
  };
  const Result<HttpOutcome> outcome = client.Ask({.path = "/v1/models"}, take, {});
  if (!outcome.ok()) return outcome.status();
  if (outcome->status != kOk) return Refusal(url, *outcome);
  std::string name;
  if (Result<JsonFields> fields = JsonFields::Parse(body); fields.ok()) {
    std::vector<JsonFields> models = fields->Objects("data", kMaxModels);
    if (!models.empty()) models.front().String("id", kMaxModelsBytes, &name);
  }
  if (!name.empty()) return name;
  return Status(StatusCode::kUnavailable, url + ": /v1/models names no model");
}

}  // namespace

Result<std::unique_ptr<ChatModel>> ConnectChatModel(const SessionOptions& options,
                                                    const GenerateOptions& generate,
                                                    const ChatOptions& chat) {
  const Result<HttpUrl> server = ParseServerUrl(chat.url);
  if (!server.ok()) return server.status();
  HttpFetcherOptions client_options{.server = *server};
  if (!chat.api_key_file.empty()) {
    Result<std::string> key = FirstApiKey(chat.api_key_file);
    if (!key.ok()) return InvalidArgument("--api-key-file " + key.status().message());
    client_options.api_key = std::move(key).value();
  }
  HttpFetcher client(std::move(client_options));
  const std::string url = "http://" + server->Authority();
  const Result<std::string> model = ServedModel(client, url);
  if (!model.ok()) return model.status();
  return std::unique_ptr<ChatModel>(std::make_unique<RemoteChat>(
      std::move(client), url, *model, RequestHead(*model, options, generate, chat)));
}

}  // namespace diffserve
