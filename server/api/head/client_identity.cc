// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/client_identity.h"

#include <optional>

namespace diffserve {

std::string ClientName(const ApiKeys& keys, std::string_view key, std::string_view address) {
  if (!keys.required()) return std::string(address);
  const std::optional<size_t> index = keys.Find(key);
  return index ? "key:" + std::to_string(*index) : std::string();
}

std::string ClientNameOf(const ApiKeys& keys, const HttpHead& head, std::string_view address) {
  const std::string_view key = head.HasField("authorization")
                                   ? ApiKeys::BearerToken(head.Field("authorization"))
                                   : head.Field("x-api-key");
  return ClientName(keys, key, address);
}

std::string ClientName(const ApiKeys& keys, const HttpRequest& request) {
  return ClientNameOf(keys, request.head, request.peer);
}

}  // namespace diffserve
