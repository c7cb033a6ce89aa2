// SPDX-License-Identifier: Apache-2.0
// AnswerMessage: the joined parts of one piece of a stream, or of a whole answer. The encoders of
// all APIs make their objects of it.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/serving/answer/answer_parser.h"

namespace diffserve {

struct AnswerCall {
  int index = 0;       // index of the call within this continuation
  bool opens = false;  // the call begins here; `name` is complete
  std::string name;
  std::string arguments;  // JSON text, or a piece of it
};

struct AnswerMessage {
  std::string content, reasoning;
  std::vector<AnswerCall> calls;

  void Add(AnswerPart part);
  void Add(std::vector<AnswerPart> parts);
  void Append(AnswerMessage next);  // appends the part that follows this one
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

// The id of a call. It is the same at each request for it, and unique unless two responses have the
// same id and time.
struct CallIdKey {
  std::string_view response_id;
  int64_t created = 0;  // Unix seconds
  int choice = 0;
  int call = 0;
};
// `prefix` and 24 hexadecimal digits.
std::string CallId(const CallIdKey& key, std::string_view prefix);
// Nine letters and digits, for templates that accept only such ids (ToolFormat::short_ids).
std::string ShortCallId(const CallIdKey& key);

}  // namespace diffserve
