// SPDX-License-Identifier: Apache-2.0
#include "models/kv_cache.h"

#include <cstring>
#include <utility>

#include "kernels/base/tensor.h"
#include "kernels/process/check.h"

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

size_t KvCache::Layout::PagesBefore(size_t layer) const {
  size_t bytes = 0;
  for (size_t l = 0; l < layer; ++l)
    bytes += BytesPerPage({&layers[l], 1}) * static_cast<size_t>(num_pages[l]);
  return bytes;
}

size_t KvCache::Layout::Bytes() const {
  return PagesBefore(layers.size()) +
         static_cast<size_t>(state_floats) * static_cast<size_t>(num_states) * sizeof(float);
}

KvCache::KvCache(Layout layout) : layout_(std::move(layout)), memory_(HostMemory(layout_.Bytes())) {
  DS_CHECK(layout_.layers.size() == layout_.num_pages.size() &&
               layout_.layers.size() == layout_.has_window_pages.size(),
           "pages for each layer");
}

KvCache::KvCache(Layout layout, Memory memory)
    : layout_(std::move(layout)), memory_(std::move(memory)) {
  DS_CHECK(layout_.layers.size() == layout_.num_pages.size() &&
               layout_.layers.size() == layout_.has_window_pages.size(),
           "pages for each layer");
}

void KvCache::Commit(ThreadPool& pool) {
  const size_t size = layout_.Bytes();
  const auto workers = static_cast<size_t>(pool.num_threads());
  pool.Run([&](int worker) {
    const size_t begin = size / workers * static_cast<size_t>(worker);
    const size_t end = worker + 1 == pool.num_threads() ? size : begin + size / workers;
    std::memset(memory_.bytes.get() + begin, 0, end - begin);
  });
}

PagedKv KvCache::Layer(int layer) {
  DS_CHECK(layer >= 0 && layer < static_cast<int>(layers().size()), "no such layer");
  const auto l = static_cast<size_t>(layer);
  return {memory_.bytes.get() + layout_.PagesBefore(l), layers()[l]};
}

StateSlots KvCache::StatesFrom(int64_t begin) {
  std::byte* const slots = memory_.bytes.get() + layout_.PagesBefore(layers().size());
  return {reinterpret_cast<float*>(slots) + begin, layout_.state_floats};
}

void KvCache::AddPage(bool is_window_page, int32_t page,
                      std::vector<std::span<std::byte>>& parts) const {
  std::byte* pages = memory_.bytes.get();
  for (size_t l = 0; l < layout_.layers.size(); ++l) {
    const size_t bytes = BytesPerPage({&layout_.layers[l], 1});
    if (layout_.has_window_pages[l] == is_window_page)
      parts.emplace_back(pages + bytes * static_cast<size_t>(page), bytes);
    pages += bytes * static_cast<size_t>(layout_.num_pages[l]);
  }
}

std::vector<std::span<std::byte>> KvCache::PageMemory(int32_t page) const {
  std::vector<std::span<std::byte>> parts;
  AddPage(/*is_window_page=*/false, page, parts);
  return parts;
}

std::vector<std::span<std::byte>> KvCache::SnapshotMemory(
    int32_t slot, std::span<const int32_t> window_pages) const {
  std::vector<std::span<std::byte>> parts;
  for (const int32_t page : window_pages) AddPage(/*is_window_page=*/true, page, parts);
  if (layout_.num_states == 0) return parts;
  const size_t bytes = static_cast<size_t>(layout_.state_floats) * sizeof(float);
  std::byte* const slots = memory_.bytes.get() + layout_.PagesBefore(layers().size());
  parts.emplace_back(slots + bytes * static_cast<size_t>(slot), bytes);
  return parts;
}

Status KvCache::CopyPage(int layer, int32_t from, int32_t to) {
  const PagedKv pages = Layer(layer);
  return memory_.copy(pages.Page(from, 0), pages.Page(to, 0), BytesPerPage({&pages.format, 1}));
}

Status KvCache::CopyState(int from, int to) {
  const StateSlots slots = StatesFrom(0);
  const auto slot = [&](int i) {
    return reinterpret_cast<std::byte*>(slots.data + i * slots.stride);
  };
  return memory_.copy(slot(from), slot(to), static_cast<size_t>(slots.stride) * sizeof(float));
}

size_t KvCache::BytesPerPage(std::span<const KvFormat> layers) {
  size_t bytes = 0;
  for (const KvFormat& format : layers)
    bytes += static_cast<size_t>(format.PageBytes()) * static_cast<size_t>(format.num_groups);
  return bytes;
}

}  // namespace diffserve
