// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/reply_writer.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "server/http/session/not_yet.h"

namespace diffserve {

namespace asio = boost::asio;

void ReplyWriter::Begin(const ReplyFraming& framing) {
  framing_ = framing;
  is_begun_ = false;
}

bool ReplyWriter::Queue(const HttpReply& reply, bool closes) {
  const bool ends_with_connection = reply.streams && framing_.minor_version == 0;
  framing_.keep_alive = framing_.keep_alive && !closes && !reply.close && !ends_with_connection;
  out_ += ReplyText(reply, framing_);
  is_begun_ = true;
  is_whole_ = !reply.streams || framing_.head_only;
  return !framing_.keep_alive;
}

void ReplyWriter::AppendToBody(std::string_view bytes) {
  if (framing_.minor_version == 1)
    AppendChunk(bytes, &out_);
  else
    out_ += bytes;
}

void ReplyWriter::EndBody() {
  if (framing_.minor_version == 1) out_ += kLastChunk;
  is_whole_ = true;
}

ReplyWriter::Written ReplyWriter::Write(asio::generic::stream_protocol::socket& socket,
                                        DeliveryWatch& watch) {
  while (written_ < out_.size()) {
    boost::system::error_code error;
    const size_t n = socket.write_some(asio::buffer(out_.data() + written_, out_.size() - written_),
                                       error);
    if (IsNotYet(error)) return Written::kNotYet;
    if (error) return Written::kFailed;
    written_ += n;
    watch.Add(n);
  }
  out_.clear();
  written_ = 0;
  return Written::kAll;
}

void ReplyWriter::Finish() {
  is_whole_ = false;
  std::string().swap(out_);  // an idle connection holds no buffer
}

}  // namespace diffserve
