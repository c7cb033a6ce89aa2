// SPDX-License-Identifier: Apache-2.0
// KvCache: the memory of all KV pages of a model, and of the states of layers that have a state
// instead. Each layer with its own K and V has one page per page id and KV group. The class knows
// no policy: engine/policy/page_pool.h assigns pages and slots to sequences, and KvFormat defines a
// page.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor.h"
#include "kernels/base/thread_pool.h"
#include "kernels/mamba/state_batch.h"
#include "models/device_transfer.h"

namespace diffserve {

// The size of a KvCache.
struct KvCacheSize {
  int num_pages = 0;
  // For layers with a window, which then have their own page ids. 0: they have num_pages too, with
  // the other layers' ids.
  int num_window_pages = 0;
  int num_states = 1;  // slots for a sequence's state, besides its pages
};

class KvCache {
 public:
  // The layout of the layers' pages and states.
  struct Layout {
    std::vector<KvFormat> layers;        // all of one page size
    std::vector<int> num_pages;          // [layers]
    std::vector<bool> has_window_pages;  // [layers]: its page ids are those of window pages
    int64_t state_floats = 0;            // per slot
    int num_states = 0;

    // Bytes of the pages of layers before `layer`. For the number of layers: offset of the slots.
    size_t PagesBefore(size_t layer) const;
    size_t Bytes() const;
  };
  struct Memory {
    std::shared_ptr<std::byte> bytes;  // Layout::Bytes()
    std::function<Status(const std::byte* from, std::byte* to, size_t size_bytes)> copy;
    std::shared_ptr<DeviceTransfer> transfer = nullptr;  // to host memory; nullptr: it is that
  };
  explicit KvCache(Layout layout);  // in host memory
  KvCache(Layout layout, Memory memory);

  // Writes all host memory, so that the system provides it before it is needed. REQUIRES: the pages
  // are empty, and the memory is the host's.
  void Commit(ThreadPool& pool);

  PagedKv Layer(int layer);
  // The slots, each from float `begin` on.
  StateSlots StatesFrom(int64_t begin);
  // The memory of one page id, in each layer whose ids are not those of window pages. Addresses are
  // the device's, here and below.
  std::vector<std::span<std::byte>> PageMemory(int32_t page) const;
  // The memory of a slot, if there are slots, and of window pages in each layer that has such.
  std::vector<std::span<std::byte>> SnapshotMemory(int32_t slot,
                                                   std::span<const int32_t> window_pages) const;
  // Copies one page id's contents in one layer, after the steps launched before. Errors are the
  // device's. REQUIRES: the model that made this cache still exists.
  Status CopyPage(int layer, int32_t from, int32_t to);
  // The same for the contents of one slot.
  Status CopyState(int from, int to);
  // nullptr if the memory is the host's. REQUIRES: as CopyPage.
  const std::shared_ptr<DeviceTransfer>& transfer() const { return memory_.transfer; }
  const std::vector<KvFormat>& layers() const { return layout_.layers; }
  const Layout& layout() const { return layout_; }
  // Bytes per page id, over all layers and groups.
  static size_t BytesPerPage(std::span<const KvFormat> layers);

 private:
  void AddPage(bool is_window_page, int32_t page, std::vector<std::span<std::byte>>& parts) const;

  Layout layout_;
  Memory memory_;
};

}  // namespace diffserve
