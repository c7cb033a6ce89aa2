// SPDX-License-Identifier: Apache-2.0
// A test's pages and batch on the device.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/paged_memory.h"

namespace diffserve::testing {

struct BatchPlacement {
  int32_t pages_before = 0;  // of arbitrary content; the batch's pages then have higher ids
  int num_padded = 0;  // padding rows of a graph's batch after its own; each is an empty entry
};

class DevicePages {
 public:
  DevicePages(const PagedMemory& memory, const cuda::Stream& stream,
              const BatchPlacement& placement = {})
      : format_(memory.format()),
        host_sequences_(SequencesOf(memory, placement.num_padded)),
        sequences_(host_sequences_, stream),
        row_sequences_(RowSequencesOf(memory, placement.num_padded), stream),
        tables_(Shifted(memory.tables(), placement.pages_before), stream),
        bytes_before_(static_cast<size_t>(placement.pages_before) *
                      static_cast<size_t>(format_.num_groups * format_.PageBytes())),
        bytes_(memory.bytes(), stream, bytes_before_) {}

  const std::vector<cuda::DeviceSequence>& sequences() const { return host_sequences_; }
  PagedKv kv() const { return {bytes_.data() - bytes_before_, format_}; }
  cuda::PagedBatch Batch() const {
    return {static_cast<int>(sequences_.size()), static_cast<int>(row_sequences_.size()),
            sequences_.data(), row_sequences_.data(), tables_.data()};
  }
  int num_page_ids() const { return static_cast<int>(tables_.size()); }
  // What kernels wrote into the pages.
  std::vector<std::byte> Read(const cuda::Stream& stream) const { return bytes_.Read(stream); }

 private:
  static std::vector<cuda::DeviceSequence> SequencesOf(const PagedMemory& memory, int num_padded) {
    std::vector<cuda::DeviceSequence> sequences;
    for (const SequenceTokens& rows : memory.sequences()) {
      sequences.push_back({rows.first_row, rows.num_tokens, rows.position,
                           static_cast<int32_t>(rows.pages - memory.tables().data())});
    }
    for (int i = 0; i < num_padded; ++i) sequences.push_back({memory.num_tokens() + i, 0, 0, 0});
    return sequences;
  }
  static std::vector<int32_t> RowSequencesOf(const PagedMemory& memory, int num_padded) {
    std::vector<int32_t> of_rows;
    for (size_t i = 0; i < memory.sequences().size(); ++i) {
      of_rows.insert(of_rows.end(), static_cast<size_t>(memory.sequences()[i].num_tokens),
                     static_cast<int32_t>(i));
    }
    for (int i = 0; i < num_padded; ++i)
      of_rows.push_back(static_cast<int32_t>(memory.sequences().size()) + i);
    return of_rows;
  }
  static std::vector<int32_t> Shifted(std::vector<int32_t> pages, int32_t pages_before) {
    for (int32_t& page : pages)
      page = static_cast<int32_t>(std::min<int64_t>(int64_t{page} + pages_before, 2147480000));
    return pages;
  }

  KvFormat format_;
  std::vector<cuda::DeviceSequence> host_sequences_;
  DeviceArray<cuda::DeviceSequence> sequences_;
  DeviceArray<int32_t> row_sequences_;
  DeviceArray<int32_t> tables_;
  size_t bytes_before_;
  DeviceArray<std::byte> bytes_;
};

}  // namespace diffserve::testing
