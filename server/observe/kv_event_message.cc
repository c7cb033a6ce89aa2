// SPDX-License-Identifier: Apache-2.0
#include "server/observe/kv_event_message.h"

#include <nlohmann/json.hpp>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

using Json = nlohmann::ordered_json;

// On the wire, the cache tier that the engine computes with is called GPU, whatever the device; CPU
// and STORAGE would be slower tiers below it.
constexpr char kMedium[] = "GPU";

Json Stored(const KvEvent& event, int page_size) {
  Json keys = Json::array();  // what a page's hash depends on besides its tokens
  for (size_t i = 0; i < event.hashes.size(); ++i) keys.push_back(nullptr);
  if (!event.salt.empty()) keys[0] = Json::array({event.salt});
  return {{"type", "BlockStored"},
          {"block_hashes", event.hashes},
          {"parent_block_hash", event.parent ? Json(*event.parent) : Json(nullptr)},
          {"token_ids", event.tokens},
          {"block_size", page_size},
          {"lora_id", nullptr},
          {"medium", kMedium},
          {"lora_name", nullptr},
          {"extra_keys", std::move(keys)},
          {"group_idx", 0},
          {"kv_cache_spec_kind", "full_attention"}};
}

Json Removed(const KvEvent& event) {
  return {{"type", "BlockRemoved"},
          {"block_hashes", event.hashes},
          {"medium", kMedium},
          {"group_idx", 0}};
}

Json Cleared() { return {{"type", "AllBlocksCleared"}}; }

Json ToJson(const KvEvent& event, int page_size) {
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      return Stored(event, page_size);
    case KvEvent::Kind::kRemoved:
      return Removed(event);
    case KvEvent::Kind::kCleared:
      break;
  }
  return Cleared();
}

}  // namespace

std::string KvEventPayload(double unix_seconds, std::span<const KvEvent> events, int page_size) {
  DS_CHECK(events.size() <= kMaxKvEventsInPayload,
           "a payload has no more events than its readers take");
  Json list = Json::array();
  for (const KvEvent& event : events) list.push_back(ToJson(event, page_size));
  std::string bytes;
  Json::to_msgpack(Json::array({unix_seconds, std::move(list), 0}), bytes);
  return bytes;
}

}  // namespace diffserve
