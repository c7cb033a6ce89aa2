// SPDX-License-Identifier: Apache-2.0
// The file of a Unix socket: who may open it, what it replaces and what it refuses; the server on
// it.
#include "server/http/listen/unix_socket_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/http/server.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

class UnixSocketFileTest : public ::testing::Test {
 protected:
  UnixSocketFileTest() {
    std::string made = ::testing::TempDir() + "socketXXXXXX";
    folder_ = mkdtemp(made.data());
    path_ = folder_ + "/s";
  }
  ~UnixSocketFileTest() override {
    for (const int fd : sockets_) close(fd);
    std::filesystem::remove_all(folder_);
  }
  int NewSocket() { return sockets_.emplace_back(socket(AF_UNIX, SOCK_STREAM, 0)); }
  bool Connects() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return connect(NewSocket(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  bool Exists() const { return std::filesystem::exists(path_); }

  std::string folder_, path_;
  std::vector<int> sockets_;
};

TEST_F(UnixSocketFileTest, OnlyTheOwnerMayOpenIt) {
  UnixSocketFile file;
  ASSERT_TRUE(file.Bind(NewSocket(), path_).ok());
  struct stat found{};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(UnixSocketFileTest, FileOfDeadProcessIsReplaced) {
  {
    UnixSocketFile dead;
    const int fd = NewSocket();
    ASSERT_TRUE(dead.Bind(fd, path_).ok());
    ASSERT_EQ(listen(fd, 1), 0);
    std::filesystem::rename(path_, path_ + "2");  // so that its end does not remove it
    close(fd);
    sockets_.pop_back();
  }
  std::filesystem::rename(path_ + "2", path_);
  const int fd = NewSocket();
  UnixSocketFile file;
  const Status status = file.Bind(fd, path_);
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_TRUE(Connects());
}

TEST_F(UnixSocketFileTest, SocketWithListenerIsRefusedAndStays) {
  const int fd = NewSocket();
  UnixSocketFile first;
  ASSERT_TRUE(first.Bind(fd, path_).ok());
  ASSERT_EQ(listen(fd, 0), 0);
  for (int i = 0; i < 4; ++i) {  // at last its queue is full
    UnixSocketFile second;
    EXPECT_THAT(second.Bind(NewSocket(), path_).message(), HasSubstr("another server listens"));
  }
  EXPECT_TRUE(Exists());
}

TEST_F(UnixSocketFileTest, OtherFilesAreRefusedAndStay) {
  std::ofstream(path_) << "text";
  UnixSocketFile file;
  EXPECT_THAT(file.Bind(NewSocket(), path_).message(), HasSubstr("not a socket"));
  EXPECT_TRUE(Exists());
  path_ = folder_ + "/none/s";
  EXPECT_THAT(file.Bind(NewSocket(), path_).message(), HasSubstr("No such file"));
}

TEST_F(UnixSocketFileTest, LongPathIsRefusedByItsLength) {
  EXPECT_TRUE(CheckUnixSocketPath(std::string(107, 'a')).ok());
  const Status status = CheckUnixSocketPath(std::string(108, 'a'));
  EXPECT_THAT(status.message(), HasSubstr("108 bytes; allowed: at most 107"));
  EXPECT_EQ(status.param(), "--unix-socket");
}

TEST_F(UnixSocketFileTest, FileOfSuccessorStays) {
  UnixSocketFile first, second;
  ASSERT_TRUE(first.Bind(NewSocket(), path_).ok());
  ASSERT_TRUE(second.Bind(NewSocket(), path_).ok()) << "the first does not listen";
  first.Remove();
  EXPECT_TRUE(Exists());
  second.Remove();
  EXPECT_FALSE(Exists());
}

TEST_F(UnixSocketFileTest, ServerListensThereUntilItStops) {
  std::string peer;
  HttpService service;
  service.serve = [&peer](HttpRequest request, std::function<void()>) -> HttpAnswer {
    peer = request.peer;
    HttpReply reply;
    reply.body = "{}";
    return reply;
  };
  service.draining = [] { return false; };
  HttpServerOptions options;
  options.unix_socket = path_;
  HttpServer server(options, service);
  ASSERT_TRUE(server.Start().ok());
  EXPECT_EQ(server.port(), 0);
  ASSERT_TRUE(Connects());
  const std::string request = "GET / HTTP/1.1\r\nHost: any.example\r\n\r\n";
  ASSERT_EQ(write(sockets_.back(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  char reply[512];
  const ssize_t count = read(sockets_.back(), reply, sizeof(reply));
  EXPECT_THAT(std::string(reply, static_cast<size_t>(std::max<ssize_t>(count, 0))),
              HasSubstr("HTTP/1.1 200"));
  EXPECT_EQ(peer, "unix");
  server.Stop(std::chrono::milliseconds(0));
  EXPECT_FALSE(Exists());
}

}  // namespace
}  // namespace diffserve
