// SPDX-License-Identifier: Apache-2.0
#include "server/http/reader.h"

#include <algorithm>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr size_t kBodyGrowth = 8;

}  // namespace

void ChunkedDecoder::Refuse(HttpRefusal refusal) {
  refusal_ = std::move(refusal);
  state_ = State::kRefused;
}

void ChunkedDecoder::Refuse(int status, const char* reason) { Refuse({status, reason}); }

void ChunkedDecoder::OnSizeChar(char c) {
  const int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
  if (digit >= 0) {
    size_ = size_ * 16 + static_cast<uint64_t>(digit);
    if (++size_digits_ > 8) Refuse(400, "a chunk size has too many digits");
  } else if (c == '\r' && size_digits_ > 0) {
    state_ = State::kSizeLf;
  } else if ((c == ';' || c == ' ' || c == '\t') && size_digits_ > 0) {
    state_ = State::kExtension;
    OnExtensionChar(c);
  } else {
    Refuse(400, "a chunk size is malformed");
  }
}

// Extensions after a ';', with white space before it. They are dropped up to the CRLF, which no
// extension can contain.
void ChunkedDecoder::OnExtensionChar(char c) {
  const bool is_space = c == ' ' || c == '\t';
  if (++extension_bytes_ > limits_->max_extension_bytes) {
    Refuse(413, "the chunk extensions are too large");
  } else if (c == '\r' && in_extension_) {
    in_extension_ = false;
    state_ = State::kSizeLf;
  } else if (!in_extension_ && c != ';' && !is_space) {
    Refuse(400, "a chunk size is malformed");
  } else if ((static_cast<unsigned char>(c) < ' ' && !is_space) || c == '\x7F') {
    Refuse(400, "a chunk extension holds a control character");
  } else {
    in_extension_ = in_extension_ || c == ';';
  }
}

void ChunkedDecoder::EndSize(const std::string& body) {
  size_digits_ = 0;
  if (size_ == 0) {
    state_ = State::kTrailer;
  } else if (++chunks_ > limits_->max_chunks) {
    Refuse(413, "the body has too many chunks");
  } else if (body.size() + size_ > limits_->max_body_bytes) {
    Refuse(BodyTooLarge("the body has at least " + std::to_string(body.size() + size_) + " bytes",
                        limits_->max_body_bytes));
  } else {
    state_ = State::kData;
  }
}

// Trailer lines up to an empty one; dropped.
void ChunkedDecoder::OnTrailerChar(char c) {
  if (++trailer_bytes_ > limits_->max_trailer_bytes) return Refuse(431, "the trailer is too large");
  if (trailer_cr_) {
    if (c != '\n') return Refuse(400, "a line of the trailer does not end in CRLF");
    trailer_cr_ = false;
    if (trailer_line_bytes_ == 0) state_ = State::kDone;
    trailer_line_bytes_ = 0;
  } else if (c == '\r') {
    trailer_cr_ = true;
  } else if (c == '\n' || c == '\0') {
    Refuse(400, "a line of the trailer does not end in CRLF");
  } else {
    ++trailer_line_bytes_;
  }
}

size_t ChunkedDecoder::Feed(std::string_view bytes, std::string* body) {
  size_t i = 0;
  while (i < bytes.size() && state_ != State::kDone && state_ != State::kRefused) {
    const char c = bytes[i];
    switch (state_) {
      case State::kSize:
        OnSizeChar(c);
        break;
      case State::kExtension:
        OnExtensionChar(c);
        break;
      case State::kSizeLf:
        if (c == '\n')
          EndSize(*body);
        else
          Refuse(400, "a chunk size is malformed");
        break;
      case State::kData: {
        const size_t take = std::min<size_t>(size_, bytes.size() - i);
        body->append(bytes.substr(i, take));
        size_ -= take;
        i += take;
        if (size_ == 0) state_ = State::kDataCr;
        continue;
      }
      case State::kDataCr:
        if (c == '\r')
          state_ = State::kDataLf;
        else
          Refuse(400, "a chunk does not end where its size says");
        break;
      case State::kDataLf:
        if (c == '\n')
          state_ = State::kSize;
        else
          Refuse(400, "a chunk does not end where its size says");
        break;
      case State::kTrailer:
        OnTrailerChar(c);
        break;
      case State::kDone:
      case State::kRefused:
        break;
    }
    ++i;
  }
  return i;
}

