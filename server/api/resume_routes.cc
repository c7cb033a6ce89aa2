// SPDX-License-Identifier: Apache-2.0
// Resumable streams. A client requests one with X-Resumable: true and gets an id with each event.
// After a lost connection it sends the request again with the last id as Last-Event-ID, as the
// standard of server-sent events says; the body is not read then.
#include <string>
#include <string_view>
#include <utility>

#include "server/api/routes_impl.h"

namespace diffserve {
namespace {

constexpr char kResumableField[] = "x-resumable";
constexpr char kLastEventField[] = "last-event-id";

}  // namespace

// Without keys, the owner does not include the address: a client that lost its connection may have
// another one.
StreamOwner OpenAiRoutes::Impl::OwnerOf(const RouteAccount& account) const {
  return {keys.required() ? account.client : "", account.route};
}

std::optional<HttpAnswer> OpenAiRoutes::Impl::Resumed(RouteCall& call, ErrorForm error) {
  const HttpHead& head = call.request.head;
  const std::string_view wanted = head.Field(kResumableField);
  if (!wanted.empty() && wanted != "true" && wanted != "false") {
    return (this->*error)(InvalidArgument("X-Resumable is '" + std::string(wanted.substr(0, 64)) +
                                          "'; allowed are true and false"));
  }
  const std::string_view last_seen = head.Field(kLastEventField);
  call.account.resumable = wanted == "true";
  if ((call.account.resumable || !last_seen.empty()) && !streams.keeps()) {
    return (this->*error)(InvalidArgument(
        "this server keeps no resumable streams: it runs without --resumable-streams-bytes"));
  }
  if (last_seen.empty()) return std::nullopt;
  StreamStore::Missing missing = StreamStore::Missing::kNone;
  const std::optional<StreamStore::Reading> reading = streams.Resume(
      OwnerOf(call.account), last_seen, call.wake, &missing);
  if (reading) return std::make_unique<KeptStreamExchange>(streams, *reading);
  switch (missing) {
    case StreamStore::Missing::kOutgrown:
      return ErrorWith(410,
                       "the events after this Last-Event-ID are no longer kept: the stream had "
                       "more events than it may keep",
                       error);
    case StreamStore::Missing::kUnknown:
      return (this->*error)(Status(
          StatusCode::kNotFound,
          "there is no stream with this Last-Event-ID, or it is no longer kept; streams are kept "
          "in memory for a limited time, for the path and the API key that created them"));
    case StreamStore::Missing::kNone:
      break;
  }
  HttpReply reply = Json("");  // the standard's way to say that the stream has ended
  reply.status = 204;
  return reply;
}

}  // namespace diffserve
