// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/store_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxProcesses = 64;  // of one fingerprint
constexpr size_t kNameBytes = 8;   // of the fingerprint, in a subdirectory's name
constexpr std::string_view kDigits = "0123456789abcdef";

Status DirectoryError(const std::string& path) {
  return InvalidArgument("--kv-cache-dir " + path + ": " + std::strerror(errno), "--kv-cache-dir");
}

int64_t NanosecondsOf(const timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

bool MakeDirectory(const std::string& path) {
  return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
}

std::string LockPath(const std::string& directory) { return directory + "/lock"; }

// A lock of the whole file. It belongs to the open file, so it ends with the process, and another
// process can ask for it without taking it.
struct flock FileLock() {
  return {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0, .l_pid = 0};
}

// A descriptor that holds the lock; -1: another process has it, or errno says what is wrong.
int Lock(const std::string& directory, bool may_create) {
  const int fd = open(LockPath(directory).c_str(),
                      O_RDWR | O_CLOEXEC | O_NOFOLLOW | (may_create ? O_CREAT : 0), 0600);
  if (fd < 0) return -1;
  struct flock lock = FileLock();
  if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Deletes what is too old or exceeds `max_bytes` in the subdirectories that no process holds;
// returns what is left.
int64_t TrimOthers(const std::string& directory, const std::string& mine,
                   std::string_view own_prefix, int64_t max_bytes) {
  std::vector<SegmentFile> siblings, files;  // files: of other fingerprints, then all
  std::vector<int> locks;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string path = entry.path().string();
    if (path == mine || entry.is_symlink(ignored) || !entry.is_directory(ignored)) continue;
    const int lock = Lock(path, /*may_create=*/false);
    if (lock < 0) continue;
    locks.push_back(lock);
    const bool is_sibling = entry.path().filename().string().starts_with(own_prefix);
    std::ranges::move(SegmentFilesIn(path), std::back_inserter(is_sibling ? siblings : files));
  }
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::erase_if(files, [&](const SegmentFile& file) {
    return NanosecondsOf(now) - file.used_ns > kMaxUnusedNs && unlink(file.path.c_str()) == 0;
  });
  std::ranges::sort(files, {}, &SegmentFile::used_ns);
  std::ranges::sort(siblings, {}, &SegmentFile::used_ns);
  std::ranges::move(siblings, std::back_inserter(files));
  int64_t bytes = 0;
  for (const SegmentFile& file : files) bytes += file.bytes;
  for (const SegmentFile& file : files) {
    if (bytes <= max_bytes) break;
    if (unlink(file.path.c_str()) == 0) bytes -= file.bytes;
  }
  for (const int lock : locks) close(lock);
  return std::min(bytes, max_bytes);
}

}  // namespace

std::vector<SegmentFile> SegmentFilesIn(const std::string& directory) {
  std::vector<SegmentFile> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    struct stat file{};
    SegmentFile found = {.path = entry.path().string()};
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.number);
    if (error != std::errc() || std::string_view(end) != kSegmentSuffix ||
        lstat(found.path.c_str(), &file) != 0 || !S_ISREG(file.st_mode))
      continue;
    found.bytes = std::min<int64_t>(file.st_size, kMaxSegmentBytes);
    found.used_ns = NanosecondsOf(file.st_mtim);
    found.inode = file.st_ino;
    files.push_back(std::move(found));
  }
  std::ranges::sort(files, [](const SegmentFile& a, const SegmentFile& b) {
    return std::pair(a.used_ns, a.number) < std::pair(b.used_ns, b.number);
  });
  return files;
}

std::string SubdirectoryPrefix(const Fingerprint& fingerprint) {
  std::string text;
  for (size_t i = 0; i < kNameBytes; ++i) {
    const auto value = std::to_integer<unsigned>(fingerprint[i]);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text + "-";
}

bool IsSubdirectoryName(std::string_view name) {
  const size_t dash = name.find_first_not_of(kDigits);
  return dash == 2 * kNameBytes && name[dash] == '-' && dash + 1 < name.size() &&
         name.find_first_not_of(kDigits.substr(0, 10), dash + 1) == std::string_view::npos;
}

Status CheckSubdirectory(const std::string& path, const std::string& directory) {
  struct stat found{}, above{};
  if (lstat(path.c_str(), &found) != 0 || stat(directory.c_str(), &above) != 0)
    return DirectoryError(path);
  const bool is_ours = found.st_uid == geteuid() || found.st_uid == above.st_uid;
  if (S_ISDIR(found.st_mode) && is_ours && (found.st_mode & S_IWOTH) == 0) return {};
  return NotAllowed("--kv-cache-dir " + path +
                        (!S_ISDIR(found.st_mode) ? ": is a link or file"
                         : is_ours               ? ": may be written by everyone"
                                                 : ": belongs to another user"),
                    "a directory that only this user may write; remove it", "--kv-cache-dir");
}

bool IsHeld(const std::string& subdirectory) {
  const int fd = open(LockPath(subdirectory).c_str(),
                      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct flock lock = FileLock();
  const bool is_held = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(fd);
  return is_held;
}

Result<StoreDirectory> TakeStoreDirectory(const std::string& directory,
                                          const Fingerprint& fingerprint, int64_t max_other_bytes) {
  if (!MakeDirectory(directory)) return DirectoryError(directory);
  StoreDirectory taken;
  for (int i = 0; i < kMaxProcesses && taken.lock_fd < 0; ++i) {
    taken.path = directory + "/" + SubdirectoryPrefix(fingerprint) + std::to_string(i);
    if (!MakeDirectory(taken.path)) return DirectoryError(taken.path);
    DS_RETURN_IF_ERROR(CheckSubdirectory(taken.path, directory));
    taken.lock_fd = Lock(taken.path, /*may_create=*/true);
    if (taken.lock_fd < 0 && errno != EWOULDBLOCK) return DirectoryError(taken.path);
  }
  if (taken.lock_fd < 0) {
    return InvalidArgument("--kv-cache-dir " + directory + ": " + std::to_string(kMaxProcesses) +
                               " processes use it already",
                           "--kv-cache-dir");
  }
  taken.other_bytes = TrimOthers(directory, taken.path, SubdirectoryPrefix(fingerprint),
                                 max_other_bytes);
  return taken;
}

}  // namespace diffserve
