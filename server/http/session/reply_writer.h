// SPDX-License-Identifier: Apache-2.0
// ReplyWriter: the bytes of a connection's replies, one reply after another, from the reply as a
// value to the socket. It frames bodies and knows how far the reply under way has come.
// Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/http/message.h"
#include "server/http/reply_text.h"
#include "server/http/session/delivery_watch.h"

namespace diffserve {

class ReplyWriter {
 public:
  enum class Written { kAll, kNotYet, kFailed };

  // The next reply has this framing.
  void Begin(const ReplyFraming& framing);
  // Queues its head, and its body unless that is streamed. `closes`: the connection ends after it.
  // Returns whether it does, which framing and reply may require too.
  bool Queue(const HttpReply& reply, bool closes);
  void AppendToBody(std::string_view bytes);
  void EndBody();
  // The bytes of an interim reply, such as 100 Continue. REQUIRES: nothing is queued.
  void QueueInterim(std::string_view text) { out_ = text; }
  // Passes what is queued to the system, and counts it in `watch`.
  Written Write(boost::asio::generic::stream_protocol::socket& socket, DeliveryWatch& watch);
  void Finish();  // the reply is written

  bool head_only() const { return framing_.head_only; }
  bool is_begun() const { return is_begun_; }  // its head is queued
  bool is_whole() const { return is_whole_; }  // all of it is queued
  bool empty() const { return out_.empty(); }
  size_t unsent_bytes() const { return out_.size() - written_; }

 private:
  ReplyFraming framing_;
  bool is_begun_ = false, is_whole_ = false;
  std::string out_;  // to be written
  size_t written_ = 0;
};

}  // namespace diffserve
