// SPDX-License-Identifier: Apache-2.0
// The secret between the parent of several models and each model's process. With every request the
// parent sends it, and the name of the client, in one field of the head or of a call's metadata. So
// the process knows that a request passed its parent's checks, and whose it is.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace diffserve {

// A client's own field of this name never reaches a route, a log line or another process.
inline constexpr char kClientField[] = "x-diffserve-client";

// 64 hexadecimal digits from the system's cryptographic source.
std::string NewParentSecret();
bool IsParentSecret(std::string_view text);  // has that form

// The field's value. `client`: ClientName.
std::string ClientFieldValue(std::string_view secret, std::string_view client);
// The client's name in such a value; nullopt: the secret is another one. The time that the
// comparison takes says nothing about the secret.
std::optional<std::string> ClientInField(std::string_view value, std::string_view secret);

}  // namespace diffserve
