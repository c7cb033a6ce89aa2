// SPDX-License-Identifier: Apache-2.0
// BlobFile: a blob of the hub's cache while it is fetched. It is blobs/ETAG.incomplete until all
// bytes are there and have the hash that its name is, if it is one, so a break costs only what was
// not written yet. This is the home of OpenSSL's SHA-1 and SHA-256.
//
// Thread safety: one thread. REQUIRES: the blob's BlobLock is held.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/hub/repository.h"

namespace diffserve {

class BlobFile {
 public:
  // Reads what an earlier attempt left. Error: the file cannot be opened.
  static Result<std::unique_ptr<BlobFile>> Open(std::filesystem::path blob, HubFile file);
  ~BlobFile();
  BlobFile(const BlobFile&) = delete;
  BlobFile& operator=(const BlobFile&) = delete;

  const HubFile& file() const { return file_; }
  uint64_t written() const { return written_; }
  uint64_t missing() const { return file_.size - written_; }

  // Error: the disk is full, or a limit of file sizes is reached. REQUIRES: no more bytes than
  // missing().
  Status Append(std::string_view bytes);
  // Drops all bytes.
  Status Restart();
  // The blob gets its name, or, if its hash is another one, loses all bytes: false. REQUIRES:
  // missing() is 0.
  Result<bool> Finish();

 private:
  class Hash;
  BlobFile(std::filesystem::path blob, HubFile file);
  Status ReadEarlier();
  Status Failed(const char* doing) const;  // by errno

  const std::filesystem::path blob_, incomplete_;
  const HubFile file_;
  int descriptor_ = -1;
  uint64_t written_ = 0;
  std::unique_ptr<Hash> hash_;
};

}  // namespace diffserve
