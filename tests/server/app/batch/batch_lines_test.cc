// SPDX-License-Identifier: Apache-2.0
// The lines of run-batch's files, and the reader of lines.
#include "server/app/batch/batch_lines.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kGood[] =
    R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"z":1,"a":[2]}})";

constexpr size_t kMaxBodyBytes = 4 << 20;

TextLine LineOf(const std::string& text, uint64_t number = 7) {
  return {.text = text, .number = number, .bytes = text.size() + 1};
}

// The error of a line that is no request.
BatchError ErrorOf(const std::string& text) {
  const auto read = ReadBatchLine(LineOf(text), kMaxBodyBytes);
  const auto* error = std::get_if<BatchError>(&read);
  EXPECT_NE(error, nullptr) << text;
  return error != nullptr ? *error : BatchError();
}

// The lines of a file with this content, read `max_bytes` at most.
std::vector<TextLine> LinesOf(const std::string& content, size_t max_bytes) {
  const TemporaryDirectory directory;
  directory.Write("file", content);
  const int descriptor = open((directory.path() / "file").c_str(), O_RDONLY | O_CLOEXEC);
  LineReader reader("file", descriptor, max_bytes);
  std::vector<TextLine> lines;
  for (;;) {
    const Result<std::optional<TextLine>> next = reader.Next();
    if (!next.ok() || !*next) break;
    lines.push_back(**next);
  }
  close(descriptor);
  return lines;
}

TEST(BatchLinesTest, RequestKeepsItsBodyAsTheClientWroteIt) {
  const auto read = ReadBatchLine(LineOf(kGood), kMaxBodyBytes);
  const auto* request = std::get_if<BatchRequest>(&read);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->custom_id, "a");
  EXPECT_EQ(request->line, 7u);
  EXPECT_EQ(request->url, "/v1/completions");
  EXPECT_EQ(request->body, R"({"z":1,"a":[2]})");
}

TEST(BatchLinesTest, LineThatIsNoRequestSaysWhyAndWhere) {
  struct Case {
    const char* from;
    const char* to;
    const char* code;
    const char* message;
  };
  const Case cases[] = {
      {R"({"custom_id")", R"({custom_id")", "invalid_json_line", "line 7: the line is not valid"},
      {R"("a","method")", R"("","method")", "missing_required_parameter", "custom_id is empty"},
      {R"("a","method")", R"(5,"method")", "invalid_type", "custom_id is 5; allowed: a string"},
      {R"("POST")", R"("GET")", "invalid_method", "method is \"GET\"; allowed: POST"},
      {R"("method":"POST",)", "", "missing_required_parameter", "method is missing"},
      {"/v1/completions", "/v1/messages", "invalid_url",
       "url is \"/v1/messages\"; allowed: /v1/chat/completions, /v1/completions, /v1/embeddings, "
       "/v1/responses"},
      {R"({"z":1,"a":[2]})", R"("text")", "invalid_type", "body is a JSON string"},
      {R"("z":1)", R"("stream":true)", "stream_not_supported", "body.stream is on"},
  };
  for (const Case& c : cases) {
    std::string text = kGood;
    text.replace(text.find(c.from), std::string(c.from).size(), c.to);
    const BatchError error = ErrorOf(text);
    EXPECT_EQ(error.code, c.code) << text;
    EXPECT_THAT(error.message, HasSubstr(c.message)) << text;
    EXPECT_EQ(error.line, 7u);
    const bool has_id = text.find(R"("custom_id":"a")") != std::string::npos;
    EXPECT_EQ(error.custom_id, has_id ? "a" : "") << text;
  }
}

TEST(BatchLinesTest, AnswerHasOpenAisMembersAndIsOneLine) {
  HttpReply reply;
  reply.status = 200;
  reply.body = R"({"text":"\n"})";
  reply.fields = {{"X-Request-Id", "r1"}};
  const std::string line = AnswerLine("a\"b", reply);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Json answer = Json::parse(line);
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("batch_req_"));
  EXPECT_EQ(answer["custom_id"], "a\"b");
  EXPECT_EQ(answer["response"],
            Json({{"status_code", 200}, {"request_id", "r1"}, {"body", {{"text", "\n"}}}}));
  EXPECT_TRUE(answer["error"].is_null());
  EXPECT_EQ(answer.size(), 4u);
}

