// SPDX-License-Identifier: Apache-2.0
// FrontDoor: what an HTTP port decides about a request before its route, in this order: the host
// name, a preflight, a check of the whole server, the key, the path, the method. The port of one
// model and that of several share it.
// Thread safety: Answer may be called from any I/O thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/api/head/api_key.h"
#include "server/api/head/cross_origin.h"
#include "server/api/route.h"
#include "server/http/message.h"

namespace diffserve {

// What a port has at the path of a request.
struct DoorPath {
  bool known = false;
  bool needs_key = true;
  bool takes_method = false;
  std::string methods = {};  // of a known path, as AddMethod lists them
};

struct FrontDoor {
  bool loopback_hosts_only;
  const CrossOrigin& cross_origin;
  const ApiKeys& keys;
  std::function<Status()> ready;
  int min_retry_after_s;

  // The reply to a request that reaches no route; nullopt: its route answers. `client`: ClientName.
  std::optional<HttpReply> Answer(const HttpHead& head, const DoorPath& path,
                                  std::string_view client, const ErrorBody& errors) const;
};

// Adds a method to a list, as Allow has it. HEAD is served where GET is.
void AddMethod(std::string_view method, std::string* methods);

// Whether a head is OPTIONS of the whole server: "*", or "/" as HAProxy's `option httpchk` sends
// it. Load balancers use it to check the server, so the answer is that of readiness.
bool IsServerCheck(const HttpHead& head);
HttpReply ServerCheckReply(const Status& ready, std::string_view methods, const ErrorBody& errors,
                           int min_retry_after_s);

}  // namespace diffserve
