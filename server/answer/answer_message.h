// AnswerMessage: parts of an answer joined: those of a piece of a stream, or all of them. What the
// encoders of all APIs make their objects of. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/answer_parser.h"

namespace diffserve {

struct AnswerCall {
  int index = 0;       // of the calls of this continuation
  bool opens = false;  // it begins here; `name` is whole
  std::string name;
  std::string arguments;  // as JSON text, or a piece of it
};

struct AnswerMessage {
  std::string content, reasoning;
  std::vector<AnswerCall> calls;

  void Add(AnswerPart part);
  void Add(std::vector<AnswerPart> parts);
  void Append(AnswerMessage next);  // what comes behind this
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

// The id of a call, the same whenever it is asked for. Others do not have it unless the response's
// id and time are the same.
struct CallIdKey {
  std::string_view response_id;
  int64_t created = 0;  // Unix seconds
  int choice = 0;
  int call = 0;
};
// `prefix` and 24 hexadecimal digits.
std::string CallId(const CallIdKey& key, std::string_view prefix);
// Nine letters and digits, for the templates that take no others (ToolFormat::short_ids).
std::string ShortCallId(const CallIdKey& key);

}  // namespace diffserve
