// KvCache: the memory of all KV pages of a model, of every layer num_pages x num_groups. It knows
// no policy: engine/page_pool.h says which page belongs to whom, KvFormat what a page is.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

class KvCache {
 public:
  struct Memory {
    std::shared_ptr<std::byte> bytes;  // BytesPerPage * num_pages at least
    std::function<Status(const std::byte* from, std::byte* to, size_t size_bytes)> copy;
  };
  // A format for each layer, of one page size. In the host's memory, if none is given.
  KvCache(std::vector<KvFormat> layers, int num_pages);
  KvCache(std::vector<KvFormat> layers, int num_pages, Memory memory);

  // Writes every page of the host's memory, so that the system has given it before it is needed.
  // REQUIRES: nothing is in the pages; the memory is the host's.
  void Commit(ThreadPool& pool);

  PagedKv Layer(int layer);
  // Copies one page id's contents, all layers, after the steps that were launched before. Errors
  // are the device's. REQUIRES: the model that made this lives.
  Status CopyPage(int32_t from, int32_t to);
  const std::vector<KvFormat>& layers() const { return layers_; }
  int num_pages() const { return num_pages_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(std::span<const KvFormat> layers);

 private:
  std::vector<KvFormat> layers_;
  int num_pages_;
  Memory memory_;
};

}  // namespace diffserve
