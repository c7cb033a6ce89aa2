// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/store_summary.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "engine/page_store/segment_reader.h"
#include "engine/page_store/store_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

void Add(const SegmentFile& file, StoreSummary& store) {
  ++store.num_segments;
  store.bytes += file.bytes;
  if (store.oldest_use_ns == 0) store.oldest_use_ns = file.used_ns;
  store.newest_use_ns = file.used_ns;  // they come in the order of their last use
  const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  std::optional<SegmentContents> segment;
  if (fd >= 0) {
    segment = ReadSegment(fd);
    close(fd);
  }
  if (!segment || !store.name.starts_with(SubdirectoryPrefix(segment->fingerprint))) {
    ++store.num_unreadable;
    return;
  }
  store.num_incomplete += segment->is_complete ? 0 : 1;
  for (const RecordEntry& entry : segment->entries)
    ++(entry.key.kind == RecordKind::kSnapshot ? store.num_snapshots : store.num_pages);
}

}  // namespace

Result<std::vector<StoreSummary>> SummarizeStores(const std::string& directory) {
  const auto failure = [](const std::string& path, const std::error_code& error) {
    return InvalidArgument("--kv-cache-dir " + path + ": " + error.message(), "--kv-cache-dir");
  };
  std::error_code error;
  std::vector<StoreSummary> stores;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!IsSubdirectoryName(name) || !entry->is_directory(ignored)) continue;
    const std::string path = entry->path().string();
    const fs::directory_iterator readable(path, ignored);
    if (ignored) return failure(path, ignored);
    StoreSummary& store = stores.emplace_back(StoreSummary{.name = name});
    store.is_held = IsHeld(path);
    for (const SegmentFile& file : SegmentFilesIn(path)) Add(file, store);
  }
  if (error) return failure(directory, error);
  std::ranges::sort(stores, {}, &StoreSummary::name);
  return stores;
}

}  // namespace diffserve
