// SPDX-License-Identifier: Apache-2.0
// MetricsExchange: the reply of /metrics: this process's own text and that of each model's process,
// which are asked at once. A process that does not answer in time is left out.
// Thread safety: only on its connection's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/client/upstream.h"
#include "server/http/message.h"
#include "server/router/children/model_children.h"
#include "server/router/metrics_text.h"

namespace diffserve {

class MetricsExchange : public HttpExchange {
 public:
  struct Source {
    std::string model;
    ChildAddress address;
  };
  // The sources get the request's head and the client's name. REQUIRES: it came by a connection.
  MetricsExchange(std::string own_text, std::vector<Source> sources, std::string client,
                  HttpRequest request, std::function<void()> wake);

  std::optional<HttpReply> Reply() override;
  bool Frames(std::string*) override { return true; }

 private:
  struct Asked {
    Source source;
    std::unique_ptr<UpstreamCall> call;  // nullptr: its reply is there, or it has failed
    std::string text = {};
  };
  bool Take(Asked& asked);

  const std::string own_text_;
  const std::string client_;
  const HttpRequest request_;
  const std::function<void()> wake_;
  std::vector<Source> sources_;  // not asked yet
  std::vector<Asked> asked_;
};

}  // namespace diffserve
