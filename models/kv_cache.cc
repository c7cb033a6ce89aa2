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

KvCache::KvCache(KvFormat format, int num_layers, int num_pages)
    : KvCache(format, num_layers, num_pages,
              HostMemory(BytesPerPage(format, num_layers) * static_cast<size_t>(num_pages))) {}

KvCache::KvCache(KvFormat format, int num_layers, int num_pages, Memory memory)
    : format_(format), num_layers_(num_layers), num_pages_(num_pages), memory_(std::move(memory)) {}

PagedKv KvCache::Layer(int layer) {
  DS_CHECK(layer >= 0 && layer < num_layers_, "no such layer");
  return {memory_.bytes.get() + BytesPerPage(format_, 1) * static_cast<size_t>(num_pages_) *
                                    static_cast<size_t>(layer),
          format_};
}

Status KvCache::CopyPage(int32_t from, int32_t to) {
  for (int layer = 0; layer < num_layers_; ++layer) {
    const PagedKv pages = Layer(layer);
    DS_RETURN_IF_ERROR(
        memory_.copy(pages.Page(from, 0), pages.Page(to, 0), BytesPerPage(format_, 1)));
  }
  return Status();
}

size_t KvCache::BytesPerPage(const KvFormat& format, int num_layers) {
  return static_cast<size_t>(format.PageBytes()) * static_cast<size_t>(format.num_groups) *
         static_cast<size_t>(num_layers);
}

}  // namespace diffserve
