// SPDX-License-Identifier: Apache-2.0
// BatchJournal: the output file of run-batch, which is also the record of what is done. Opening it
// finds the answers that it has and cuts off a line that a killed run left unfinished. A lock keeps
// two runs from writing one file.
//
// Invariants: the file consists of whole lines, except during Append.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "kernels/base/status.h"

namespace diffserve {

class BatchJournal {
 public:
  // Creates the file if there is none. Error: one line with the path: the file cannot be opened, is
  // locked by another run, or has a line that is no answer.
  static Result<std::unique_ptr<BatchJournal>> Open(const std::string& path);
  ~BatchJournal();
  BatchJournal(const BatchJournal&) = delete;
  BatchJournal& operator=(const BatchJournal&) = delete;

  // What the file answered when it was opened.
  struct Answered {
    std::unordered_set<std::string> custom_ids;
    std::unordered_set<uint64_t> lines;  // of the input, without custom_id
  };
  Answered& answered() { return answered_; }

  // Appends a line, which has its end, with one write. False: the disk is full, and the file is as
  // before. Error: the write failed for another reason; the file is as before.
  Result<bool> Append(const std::string& line);
  // Returns when the disk has all lines.
  Status Sync();

 private:
  BatchJournal(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  Status Read();
  Status CutTo(uint64_t bytes);
  Status Failure(const char* what) const;

  const std::string path_;
  const int descriptor_;
  uint64_t bytes_ = 0;  // of whole lines
  Answered answered_;
};

}  // namespace diffserve
