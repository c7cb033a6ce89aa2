// SPDX-License-Identifier: Apache-2.0
// Names of clients, by which the queues distinguish requests. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/api/head/api_key.h"
#include "server/http/message.h"

namespace diffserve {

// "key:N" for the N-th key if keys are required, never the key itself; else the address. Empty if
// the key is not accepted.
std::string ClientName(const ApiKeys& keys, std::string_view key, std::string_view address);

// The same for the head of an HTTP request of this address, and for a request.
std::string ClientNameOf(const ApiKeys& keys, const HttpHead& head, std::string_view address);
std::string ClientName(const ApiKeys& keys, const HttpRequest& request);

}  // namespace diffserve
