#include "models/kv_cache.h"

#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"

namespace diffserve {

namespace {

KvCache::Memory HostMemory(size_t size_bytes) {
  const auto buffer = std::make_shared<Buffer>(size_bytes);
  return {{buffer, buffer->as<std::byte>()}, [](const std::byte* from, std::byte* to, size_t size) {
            std::memcpy(to, from, size);
            return Status();
          }};
}

}  // namespace

KvCache::KvCache(std::vector<KvFormat> layers, int num_pages)
    : layers_(std::move(layers)),
      num_pages_(num_pages),
      memory_(HostMemory(BytesPerPage(layers_) * static_cast<size_t>(num_pages))) {}

KvCache::KvCache(std::vector<KvFormat> layers, int num_pages, Memory memory)
    : layers_(std::move(layers)), num_pages_(num_pages), memory_(std::move(memory)) {}

void KvCache::Commit(ThreadPool& pool) {
  const size_t size = BytesPerPage(layers_) * static_cast<size_t>(num_pages_);
  const auto workers = static_cast<size_t>(pool.num_threads());
  pool.Run([&](int worker) {
    const size_t begin = size / workers * static_cast<size_t>(worker);
    const size_t end = worker + 1 == pool.num_threads() ? size : begin + size / workers;
    std::memset(memory_.bytes.get() + begin, 0, end - begin);
  });
}

PagedKv KvCache::Layer(int layer) {
  DS_CHECK(layer >= 0 && layer < static_cast<int>(layers_.size()), "no such layer");
  const std::span<const KvFormat> before(layers_.data(), static_cast<size_t>(layer));
  return {memory_.bytes.get() + BytesPerPage(before) * static_cast<size_t>(num_pages_),
          layers_[static_cast<size_t>(layer)]};
}

Status KvCache::CopyPage(int32_t from, int32_t to) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const PagedKv pages = Layer(static_cast<int>(layer));
    DS_RETURN_IF_ERROR(
        memory_.copy(pages.Page(from, 0), pages.Page(to, 0), BytesPerPage({&layers_[layer], 1})));
  }
  return Status();
}

size_t KvCache::BytesPerPage(std::span<const KvFormat> layers) {
  size_t bytes = 0;
  for (const KvFormat& format : layers)
    bytes += static_cast<size_t>(format.PageBytes()) * static_cast<size_t>(format.num_groups);
  return bytes;
}

}  // namespace diffserve
