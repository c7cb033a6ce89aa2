// SPDX-License-Identifier: Apache-2.0
// The reader without sockets: the gate's rules, body framing, and that it never matters how the
// bytes are cut.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/http/reader.h"
#include "tests/testing/server/http_cases.h"
#include "tests/testing/server/second_reading.h"

namespace diffserve {
namespace {

using testing::HttpCase;

// 0 while more is needed, 200 for a complete request, else the refusal's status.
int StatusOf(const HttpReader& reader) {
  switch (reader.state()) {
    case HttpReader::State::kReady:
      return 200;
    case HttpReader::State::kRefused:
      return reader.refusal().status;
    default:
      return 0;
  }
}

int Fed(const std::string& bytes, size_t piece) {
  HttpReader reader{HttpLimits()};
  for (size_t i = 0; i < bytes.size() && StatusOf(reader) == 0; i += piece)
    reader.Feed(std::string_view(bytes).substr(i, piece));
  return StatusOf(reader);
}

TEST(HttpReaderTest, EveryHeadOfTheTableIsServedOrRefused) {
  for (const HttpCase& c : testing::HttpHeadCases()) {
    EXPECT_EQ(Fed(c.bytes, c.bytes.size()), c.status) << c.name;
    EXPECT_EQ(Fed(c.bytes, 1) == 200, c.status == 200) << c.name << ", byte by byte";
  }
}

TEST(HttpReaderTest, SecondParserReadsTheSameFromEveryServedHead) {
  int served = 0;
  for (const HttpCase& c : testing::HttpHeadCases()) {
    HttpReader reader{HttpLimits()};
    reader.Feed(c.bytes);
    if (StatusOf(reader) != 200) continue;
    const size_t begin = c.bytes.starts_with("\r\n") ? 2 : 0;  // an empty line, which is ignored
    const std::string raw = c.bytes.substr(begin, c.bytes.find("\r\n\r\n") + 4 - begin);
    EXPECT_TRUE(testing::IsReadAlike(raw, reader.Take().head)) << c.name;
    ++served;
  }
  EXPECT_GT(served, 10);
}

TEST(HttpReaderTest, EveryBodyOfTheTableIsReadOrRefused) {
  for (const HttpCase& c : testing::HttpBodyCases()) {
    const int expected = c.status == 405 ? 200 : c.status;
    EXPECT_EQ(Fed(c.bytes, c.bytes.size()), expected) << c.name;
    EXPECT_EQ(Fed(c.bytes, 1), expected) << c.name << ", byte by byte";
  }
}

TEST(HttpReaderTest, TooLongRequestLineIsRefusedIndependentlyOfTheCuts) {
  const std::string begun = std::string(9000, 'M') + " / HTTP/1.1\r\nHost: h\r\n";  // a long
                                                                                    // method, a
                                                                                    // short target
  for (const size_t piece : {size_t{1}, size_t{100}, begun.size() + 2}) {
    EXPECT_EQ(Fed(begun, piece), 414) << piece;
    EXPECT_EQ(Fed(begun + "\r\n", piece), 414) << piece;
  }
}

TEST(HttpReaderTest, RandomCutsGiveTheSameRequests) {
  const std::string stream =
      "POST /a?x=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
      "GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
      "POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n12345"
      "GET /d HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    HttpReader reader{HttpLimits()};
    std::string seen;
    for (size_t i = 0; i < stream.size();) {
      const size_t piece = std::min<size_t>(stream.size() - i, 1 + random() % 40);
      reader.Feed(std::string_view(stream).substr(i, piece));
      i += piece;
      while (reader.state() == HttpReader::State::kReady) {
        const HttpRequest request = reader.Take();
        seen += request.head.path + "=" + request.body + (request.head.keep_alive ? ";" : ".");
        reader.Next();
      }
    }
    EXPECT_EQ(seen, "/a=abcde;/b=;/c=12345;/d=.");
  }
}

TEST(HttpReaderTest, ReadablePartOfARefusedHeadIsKept) {
  const std::string origin = "Origin: https://a.example\r\n";
  const std::string post = "POST /v1/messages?x HTTP/1.1\r\nHost: h\r\n" + origin;
  const struct {
    const char* name;
    std::string bytes;
    const char* path;
    const char* origin;
  } kCases[] = {
      {"too large", post + "Content-Length: 99999999\r\n\r\n", "/v1/messages", "https://a.example"},
      {"chunk too large", post + "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", "/v1/messages",
       "https://a.example"},
      {"a NUL after it", post + std::string("X: \0\r\n\r\n", 8), "/v1/messages",
       "https://a.example"},
      {"a bare LF within it", "GET /a HTTP/1.1\r\nOrigin: https://a.example\nX: y\r\n\r\n", "/a",
       ""},
      {"a field without colon", "GET /a HTTP/1.1\r\nno\r\n" + origin + "\r\n", "/a",
       "https://a.example"},
      {"a bad request line", "GET  /a HTTP/1.1\r\n" + origin + "\r\n", "", "https://a.example"},
      {"a bad name", "GET /a HTTP/1.1\r\nOrigin : https://a.example\r\n\r\n", "/a", ""},
      {"no head", "\x16\x03\r\n", "", ""},
  };
  for (const auto& c : kCases) {
    HttpReader reader{HttpLimits()};
    reader.Feed(c.bytes);
    ASSERT_EQ(reader.state(), HttpReader::State::kRefused) << c.name;
    EXPECT_EQ(reader.HeadSoFar().path, c.path) << c.name;
    EXPECT_EQ(reader.HeadSoFar().Field("origin"), c.origin) << c.name;
  }
  HttpReader slow{HttpLimits()};
  slow.Feed(post);
  EXPECT_EQ(slow.HeadSoFar().path, "/v1/messages") << "its end is yet to come";
}

TEST(HttpReaderTest, TrailersAreNeverMergedIntoTheFields) {
  HttpReader reader{HttpLimits()};
  reader.Feed(
      "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: Bearer "
      "k\r\nX-New: 1\r\n\r\n");
  ASSERT_EQ(reader.state(), HttpReader::State::kReady);
  const HttpRequest request = reader.Take();
  EXPECT_FALSE(request.head.HasField("authorization"));
  EXPECT_FALSE(request.head.HasField("x-new"));
}

TEST(HttpReaderTest, BodyAtTheLimitIsReadAndOneByteMoreIsRefused) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  for (const bool chunked : {false, true}) {
    for (const int extra : {0, 1}) {
      HttpReader reader(limits);
      const std::string body(1000 + extra, 'b');
      reader.Feed(
          chunked ? "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n" +
                        body.substr(0, 500) + "\r\n" + (extra == 0 ? "1f4" : "1f5") + "\r\n" +
                        body.substr(500) + "\r\n0\r\n\r\n"
                  : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
                        "\r\n\r\n" + body);
      EXPECT_EQ(StatusOf(reader), extra == 0 ? 200 : 413) << chunked;
      if (extra == 0) {
        EXPECT_EQ(reader.Take().body, body);
      }
    }
  }
}

