// SPDX-License-Identifier: Apache-2.0
// The lines of run-batch's files, in the form of OpenAI's batch API: a request, and an answer or an
// error. Pure functions of texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/status.h"
#include "server/app/batch/line_reader.h"
#include "server/http/message.h"

namespace diffserve {

inline constexpr size_t kMaxCustomIdBytes = 1024;

struct BatchRequest {
  std::string custom_id;
  uint64_t line = 0;  // its number in the input
  std::string url;    // one of the paths that ReadBatchLine allows
  std::string body;   // as the client wrote it
};

// A line that becomes no request.
struct BatchError {
  std::string custom_id;  // empty: the line has none that counts
  uint64_t line = 0;
  std::string code;  // OpenAI's word for the reason
  std::string message;
  std::string param;  // the member at fault; empty: none
};

std::variant<BatchRequest, BatchError> ReadBatchLine(const TextLine& line, size_t max_body_bytes);
BatchError DuplicateError(const std::string& custom_id, uint64_t line);

// Lines of the output, with their end. The first needs a reply whose body is complete.
std::string AnswerLine(const std::string& custom_id, const HttpReply& reply);
std::string ErrorLine(const BatchError& error);

// What a line of the output answers: a custom_id, or the number of a line that has none.
using AnsweredLine = std::variant<std::string, uint64_t>;
// `text`: an output line, of which the first kAnswerHeadBytes suffice.
inline constexpr size_t kAnswerHeadBytes = 64 << 10;
Result<AnsweredLine> ReadAnswerLine(std::string_view text);
// Whether `text` may be the beginning of a line that AnswerLine or ErrorLine wrote.
bool BeginsAnswerLine(std::string_view text);

}  // namespace diffserve
