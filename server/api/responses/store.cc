// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/store.h"

#include <algorithm>
#include <utility>

#include "server/api/responses/encoder.h"

namespace diffserve {
namespace {

constexpr size_t kEntryBytes = 1024;  // of the lists and objects themselves

size_t BytesOf(const StoredResponse& response) {
  return kEntryBytes + response.object->HeldBytes() + response.input->HeldBytes();
}

}  // namespace

size_t ResponseInput::HeldBytes() const {
  size_t bytes = 0;
  for (const Message& message : messages) bytes += message.HeldBytes();
  for (const std::string& item : items) bytes += sizeof(item) + item.capacity();
  for (const std::string& id : item_ids) bytes += sizeof(id) + id.capacity();
  return bytes;
}

ResponsesStore::Entry* ResponsesStore::FindEntry(const std::string& client, const std::string& id) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return nullptr;
  const auto entry = found->second.by_id.find(id);
  return entry == found->second.by_id.end() ? nullptr : &*entry->second;
}

// `gone` is destroyed by the caller, without the lock.
void ResponsesStore::Remove(Clients::iterator client, std::list<Entry>::iterator entry,
                            std::list<Entry>* gone) {
  bytes_ -= entry->bytes;
  client->second.bytes -= entry->bytes;
  --entries_;
  client->second.by_id.erase(entry->response.object->id);
  gone->splice(gone->begin(), client->second.entries, entry);
  if (client->second.entries.empty()) clients_.erase(client);
}

void ResponsesStore::MakeRoom(std::list<Entry>* gone) {
  while (entries_ > limits_.max_entries || bytes_ > limits_.max_bytes) {
    const bool by_bytes = bytes_ > limits_.max_bytes;
    const auto most = std::max_element(
        clients_.begin(), clients_.end(), [by_bytes](const auto& a, const auto& b) {
          return by_bytes ? a.second.bytes < b.second.bytes
                          : a.second.entries.size() < b.second.entries.size();
        });
    Remove(most, std::prev(most->second.entries.end()), gone);
  }
}

void ResponsesStore::Insert(const std::string& client, StoredResponse response) {
  std::list<Entry> gone, added(1);
  added.front().bytes = BytesOf(response);
  const std::string id = response.object->id;
  added.front().response = std::move(response);
  std::lock_guard lock(mutex_);
  Client& holder = clients_[client];
  if (!holder.by_id.emplace(id, added.begin()).second) return;
  holder.entries.splice(holder.entries.begin(), added);
  holder.bytes += holder.entries.front().bytes;
  bytes_ += holder.entries.front().bytes;
  ++entries_;
  MakeRoom(&gone);
}

std::optional<StoredResponse> ResponsesStore::Find(const std::string& client,
                                                   const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(client);
  if (found == clients_.end()) return std::nullopt;
  const auto entry = found->second.by_id.find(id);
  if (entry == found->second.by_id.end()) return std::nullopt;
  std::list<Entry>& entries = found->second.entries;
  entries.splice(entries.begin(), entries, entry->second);
  return entry->second->response;
}

bool ResponsesStore::Finish(const std::string& client,
                            std::shared_ptr<const ResponseObject> object) {
  std::list<Entry> gone;
  std::lock_guard lock(mutex_);
  Entry* const entry = FindEntry(client, object->id);
  if (entry == nullptr || entry->response.object->state != ResponseState::kInProgress) return false;
  std::swap(entry->response.object, object);
  const size_t bytes = BytesOf(entry->response);
  for (size_t* sum : {&bytes_, &clients_.find(client)->second.bytes})
    *sum = *sum - entry->bytes + bytes;
  entry->bytes = bytes;
  MakeRoom(&gone);
  return true;
}

bool ResponsesStore::Erase(const std::string& client, const std::string& id) {
  std::list<Entry> gone;
  std::lock_guard lock(mutex_);
  if (FindEntry(client, id) == nullptr) return false;
  const auto found = clients_.find(client);
  Remove(found, found->second.by_id.at(id), &gone);
  return true;
}

void ResponsesStore::Drop(const std::string& client, const std::string& id) {
  std::list<Entry> gone;
  std::lock_guard lock(mutex_);
  const Entry* const entry = FindEntry(client, id);
  if (entry == nullptr || entry->response.object->state != ResponseState::kInProgress) return;
  const auto found = clients_.find(client);
  Remove(found, found->second.by_id.find(id)->second, &gone);
}

size_t ResponsesStore::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

size_t ResponsesStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace diffserve