TEST(HttpReaderTest, HostIsThatOfTheTargetBeforeThatOfTheField) {
  const auto head = [](const std::string& bytes) {
    HttpReader reader{HttpLimits()};
    reader.Feed(bytes + "\r\n");
    return reader.Take().head;
  };
  EXPECT_EQ(head("GET /x HTTP/1.1\r\nHost: b:1\r\n").host, "b:1");
  EXPECT_EQ(head("GET http://a:8/x?y HTTP/1.1\r\nHost: b\r\n").host, "a:8");
  EXPECT_EQ(head("GET /x?u=http://a HTTP/1.1\r\nHost: b\r\n").host, "b");
  EXPECT_EQ(head("GET /x HTTP/1.0\r\n").host, "");
  EXPECT_EQ(head("GET http://a HTTP/1.1\r\nHost: b\r\n").path, "/");
  EXPECT_EQ(head("GET http://a?y HTTP/1.1\r\nHost: b\r\n").query, "y");
  EXPECT_EQ(head("OPTIONS http://a HTTP/1.1\r\nHost: b\r\n").path, "*");
  EXPECT_EQ(head("OPTIONS http://a/ HTTP/1.1\r\nHost: b\r\n").path, "/");
}

TEST(HttpReaderTest, OneEmptyLineBeforeEachRequestIsIgnored) {
  const std::string request = "\r\nPOST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
  HttpReader reader{HttpLimits()};
  for (int i = 0; i < 3; ++i) {
    for (const char c : request) reader.Feed({&c, 1});
    ASSERT_EQ(reader.state(), HttpReader::State::kReady) << i;
    EXPECT_EQ(reader.Take().body, "ab");
    reader.Next();
  }
}

TEST(HttpReaderTest, ChunkExtensionsAreNoPartOfTheBody) {
  HttpReader reader{HttpLimits()};
  reader.Feed(
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=\"y; z\"\r\nabc\r\n"
      "2 ;last\r\nde\r\n0;0\r\n\r\n");
  ASSERT_EQ(reader.state(), HttpReader::State::kReady);
  EXPECT_EQ(reader.Take().body, "abcde");
}

TEST(HttpReaderTest, ContinueIsDueOnceAndOnlyBeforeTheBody) {
  const std::string head =
      "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  HttpReader waiting{HttpLimits()};
  waiting.Feed(head);
  EXPECT_TRUE(waiting.TakeContinue());
  EXPECT_FALSE(waiting.TakeContinue());
  HttpReader eager{HttpLimits()};
  eager.Feed(head + "ab");
  EXPECT_FALSE(eager.TakeContinue());
}

TEST(HttpReaderTest, KeepAliveFollowsVersionAndConnectionOptions) {
  const auto keep_alive = [](const std::string& version, const std::string& connection) {
    HttpReader reader{HttpLimits()};
    reader.Feed("GET / " + version + "\r\nHost: h\r\n" + connection + "\r\n");
    return reader.Take().head.keep_alive;
  };
  EXPECT_TRUE(keep_alive("HTTP/1.1", ""));
  EXPECT_FALSE(keep_alive("HTTP/1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keep_alive("HTTP/1.1", "Connection: te, close\r\n"));
  EXPECT_FALSE(keep_alive("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
  EXPECT_FALSE(keep_alive("HTTP/1.0", ""));
  EXPECT_TRUE(keep_alive("HTTP/1.0", "Connection: keep-alive\r\n"));
}

TEST(HttpGateTest, LoopbackNamesAreRecognized) {
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:80", "127.9.9.9",
                           "[::1]", "[::1]:8000"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"example.org", "127.example.org", "localhost.example.org", "10.0.0.1",
                           "[::2]", "0.0.0.0", "1270.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace diffserve
