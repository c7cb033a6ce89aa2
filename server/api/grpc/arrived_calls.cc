// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/arrived_calls.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <charconv>
#include <string>
#include <string_view>

namespace diffserve {
namespace {

std::string Take(char* json) {
  std::string text(json == nullptr ? "" : json);
  gpr_free(json);
  return text;
}

// Takes the next member `"name":"NUMBER"` off the front of `json`; false if there is none. channelz
// writes its JSON without spaces, and no text of a client's into it.
bool NextNumber(std::string_view name, std::string_view& json, int64_t& number) {
  const std::string member = "\"" + std::string(name) + "\":\"";
  const size_t found = json.find(member);
  if (found == json.npos) return false;
  json.remove_prefix(found + member.size());
  return std::from_chars(json.data(), json.data() + json.size(), number).ec == std::errc();
}

}  // namespace

intptr_t NewestGrpcServer() {
  int64_t newest = 0;
  bool is_last = false;
  while (!is_last) {  // a page of the list at a time
    const std::string page = Take(grpc_channelz_get_servers(static_cast<intptr_t>(newest + 1)));
    std::string_view rest = page;
    is_last = true;
    while (NextNumber("serverId", rest, newest)) is_last = false;
  }
  return static_cast<intptr_t>(newest);
}

int64_t NumArrivedCalls(intptr_t server) {
  const std::string json = Take(grpc_channelz_get_server(server));
  std::string_view rest = json;
  int64_t calls = 0;
  return NextNumber("callsStarted", rest, calls) ? calls : 0;
}

}  // namespace diffserve
