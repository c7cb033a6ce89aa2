// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/url.h"

namespace diffserve {
namespace {

TEST(HttpUrlTest, HostPortAndPathAreSplit) {
  struct Case {
    const char *text, *host, *port, *path, *authority;
  };
  const Case cases[] = {
      {"http://127.0.0.1:8000", "127.0.0.1", "8000", "/readyz", "127.0.0.1:8000"},
      {"http://localhost:1/", "localhost", "1", "/", "localhost:1"},
      {"http://a-b.c_d:65535/v1/models?x=1", "a-b.c_d", "65535", "/v1/models?x=1", "a-b.c_d:65535"},
      {"http://[::1]:8000/livez", "::1", "8000", "/livez", "[::1]:8000"},
      {"http://[fe80::1%eth0]:80", "fe80::1%eth0", "80", "/readyz", "[fe80::1%eth0]:80"},
  };
  for (const Case& c : cases) {
    const Result<HttpUrl> url = ParseHttpUrl(c.text);
    ASSERT_TRUE(url.ok()) << c.text;
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->port, c.port);
    EXPECT_EQ(url->path, c.path);
    EXPECT_EQ(url->Authority(), c.authority);
  }
}

TEST(HttpUrlTest, InvalidUrlIsRefusedWithTheAllowedForm) {
  for (const char* text : {"",
                           "http://",
                           "localhost:8000",
                           "https://localhost:8000",
                           "HTTP//h:1",
                           "http://h",
                           "http://h/",
                           "http://:80",
                           "http://h:",
                           "http://h:0",
                           "http://h:65536",
                           "http://h:80x",
                           "http://h:-1",
                           "http://h:80?x",
                           "http://::1:80",
                           "http://[::1]",
                           "http://[]:80",
                           "http://[::1:80",
                           "http://u@h:80",
                           "http://h:80/a b",
                           "http://h:80/a\r\nb",
                           "http://h:80/#x",
                           "http://h\n:80",
                           "http://h:80/\xc3\xa4"}) {
    const Result<HttpUrl> url = ParseHttpUrl(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(url.status().param(), "URL");
    EXPECT_THAT(url.status().message(), ::testing::HasSubstr("allowed: http://HOST:PORT[/PATH]"));
  }
}

}  // namespace
}  // namespace diffserve
