// SPDX-License-Identifier: Apache-2.0
#include "server/router/metrics_exchange.h"

#include <chrono>
#include <utility>

#include "kernels/process/log.h"
#include "server/api/head/parent_secret.h"

namespace diffserve {
namespace {

constexpr std::chrono::seconds kMetricsTimeout{5};

}  // namespace

MetricsExchange::MetricsExchange(std::string own_text, std::vector<Source> sources,
                                 std::string client, HttpRequest request,
                                 std::function<void()> wake)
    : own_text_(std::move(own_text)),
      client_(std::move(client)),
      request_(std::move(request)),
      wake_(std::move(wake)),
      sources_(std::move(sources)) {}

// False while more is to come.
bool MetricsExchange::Take(Asked& asked) {
  if (asked.call == nullptr) return true;
  const std::optional<Result<HttpReply>> reply = asked.call->Reply();
  if (!reply) return false;
  if (reply->ok() && (*reply)->status == 200 && !(*reply)->streams) {
    asked.text = (*reply)->body;
  } else {
    Log(LogLevel::kWarning, "model_metrics_missing",
        {{"model", asked.source.model},
         {"reason",
          reply->ok() ? "status " + std::to_string((*reply)->status) : reply->status().message()}});
  }
  asked.call.reset();
  return true;
}

std::optional<HttpReply> MetricsExchange::Reply() {
  for (Source& source : std::exchange(sources_, {})) {
    UpstreamRequest request = {
        .port = source.address.http_port,
        .head = request_.head,
        .own_fields = {{kClientField, ClientFieldValue(source.address.secret, client_)}},
        .timeout = kMetricsTimeout};
    asked_.push_back({std::move(source), std::make_unique<UpstreamCall>(
                                             *request_.upstream, std::move(request), wake_)});
  }
  bool all = true;
  for (Asked& asked : asked_) all = Take(asked) && all;
  if (!all) return std::nullopt;
  MetricsText merged;
  merged.Add(own_text_, "");
  for (const Asked& asked : asked_) merged.Add(asked.text, asked.source.model);
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = merged.Text();
  return reply;
}

}  // namespace diffserve
