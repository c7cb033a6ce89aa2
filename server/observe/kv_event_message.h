// SPDX-License-Identifier: Apache-2.0
// The payload of KV events on the wire: msgpack, in the format that vLLM publishes and routers
// read. In that format a page is called block.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/contract/kv_event.h"

namespace diffserve {

// Maximum events in a payload that readers accept; longer lists are split.
inline constexpr size_t kMaxKvEventsInPayload = 4096;

// [unix_seconds, [event, ...], data_parallel_rank 0]; an event is a map with its `type` first:
// BlockStored, BlockRemoved or AllBlocksCleared. REQUIRES: at most kMaxKvEventsInPayload events.
std::string KvEventPayload(double unix_seconds, std::span<const KvEvent> events, int page_size);

}  // namespace diffserve
