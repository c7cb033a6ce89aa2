// SPDX-License-Identifier: Apache-2.0
// HttpReader: parses the requests of one connection from bytes. It has no socket and no clock: the
// session feeds it and takes the requests. It decodes bodies under the limits while it reads them,
// and drops trailers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/gate.h"

namespace diffserve {

// A chunked body, read strictly: sizes in 1 to 8 hexadecimal digits, CRLF only. Extensions are
// dropped.
class ChunkedDecoder {
 public:
  explicit ChunkedDecoder(const HttpLimits& limits) : limits_(&limits) {}
  // Appends decoded bytes to `body`; returns how many bytes of `bytes` belong to this body.
  size_t Feed(std::string_view bytes, std::string* body);
  bool done() const { return state_ == State::kDone; }
  // status 0: no error.
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  enum class State {
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,
    kDone,
    kRefused
  };
  void Refuse(HttpRefusal refusal);
  void Refuse(int status, const char* reason);
  void OnSizeChar(char c);
  void OnExtensionChar(char c);
  void OnTrailerChar(char c);
  void EndSize(const std::string& body);

  const HttpLimits* limits_;
  State state_ = State::kSize;
  uint64_t size_ = 0;  // remaining bytes of this chunk
  int size_digits_ = 0;
  size_t chunks_ = 0;
  bool in_extension_ = false;  // after the ';'
  size_t extension_bytes_ = 0;
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
  // True if no byte of the next request has arrived.
  bool idle() const { return state_ == State::kHead && buffer_.empty(); }
  // True once if the client waits for "100 Continue" before it sends the body.
  bool TakeContinue();
  // REQUIRES: kReady. Next() then continues with the bytes after this request.
  HttpRequest Take();
  void Next();
  // Drops all bytes, now and later.
  void Discard();
  // The current request's. REQUIRES: not kHead.
  const HttpHead& head() const { return request_.head; }
  // The readable part of the head of the current or refused request.
  HttpHead HeadSoFar() const;

  size_t body_bytes_received() const { return body_bytes_received_; }
  // Bytes of memory that this connection's requests hold.
  size_t held_bytes() const { return buffer_.size() + request_.body.size(); }
  // Bytes of later requests that arrived during an answer.
  size_t waiting_bytes() const { return buffer_.size(); }

 private:
  void Advance();
  bool PassEmptyLine();
  void ReadHead();
  void ReadBody();
  void Refuse(HttpRefusal refusal);

  const HttpLimits limits_;
  State state_ = State::kHead;
  std::string buffer_;              // not yet consumed
  bool empty_line_passed_ = false;  // before the current request
  size_t head_checked_ = 0;         // bytes of an incomplete head that are checked already
  HttpRequest request_;
  ChunkedDecoder chunked_;
  bool continue_due_ = false;
  size_t body_bytes_received_ = 0;  // on the wire, of the current body
  HttpRefusal refusal_;
};

}  // namespace diffserve
