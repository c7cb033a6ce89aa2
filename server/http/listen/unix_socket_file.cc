// SPDX-License-Identifier: Apache-2.0
#include "server/http/listen/unix_socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr char kFlag[] = "--unix-socket";
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // it ends with a NUL
constexpr mode_t kOnlyOwner = S_IRUSR | S_IWUSR;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kMaxPathBytes);
  return address;
}

Status CannotListen(const std::string& path, const std::string& why) {
  return Status(StatusCode::kUnavailable, "cannot listen on unix:" + path + ": " + why, kFlag);
}

// 0: a server listens on the socket at `path`; else the error of connecting to it.
int ErrorOfConnecting(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const sockaddr_un address = AddressOf(path);
  const int failed = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = failed == 0 || errno == EAGAIN ? 0 : errno;  // EAGAIN: its queue is full
  close(fd);
  return error;
}

// Removes what a process that died has left at `path`.
Status RemoveStale(const std::string& path) {
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? Status() : CannotListen(path, std::strerror(errno));
  if (!S_ISSOCK(found.st_mode))
    return CannotListen(path, "the file there is not a socket; remove it or name another path");
  const int error = ErrorOfConnecting(path);
  if (error == 0) return CannotListen(path, "another server listens there");
  if (error != ECONNREFUSED) return CannotListen(path, std::strerror(error));
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return CannotListen(path, std::strerror(errno));
}

}  // namespace

Status CheckUnixSocketPath(const std::string& path) {
  if (path.size() <= kMaxPathBytes) return {};
  return NotAllowed(
      std::string(kFlag) + " " + path + " has " + std::to_string(path.size()) + " bytes",
      "at most " + std::to_string(kMaxPathBytes), kFlag);
}

Status UnixSocketFile::Bind(int fd, const std::string& path) {
  DS_RETURN_IF_ERROR(CheckUnixSocketPath(path));
  DS_RETURN_IF_ERROR(RemoveStale(path));
  const sockaddr_un address = AddressOf(path);
  // The file gets the mode of its socket. chmod of its name might follow a link that replaced it.
  if (fchmod(fd, kOnlyOwner) != 0) return CannotListen(path, std::strerror(errno));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return CannotListen(path, std::strerror(errno));
  struct stat made{};
  if (lstat(path.c_str(), &made) != 0) return CannotListen(path, std::strerror(errno));
  path_ = path;
  device_ = made.st_dev;
  inode_ = made.st_ino;
  return {};
}

void UnixSocketFile::Remove() {
  struct stat found{};
  if (!path_.empty() && lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
      found.st_ino == inode_)
    unlink(path_.c_str());
  path_.clear();
}

}  // namespace diffserve