void HttpReader::Feed(std::string_view bytes) {
  if (state_ == State::kRefused) return;
  buffer_.append(bytes);
  Advance();
}

void HttpReader::Advance() {
  if (state_ == State::kHead) ReadHead();
  if (state_ == State::kBody) ReadBody();
}

void HttpReader::Refuse(HttpRefusal refusal) {
  refusal_ = std::move(refusal);
  HttpHead head = HeadSoFar();
  Discard();
  request_.head = std::move(head);
}

void HttpReader::Discard() {
  state_ = State::kRefused;
  // An assignment would keep the memory.
  std::string().swap(buffer_);
  const HttpRequest dropped = std::exchange(request_, {});
}

HttpHead HttpReader::HeadSoFar() const {
  return state_ == State::kHead ? ReadableHead(buffer_) : request_.head;
}

// One empty line before a request is ignored: old clients end a body with one. False: more bytes
// are needed to tell.
bool HttpReader::PassEmptyLine() {
  if (empty_line_passed_ || !buffer_.starts_with('\r')) return true;
  if (buffer_.size() == 1) return false;
  if (buffer_[1] == '\n') {
    buffer_.erase(0, 2);
    empty_line_passed_ = true;
  }
  return true;
}

void HttpReader::ReadHead() {
  if (!PassEmptyLine()) return;
  const size_t end = buffer_.find("\r\n\r\n", std::max<size_t>(head_checked_, 3) - 3);
  if (end == std::string::npos) {
    if (const auto refusal = CheckPartialHead(buffer_, head_checked_, limits_))
      Refuse(*refusal);
    else
      head_checked_ = buffer_.size();
    return;
  }
  head_checked_ = 0;
  auto checked = CheckHead(std::string_view(buffer_).substr(0, end + 4), limits_);
  if (const auto* refusal = std::get_if<HttpRefusal>(&checked)) return Refuse(*refusal);
  request_.head = std::get<HttpHead>(std::move(checked));
  buffer_.erase(0, end + 4);
  body_bytes_received_ = 0;
  chunked_ = ChunkedDecoder(limits_);
  continue_due_ = request_.head.expects_continue &&
                  (request_.head.chunked || request_.head.content_length > 0);
  state_ = State::kBody;
}

void HttpReader::ReadBody() {
  std::string& body = request_.body;
  if (!request_.head.chunked) {
    const size_t take = std::min(request_.head.content_length - body.size(), buffer_.size());
    // Few large steps, because each leaves a hole in the heap.
    if (const size_t needed = body.size() + take; needed > body.capacity())
      body.reserve(std::min(request_.head.content_length, kBodyGrowth * needed));
    body.append(buffer_, 0, take);
    buffer_.erase(0, take);
    body_bytes_received_ += take;
    if (body.size() == request_.head.content_length) state_ = State::kReady;
    return;
  }
  const size_t used = chunked_.Feed(buffer_, &body);
  buffer_.erase(0, used);
  body_bytes_received_ += used;
  if (chunked_.refusal().status != 0)
    Refuse(chunked_.refusal());
  else if (chunked_.done())
    state_ = State::kReady;
}

bool HttpReader::TakeContinue() {
  const bool due = continue_due_ && state_ == State::kBody && body_bytes_received_ == 0;
  continue_due_ = false;
  return due;
}

HttpRequest HttpReader::Take() {
  DS_CHECK(state_ == State::kReady, "no request is ready");
  return std::exchange(request_, {});
}

void HttpReader::Next() {
  DS_CHECK(state_ == State::kReady, "the previous request is not complete");
  state_ = State::kHead;
  empty_line_passed_ = false;
  Advance();
}

}  // namespace diffserve
