// SPDX-License-Identifier: Apache-2.0
// ResponsesStore: stored answers of /v1/responses, in memory. Only the client that an answer was
// made for can read it. Limited in count and bytes: beyond a limit, the least recently used answer
// of the client that holds most is removed.
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/serving/request/conversation.h"

namespace diffserve {

struct ResponseObject;  // responses_response.h

struct ResponsesStoreLimits {
  size_t max_entries = 1024;  // 0: nothing is kept
  size_t max_bytes = size_t{64} << 20;
};

// The input of a response.
struct ResponseInput {
  std::vector<std::string> item_ids;
  std::vector<std::string> items;  // of the request, each as JSON
  std::vector<Message> messages;   // the conversation up to the answer, without instructions
  size_t HeldBytes() const;
};

struct StoredResponse {
  std::shared_ptr<const ResponseObject> object;
  std::shared_ptr<const ResponseInput> input;
};

class ResponsesStore {
 public:
  explicit ResponsesStore(ResponsesStoreLimits limits) : limits_(limits) {}

  // REQUIRES: the id is new.
  void Insert(const std::string& client, StoredResponse response);
  std::optional<StoredResponse> Find(const std::string& client, const std::string& id);
  // Replaces the object in progress with the same id; false if there is none.
  bool Finish(const std::string& client, std::shared_ptr<const ResponseObject> object);
  bool Erase(const std::string& client, const std::string& id);
  // Removes the object of this id if it is in progress.
  void Drop(const std::string& client, const std::string& id);

  size_t entries() const;
  size_t bytes() const;

 private:
  struct Entry {
    StoredResponse response;
    size_t bytes = 0;
  };
  struct Client {
    std::list<Entry> entries;  // the most recently used first
    std::unordered_map<std::string, std::list<Entry>::iterator> by_id;
    size_t bytes = 0;
  };
  using Clients = std::unordered_map<std::string, Client>;

  Entry* FindEntry(const std::string& client, const std::string& id);
  void Remove(Clients::iterator client, std::list<Entry>::iterator entry, std::list<Entry>* gone);
  void MakeRoom(std::list<Entry>* gone);

  const ResponsesStoreLimits limits_;
  mutable std::mutex mutex_;
  Clients clients_;  // those with entries
  size_t entries_ = 0;
  size_t bytes_ = 0;
};

}  // namespace diffserve
