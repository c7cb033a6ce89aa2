// The payload of KV events on the wire: msgpack, in the form that vLLM publishes and routers read.
// A page is called a block there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/kv_event.h"

namespace diffserve {

// Readers refuse a payload with more events than this: a longer list takes several payloads.
inline constexpr size_t kMaxKvEventsInPayload = 4096;

// [unix_seconds, [event, ...], data_parallel_rank 0]; an event is a map with its `type` first:
// BlockStored, BlockRemoved or AllBlocksCleared. REQUIRES: at most kMaxKvEventsInPayload events.
std::string KvEventPayload(double unix_seconds, std::span<const KvEvent> events, int page_size);

// One AllBlocksCleared, which withdraws all earlier events.
std::string KvClearedPayload(double unix_seconds);

}  // namespace diffserve
