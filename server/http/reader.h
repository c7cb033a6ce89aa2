// HttpReader: the requests of one connection, read from bytes as they come. No sockets, no clock:
// the session feeds it and asks what it has. Bodies are decoded here, under the limits, while they
// are read; trailers are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/gate.h"

namespace diffserve {

// A chunked body. Strict: sizes in 1 to 8 hexadecimal digits, no extensions, CRLF only.
class ChunkedDecoder {
 public:
  explicit ChunkedDecoder(const HttpLimits& limits) : limits_(&limits) {}
  // Appends decoded bytes to `body`; returns how many bytes of `bytes` belong to this body.
  size_t Feed(std::string_view bytes, std::string* body);
  bool done() const { return state_ == State::kDone; }
  // status 0: nothing is wrong.
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  enum class State { kSize, kSizeLf, kData, kDataCr, kDataLf, kTrailer, kDone, kRefused };
  void Refuse(int status, std::string_view reason);
  void OnSizeChar(char c);
  void OnTrailerChar(char c);
  void EndSize(const std::string& body);

  const HttpLimits* limits_;
  State state_ = State::kSize;
  uint64_t size_ = 0;  // of this chunk, what is left of it
  int size_digits_ = 0;
  size_t chunks_ = 0;
  size_t trailer_bytes_ = 0;
  size_t trailer_line_bytes_ = 0;  // without CR and LF
  bool trailer_cr_ = false;
  HttpRefusal refusal_{0, {}};
};

class HttpReader {
 public:
  enum class State { kHead, kBody, kReady, kRefused };

  explicit HttpReader(const HttpLimits& limits) : limits_(limits), chunked_(limits_) {}
  HttpReader(const HttpReader&) = delete;
  HttpReader& operator=(const HttpReader&) = delete;

  void Feed(std::string_view bytes);
  State state() const { return state_; }
  const HttpRefusal& refusal() const { return refusal_; }
  // No byte of the next request has come.
  bool idle() const { return state_ == State::kHead && buffer_.empty(); }
  // True once if the client waits for "100 Continue" before it sends the body.
  bool TakeContinue();
  // REQUIRES: kReady. Then Next() goes on with the bytes that came after it.
  HttpRequest Take();
  void Next();
  // Drops everything; what comes later is dropped too.
  void Discard();
  // The readable part of the head of the request that is being read or was refused.
  HttpHead HeadSoFar() const;

  size_t body_bytes_received() const { return body_bytes_received_; }
  // What it holds in memory for this connection.
  size_t held_bytes() const { return buffer_.size() + request_.body.size(); }
  // Bytes of later requests, while one is being answered.
  size_t waiting_bytes() const { return buffer_.size(); }

 private:
  void Advance();
  void ReadHead();
  void ReadBody();
  void Refuse(HttpRefusal refusal);

  const HttpLimits limits_;
  State state_ = State::kHead;
  std::string buffer_;       // not yet consumed
  size_t head_checked_ = 0;  // bytes of an incomplete head that need not be looked at again
  HttpRequest request_;
  ChunkedDecoder chunked_;
  bool continue_due_ = false;
  size_t body_bytes_received_ = 0;  // on the wire, of the current body
  HttpRefusal refusal_;
};

}  // namespace diffserve