TEST(BatchLinesTest, EveryLineWrittenIsReadBack) {
  const std::string nasty = R"(x","response":{"custom_id":"y)";
  EXPECT_EQ(*ReadAnswerLine(AnswerLine(nasty, HttpReply())), AnsweredLine(nasty));
  BatchError error = {nasty, 3, "code", "message", ""};
  EXPECT_EQ(*ReadAnswerLine(ErrorLine(error)), AnsweredLine(nasty));
  error.custom_id.clear();
  EXPECT_EQ(*ReadAnswerLine(ErrorLine(error)), AnsweredLine(uint64_t{3}));
  EXPECT_EQ(Json::parse(ErrorLine(DuplicateError("a", 4)))["error"]["line"], 4);
  EXPECT_TRUE(BeginsAnswerLine(ErrorLine(error)));
}

TEST(BatchLinesTest, HeadOfALongAnswerSuffices) {
  HttpReply reply;
  reply.body = "[" + std::string(kAnswerHeadBytes, ' ') + "]";
  const std::string line = AnswerLine("a", reply);
  EXPECT_EQ(*ReadAnswerLine(line.substr(0, kAnswerHeadBytes)), AnsweredLine(std::string("a")));
}

TEST(BatchLinesTest, ForeignLineIsNoAnswer) {
  for (const char* text : {"{}", "text", R"({"id":"x","custom_id":null,"response":null})",
                           R"({"custom_id":5,"response":null})"}) {
    EXPECT_FALSE(ReadAnswerLine(text).ok()) << text;
  }
  EXPECT_TRUE(BeginsAnswerLine(R"({"id":"bat)"));
  EXPECT_FALSE(BeginsAnswerLine(R"({"name": 1)"));
}

TEST(LineReaderTest, LinesOfAnyLengthAreReadWhole) {
  const std::string large(600'000, 'x');
  const std::vector<TextLine> lines = LinesOf("a\n\n" + large + "\nlast", 1 << 20);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].text, "a");
  EXPECT_EQ(lines[1].text, "");
  EXPECT_EQ(lines[1].bytes, 1u);
  EXPECT_EQ(lines[2].text, large);
  EXPECT_EQ(lines[3].text, "last");
  EXPECT_EQ(lines[3].number, 4u);
  EXPECT_FALSE(lines[3].is_ended);
  EXPECT_TRUE(lines[2].is_ended);
}

TEST(LineReaderTest, PipeGivesItsWholeLinesAndNeverWaits) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  LineReader reader("pipe", ends[0], 100);
  const auto next = [&] {
    const Result<std::optional<TextLine>> line = reader.Next();
    return line.ok() && *line ? (*line)->text : "none";
  };
  EXPECT_EQ(next(), "none");
  ASSERT_EQ(write(ends[1], "a\nb", 3), 3);
  EXPECT_EQ(next(), "a");
  EXPECT_EQ(next(), "none");
  ASSERT_EQ(write(ends[1], "c\nd", 3), 3);
  EXPECT_EQ(next(), "bc");
  EXPECT_EQ(next(), "none");
  EXPECT_FALSE(reader.ended());
  close(ends[1]);
  EXPECT_EQ(next(), "d");
  EXPECT_EQ(next(), "none");
  EXPECT_TRUE(reader.ended());
  close(ends[0]);
}

TEST(LineReaderTest, FileIsReadFromItsPosition) {
  const TemporaryDirectory directory;
  directory.Write("file", "head\na\n");
  const int descriptor = open((directory.path() / "file").c_str(), O_RDONLY);
  ASSERT_EQ(lseek(descriptor, 5, SEEK_SET), 5);
  LineReader reader("file", descriptor, 100);
  const Result<std::optional<TextLine>> line = reader.Next();
  ASSERT_TRUE(line.ok() && *line);
  EXPECT_EQ((*line)->text, "a");
  close(descriptor);
}

TEST(LineReaderTest, TooLongLineIsCutAndTheNextIsWhole) {
  const std::vector<TextLine> lines = LinesOf(std::string(700'000, 'x') + "\n1234\n12345", 4);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].is_cut);
  EXPECT_EQ(lines[0].text, "xxxx");
  EXPECT_EQ(lines[0].bytes, 700'001u);
  EXPECT_FALSE(lines[1].is_cut);
  EXPECT_EQ(lines[1].text, "1234");
  EXPECT_TRUE(lines[2].is_cut);
  const auto read = ReadBatchLine(lines[0], kMaxBodyBytes);
  EXPECT_THAT(std::get<BatchError>(read).message,
              HasSubstr("has 700001 bytes; allowed: at most 4"));
}

}  // namespace
}  // namespace diffserve
