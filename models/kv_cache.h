// KvCache: the memory of all KV pages of a model, for every layer with K and V of its own so many
// pages x num_groups, and of the states of its layers that have one instead. It knows no policy:
// engine/page_pool.h says which page and which slot belongs to whom, KvFormat what a page is.
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

namespace diffserve {

// How much a KvCache is to hold.
struct KvCacheSize {
  int num_pages = 0;
  int num_window_pages = 0;  // of layers with a window, which have page ids of their own then; 0:
                             // they have num_pages too, and the ids of the other layers
  int num_states = 1;        // slots for what a sequence keeps beside its pages
};

class KvCache {
 public:
  // What the layers' pages and states are.
  struct Layout {
    std::vector<KvFormat> layers;  // of one page size
    std::vector<int> num_pages;    // [layers]
    int64_t state_floats = 0;      // of a slot
    int num_states = 0;

    // Bytes of the pages of the layers before `layer`; of all: where the slots begin.
    size_t PagesBefore(size_t layer) const;
    size_t Bytes() const;
  };
  struct Memory {
    std::shared_ptr<std::byte> bytes;  // Layout::Bytes()
    std::function<Status(const std::byte* from, std::byte* to, size_t size_bytes)> copy;
  };
  explicit KvCache(Layout layout);  // in the host's memory
  KvCache(Layout layout, Memory memory);

  // Writes all of the host's memory, so that the system has given it before it is needed.
  // REQUIRES: nothing is in the pages; the memory is the host's.
  void Commit(ThreadPool& pool);

  PagedKv Layer(int layer);
  // The slots, from float `begin` of each on.
  StateSlots StatesFrom(int64_t begin);
  // Copies one page id's contents in one layer, after the steps that were launched before. Errors
  // are the device's. REQUIRES: the model that made this lives.
  Status CopyPage(int layer, int32_t from, int32_t to);
  // Likewise the contents of one slot.
  Status CopyState(int from, int to);
  const std::vector<KvFormat>& layers() const { return layout_.layers; }
  const Layout& layout() const { return layout_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(std::span<const KvFormat> layers);

 private:
  Layout layout_;
  Memory memory_;
};

}  // namespace diffserve
