// SPDX-License-Identifier: Apache-2.0
#include "models/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

// How a file begins that replaces another one: a pointer, or the page of a failed download.
struct StandIn {
  std::string_view begin;
  const char* what;
};
constexpr StandIn kStandIns[] = {
    {"version https://git-lfs.github.com/spec/",
     "is a Git LFS pointer, not the file itself; git lfs pull in its directory fetches that"},
    {"# xet version", "is a Xet pointer, not the file itself; hf download fetches that"},
    {"<!DOCTYPE html", "is an HTML page, not the file itself; a download failed"},
    {"<!doctype html", "is an HTML page, not the file itself; a download failed"},
    {"<html", "is an HTML page, not the file itself; a download failed"},
    {"Entry not found", "is the answer of a failed download, not the file itself"},
};

// nullptr: the file may be what its name says.
const char* StandInIn(int descriptor) {
  char text[48];
  const ssize_t count = pread(descriptor, text, sizeof(text), 0);
  const std::string_view begin(text, count > 0 ? static_cast<size_t>(count) : 0);
  for (const StandIn& stand_in : kStandIns) {
    if (begin.starts_with(stand_in.begin)) return stand_in.what;
  }
  return nullptr;
}

// Fills `text`, whose size is the expected one. Error: what is wrong.
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
  // Non-blocking, so that opening a pipe returns.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT) return Status(StatusCode::kNotFound, path + ": no such file");
    return InvalidArgument(path + ": cannot be opened: " + std::strerror(errno));
  }
  struct stat status{};
  const bool is_regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const char* const stand_in = is_regular ? StandInIn(descriptor) : nullptr;
  if (is_regular && stand_in == nullptr) return descriptor;
  close(descriptor);
  if (stand_in != nullptr) return InvalidArgument(path + ": " + stand_in);
  return NotAllowed(path + ": is " + KindOf(status.st_mode), "a regular file");
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
  return NotAllowed(path + ": has " + std::to_string(size) + " bytes",
                    "at most " + std::to_string(max_bytes));
}

Result<std::string> ReadJsonFile(const std::string& path, size_t max_bytes) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  Result<std::string> text = ReadRegularFile(path, max_bytes);
  if (text.ok() && text->starts_with(kByteOrderMark)) text->erase(0, kByteOrderMark.size());
  return text;
}

}  // namespace diffserve
