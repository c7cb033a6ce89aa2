#include "kernels/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace diffserve {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

// Fills `text`, whose size is what is expected. Error: what is wrong.
Status ReadWhole(int descriptor, const std::string& path, std::string& text) {
  for (size_t got = 0; got < text.size();) {
    const ssize_t count = pread(descriptor, text.data() + got, text.size() - got,
                                static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return InvalidArgument(path + ": cannot be read: " + std::strerror(errno));
    if (count == 0) return InvalidArgument(path + ": became shorter while it was read");
    got += static_cast<size_t>(count);
  }
  return Status();
}

}  // namespace

Result<int> OpenRegularFile(const std::string& path) {
  // Non-blocking, so that the open of a pipe returns.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT) return Status(StatusCode::kNotFound, path + ": no such file");
    return InvalidArgument(path + ": cannot be opened: " + std::strerror(errno));
  }
  struct stat status{};
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  close(descriptor);
  return InvalidArgument(path + ": is " + KindOf(status.st_mode) + ", expected a regular file");
}

Result<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  const Result<int> descriptor = OpenRegularFile(path);
  if (!descriptor.ok()) return descriptor.status();
  struct stat status{};
  const size_t size = fstat(*descriptor, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
  std::string text(size <= max_bytes ? size : 0, '\0');
  const Status read = ReadWhole(*descriptor, path, text);
  close(*descriptor);
  DS_RETURN_IF_ERROR(read);
  if (size <= max_bytes) return text;
  return InvalidArgument(path + ": has " + std::to_string(size) + " bytes, allowed " +
                         std::to_string(max_bytes));
}

}  // namespace diffserve
