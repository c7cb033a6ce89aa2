// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/chunk_reader.h"

#include "server/json/json.h"

namespace diffserve {
namespace {

constexpr size_t kMaxLineBytes = 8 << 20;
constexpr size_t kMaxChoices = 16;
constexpr std::string_view kData = "data:";

// Empty: the body has no error.
std::string MessageOf(JsonFields& fields) {
  std::string message;
  for (JsonFields& error : fields.Object("error")) {
    error.String("message", kMaxLineBytes, &message);
    if (message.empty()) message = "an error without a message";
  }
  return message;
}

}  // namespace

Status ChunkReader::Take(std::string_view bytes, const TakeText& take) {
  while (!bytes.empty() && !done_) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() > kMaxLineBytes)
      return Status(StatusCode::kUnavailable, "the answer has an event of more than 8 MiB");
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    DS_RETURN_IF_ERROR(TakeLine(line_, take));
    line_.clear();
  }
  return {};
}

// Comments, empty lines and fields other than data are ignored.
Status ChunkReader::TakeLine(std::string_view line, const TakeText& take) {
  if (!line.starts_with(kData)) return {};
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    done_ = true;
    return {};
  }
  return TakeChunk(line, take);
}

Status ChunkReader::TakeChunk(std::string_view data, const TakeText& take) {
  Result<JsonFields> fields = JsonFields::Parse(data);
  if (!fields.ok()) {
    return Status(StatusCode::kUnavailable,
                  "the answer has an event that is not a chunk: " + fields.status().message());
  }
  if (std::string error = MessageOf(*fields); !error.empty())
    return Status(StatusCode::kUnavailable, std::move(error));
  for (JsonFields& choice : fields->Objects("choices", kMaxChoices)) {
    for (JsonFields& delta : choice.Object("delta")) {
      std::string text;
      delta.String("content", kMaxLineBytes, &text);
      if (!text.empty()) take(text);
      fields->Fail(delta.status());
    }
    choice.String("finish_reason", kMaxLineBytes, &finish_reason_);
    fields->Fail(choice.status());
  }
  if (fields->status().ok()) return {};
  return Status(StatusCode::kUnavailable,
                "the answer has an invalid chunk: " + fields->status().message());
}

std::string OpenAiErrorMessage(std::string_view body) {
  Result<JsonFields> fields = JsonFields::Parse(body);
  std::string message = fields.ok() ? MessageOf(*fields) : "";
  return message.empty() ? std::string(body) : message;
}

}  // namespace diffserve
