// KvCache: the memory of all KV pages of a model, of every layer num_pages x num_groups, and of the
// states of its layers that have one instead. It knows no policy: engine/page_pool.h says which
// page belongs to whom, KvFormat what a page is.
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

// Slots for what a sequence keeps beside its pages: ModelConfig::state_floats in each.
struct SequenceStates {
  int64_t floats = 0;  // of a slot
  int num_slots = 0;
};

class KvCache {
 public:
  struct Memory {
    std::shared_ptr<std::byte> bytes;  // BytesPerPage * num_pages at least
    std::function<Status(const std::byte* from, std::byte* to, size_t size_bytes)> copy;
  };
  // A format for each layer with K and V of its own, of one page size. In the host's memory, if
  // none is given.
  KvCache(std::vector<KvFormat> layers, int num_pages, SequenceStates states = {});
  KvCache(std::vector<KvFormat> layers, int num_pages, Memory memory);

  // Writes every page of the host's memory, so that the system has given it before it is needed.
  // REQUIRES: nothing is in the pages; the memory is the host's.
  void Commit(ThreadPool& pool);

  PagedKv Layer(int layer);
  // The slots, from float `begin` of each on.
  StateSlots StatesFrom(int64_t begin);
  const SequenceStates& states() const { return states_; }
  // Copies one page id's contents, all layers, after the steps that were launched before. Errors
  // are the device's. REQUIRES: the model that made this lives.
  Status CopyPage(int32_t from, int32_t to);
  // Copies one slot. REQUIRES: the host's memory.
  void CopyState(int from, int to);
  const std::vector<KvFormat>& layers() const { return layers_; }
  int num_pages() const { return num_pages_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(std::span<const KvFormat> layers);

 private:
  std::vector<KvFormat> layers_;
  int num_pages_;
  Memory memory_;
  SequenceStates states_;
  Buffer state_memory_;
};

}  // namespace diffserve
