// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/file_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;

struct Note {
  uint64_t high = 0, low = 0;
  uint64_t check = 0;  // a digest of the two, so that a torn note is none
};

Note NoteOf(const FileDigest& digest) {
  return {digest.high, digest.low, XXH3_64bits(&digest, sizeof(digest))};
}

struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

std::string NotePath(const std::string& notes, const std::string& path, const struct stat& file) {
  const std::string identity = path + '\0' + std::to_string(file.st_size) + ' ' +
                               std::to_string(file.st_ino) + ' ' +
                               std::to_string(file.st_mtim.tv_sec) + ' ' +
                               std::to_string(file.st_mtim.tv_nsec);
  return notes + "/" + std::to_string(XXH3_64bits(identity.data(), identity.size())) + ".digest";
}

bool ReadNote(const std::string& path, FileDigest& digest) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  Note note;
  if (file.fd < 0 || read(file.fd, &note, sizeof(note)) != ssize_t{sizeof(note)}) return false;
  digest = {note.high, note.low};
  return NoteOf(digest).check == note.check;
}

void WriteNote(const std::string& path, const FileDigest& digest) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const Note note = NoteOf(digest);
  if (file.fd >= 0 && write(file.fd, &note, sizeof(note)) != ssize_t{sizeof(note)})
    unlink(path.c_str());
}

}  // namespace

Result<FileDigest> DigestOfFile(const std::string& path, const std::string& notes,
                                bool keeps_note) {
  const auto error = [&] { return InvalidArgument(path + ": " + std::strerror(errno)); };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (file.fd < 0 || fstat(file.fd, &status) != 0) return error();
  if (keeps_note) mkdir(notes.c_str(), 0700);
  const std::string note = NotePath(notes, path, status);
  FileDigest digest;
  if (ReadNote(note, digest)) return digest;

  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> bytes(kReadBytes);
  ssize_t count = 0;
  while ((count = read(file.fd, bytes.data(), bytes.size())) != 0) {
    if (count > 0)
      XXH3_128bits_update(state.get(), bytes.data(), static_cast<size_t>(count));
    else if (errno != EINTR)
      return error();
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  digest = {hash.high64, hash.low64};
  if (keeps_note) WriteNote(note, digest);
  return digest;
}

}  // namespace diffserve
