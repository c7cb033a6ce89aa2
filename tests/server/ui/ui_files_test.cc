// SPDX-License-Identifier: Apache-2.0
// The page's files as the HTTP port serves them.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "server/ui/files.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/kernels/temporary_directory.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Once;
using testing::ServingFixture;
using testing::ServingOptions;

constexpr size_t kMaxUiBytes = 150'000;  // of all of them

std::string PathOf(std::string_view name) {
  return name == "index.html" ? "/" : "/ui/" + std::string(name);
}

TEST(UiFilesTest, EachFileIsServedByteForByte) {
  ServingFixture server;
  std::set<std::string> names;
  size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SourceDirectory() + "/server/ui")) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".html") && !name.ends_with(".css") && !name.ends_with(".js")) continue;
    names.insert(name);
    const ClientReply reply = Once(server.port(), "GET", PathOf(name));
    EXPECT_EQ(reply.status, 200) << name;
    EXPECT_EQ(reply.body, FileBytes(entry.path())) << name;
    bytes += reply.body.size();
  }
  EXPECT_EQ(names.size(), UiFiles().size());
  EXPECT_LT(bytes, kMaxUiBytes);
}

TEST(UiFilesTest, FilesHaveTypesAndAStrictContentPolicy) {
  ServingFixture server;
  for (const UiFile& file : UiFiles()) {
    ClientReply reply = Once(server.port(), "GET", PathOf(file.name));
    const std::string type = file.name.ends_with(".js")    ? "text/javascript"
                             : file.name.ends_with(".css") ? "text/css"
                                                           : "text/html";
    EXPECT_EQ(reply.fields["content-type"], type + "; charset=utf-8");
    EXPECT_EQ(reply.fields["content-security-policy"],
              "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
              "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
              "frame-ancestors 'none'");
    EXPECT_EQ(reply.fields["x-content-type-options"], "nosniff");
    EXPECT_EQ(reply.fields["referrer-policy"], "no-referrer");
    EXPECT_EQ(reply.fields["cache-control"], "no-cache");
  }
}

TEST(UiFilesTest, UnknownFileIsNotFound) {
  ServingFixture server;
  for (const char* path :
       {"/ui/", "/ui/index.html", "/ui/nothing.js", "/ui/main.js/", "/ui//main.js", "/ui/files.cc",
        "/ui/../ui/main.js", "/ui/%6dain.js", "/ui/main.js%00", "/ui", "/index.html"}) {
    EXPECT_EQ(Once(server.port(), "GET", path).status, 404) << path;
  }
  EXPECT_EQ(Once(server.port(), "GET", "/?x=1").status, 200);
}

TEST(UiFilesTest, PathsAreUnknownWithoutThePage) {
  ServingOptions options;
  options.routes.ui = false;
  {
    ServingFixture server(options);
    EXPECT_EQ(Once(server.port(), "GET", "/").status, 404);
    EXPECT_EQ(Once(server.port(), "GET", "/ui/main.js").status, 404);
    EXPECT_EQ(Once(server.port(), "GET", "/livez").status, 200);
  }
  options.keys = "secret\n";
  ServingFixture server(options);
  EXPECT_EQ(Once(server.port(), "GET", "/").status, 401);
}

}  // namespace
}  // namespace diffserve
