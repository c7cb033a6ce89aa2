// SPDX-License-Identifier: Apache-2.0
// OutputFile: a file that is written front to back and is on disk once Close has returned. Errors
// are one line with the path.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

class OutputFile {
 public:
  // Creates a new file. Error: the file exists.
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path);
  // An existing file, to be written from `offset` on.
  static Result<std::unique_ptr<OutputFile>> Open(const std::string& path, uint64_t offset);
  // A new file with this content.
  static Status WriteText(const std::string& path, std::string_view text);

  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Write(std::span<const std::byte> bytes);
  // Makes the file `size` bytes long. Unwritten parts read as zeros and take no disk space.
  Status Extend(uint64_t size);
  Status Close();

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static Result<std::unique_ptr<OutputFile>> OpenWith(const std::string& path, int flags);
  Status Failed() const;

  std::string path_;
  int descriptor_;
};

// Syncs a directory's entries to disk.
Status SyncDirectory(const std::string& path);

}  // namespace diffserve
