// SPDX-License-Identifier: Apache-2.0
// UpstreamCall: a request that is forwarded to another server on this machine, and its reply as it
// arrives. It runs on the event loop of the connection that it answers, so bytes pass from socket
// to socket on one thread. It reads on only when its owner has taken what was read.
//
// Thread safety: only on the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "server/http/message.h"

namespace diffserve {

struct UpstreamRequest {
  int port = 0;                // on 127.0.0.1
  HttpHead head = {};          // its Host and the fields that concern one connection are replaced
  HttpFields own_fields = {};  // of this server, sent whatever the head says
  std::string body = {};
  std::chrono::milliseconds timeout{0};  // for the whole reply; 0: none
};

class UpstreamCall {
 public:
  // `wake` is called on this thread when there may be more to take. `connections` outlives it.
  UpstreamCall(UpstreamConnections& connections, UpstreamRequest request,
               std::function<void()> wake);
  ~UpstreamCall();  // closes the connection unless the reply is complete
  UpstreamCall(const UpstreamCall&) = delete;
  UpstreamCall& operator=(const UpstreamCall&) = delete;

  // The reply, once; nullopt if it is not ready. It is whole if it has a Content-Length of up to
  // 1 MiB, else its body comes from Frames. Error: kUnavailable with the system's message, if the
  // connection fails first.
  std::optional<Result<HttpReply>> Reply();
  // As those of HttpExchange.
  bool Frames(std::string* bytes);
  size_t HeldBytes() const;
  bool IsBroken() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace diffserve
