// SPDX-License-Identifier: Apache-2.0
// Input and output of a chat in the terminal: a server's stream, hostile text, the history.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/process/terminal_text.h"
#include "server/app/chat/chat_history.h"
#include "server/app/chat/chunk_reader.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

// The bytes of U+00FC and U+00DF are cut too.
constexpr char kStream[] =
    ": a comment\r\n"
    R"(data: {"choices":[{"index":0,"delta":{"content":""},"prompt_token_ids":[7,8]}]})"
    "\r\n\r\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"Gr\xC3\xBC\xC3\x9F "
    "\"},\"token_ids\":[1,2]}]}\n\n"
    "event: x\n"
    R"(data:{"choices":[{"delta":{"content":"Gott"},"finish_reason":"length","token_ids":[3]}]})"
    "\n\n"
    R"(data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}})"
    "\n\ndata: [DONE]\n\ndata: never read\n\n";

struct ReadStream {
  std::string text;
  Status status;
  ChunkReader reader;
};

ReadStream Read(std::string_view stream, size_t piece_bytes) {
  ReadStream read;
  while (!stream.empty() && read.status.ok()) {
    read.status = read.reader.Take(stream.substr(0, piece_bytes),
                                   [&](std::string_view piece) { read.text += piece; });
    stream.remove_prefix(std::min(piece_bytes, stream.size()));
  }
  return read;
}

TEST(ChunkReaderTest, StreamIsReadIndependentlyOfTheCuts) {
  for (const size_t bytes : {1u, 2u, 3u, 7u, 64u, 10'000u}) {
    const ReadStream read = Read(kStream, bytes);
    EXPECT_TRUE(read.status.ok()) << read.status.message();
    EXPECT_EQ(read.text, "Gr\xC3\xBC\xC3\x9F Gott");
    EXPECT_TRUE(read.reader.done());
    EXPECT_EQ(read.reader.finish_reason(), "length");
  }
}

TEST(ChunkReaderTest, ErrorEventBecomesTheError) {
  const ReadStream read = Read("data: {\"error\":{\"message\":\"out of luck\"}}\n\n", 9);
  EXPECT_EQ(read.status.message(), "out of luck");
  EXPECT_FALSE(read.reader.done());
}

TEST(ChunkReaderTest, EventThatIsNotAChunkIsRefused) {
  for (const char* wrong : {"data: [1]\n", "data: {\n", "data: {\"choices\":7}\n",
                            "data: {\"choices\":[{\"delta\":{\"content\":7}}]}\n",
                            "data: {\"choices\":[{\"delta\":[]}]}\n"}) {
    const ReadStream read = Read(wrong, 100);
    EXPECT_EQ(read.status.code(), StatusCode::kUnavailable) << wrong;
  }
  const ReadStream endless = Read("data: " + std::string(9 << 20, 'x'), 1 << 16);
  EXPECT_THAT(endless.status.message(), HasSubstr("more than 8 MiB"));
}

TEST(ChunkReaderTest, ErrorBodyIsShownAsItIs) {
  EXPECT_EQ(OpenAiErrorMessage("{\"error\":{\"message\":\"no such model\"}}"), "no such model");
  EXPECT_EQ(OpenAiErrorMessage("<html>"), "<html>");
}

TEST(TerminalTextTest, OrdinaryTextIsUnchanged) {
  const std::string text = "a\tb\nGr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80\n";
  EXPECT_EQ(ShownOnTerminal(text), text);
}

TEST(TerminalTextTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(ShownOnTerminal("\x1b[2J"), "\xE2\x90\x9B[2J");
  EXPECT_EQ(ShownOnTerminal("\r\a\x7f"), "\xE2\x90\x8D\xE2\x90\x87\xE2\x90\xA1");
  EXPECT_EQ(ShownOnTerminal(std::string_view("\0", 1)), "\xE2\x90\x80");
  EXPECT_EQ(ShownOnTerminal("\xC2\x9B"
                            "31m"),
            "\xEF\xBF\xBD"
            "31m")
      << "CSI of 8 bits";
  EXPECT_EQ(ShownOnTerminal("\xE2\x80\xAE"
                            "abc"),
            "\xEF\xBF\xBD"
            "abc")
      << "right to left";
}

// The shown text is UTF-8 and has no control characters except line feed and tab, for any bytes in
// any pieces.
TEST(TerminalTextTest, ArbitraryBytesAreShownAsHarmlessText) {
  std::srand(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (int i = std::rand() % 12; i >= 0; --i) {
      constexpr unsigned char kEdges[] = {0x1b, 0x80, 0x9b, 0xbf, 0xc0, 0xc2, 0xe0, 0xe2,
                                          0xed, 0xef, 0xf0, 0xf4, 0xf5, 'a',  '\n', 0xae};
      bytes += static_cast<char>(kEdges[std::rand() % 16]);
    }
    TerminalText terminal;
    std::string shown;
    for (const char c : bytes) shown += terminal.Push(std::string_view(&c, 1));
    shown += terminal.Finish();
    EXPECT_EQ(shown, ShownOnTerminal(bytes));
    EXPECT_TRUE(IsValidUtf8(shown));
    for (size_t i = 0; i < shown.size(); ++i) {
      const auto byte = static_cast<unsigned char>(shown[i]);
      EXPECT_TRUE(byte >= 0x20 || byte == '\n' || byte == '\t');
      EXPECT_FALSE(byte == 0xC2 && static_cast<unsigned char>(shown[i + 1]) < 0xA0);
    }
  }
}

TEST(TerminalTextTest, QuoteIsOneShortLine) {
  EXPECT_EQ(QuotedOnTerminal("a\nb"), "a b");
  EXPECT_LE(QuotedOnTerminal(std::string(100'000, 'x')).size(), 200u);
}

TEST(ChatHistoryTest, MessagesAreJsonInTheirOrder) {
  ChatHistory history("Be \"brief\".");
  history.Add("one\n", "two");
  const auto messages = nlohmann::json::parse(TemplateJsonOf(history.With("three")).messages,
                                              nullptr, false);
  const nlohmann::json expected = {{{"role", "system"}, {"content", "Be \"brief\"."}},
                                   {{"role", "user"}, {"content", "one\n"}},
                                   {{"role", "assistant"}, {"content", "two"}},
                                   {{"role", "user"}, {"content", "three"}}};
  EXPECT_EQ(messages, expected);
  history.Reset();
  EXPECT_EQ(
      nlohmann::json::parse(TemplateJsonOf(history.With("x")).messages, nullptr, false).size(), 2u);
  history.SetSystem("");
  EXPECT_EQ(TemplateJsonOf(history.With("x")).messages, R"([{"role":"user","content":"x"}])");
}

}  // namespace
}  // namespace diffserve
