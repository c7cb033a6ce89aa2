// SPDX-License-Identifier: Apache-2.0
// ConnectionTable: which connections a port has, and which of them go when places run out. No
// network holds all: an eighth of what the others leave is kept for others. All connections of a
// Unix socket count as one network, which may hold all. Every operation takes constant time.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace diffserve {

class ConnectionTable {
 public:
  class Entry;
  struct Admission {
    std::unique_ptr<Entry> entry;  // nullptr: there is no place
    bool has_ended_other = false;  // an idle connection was asked to end for it
    bool is_share_used = false;    // without entry: the peer's network holds its share
  };

  explicit ConnectionTable(int max_connections) : max_(max_connections) {}

  // Takes a place for a connection of `network` (PeerNetwork). Where there is none, the longest
  // idle connection is asked to end, and its place is given away at once: one of the same network
  // if that holds its share, else of any.
  Admission Admit(const std::string& network);

 private:
  using Entries = std::list<Entry*>;
  struct Network {
    int taken = 0, entries = 0;  // with a place, and all
    Entries idle;                // the longest idle first
  };

  bool EndFirst(Entries& idle);
  void Release(Entry& entry);  // its place is free

  const int max_;
  std::mutex mutex_;
  int taken_ = 0;
  Entries idle_;                                       // the longest idle first
  std::unordered_map<std::string, Network> networks_;  // with at least one entry
};

// The place of one connection, from its admission to its end.
class ConnectionTable::Entry {
 public:
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // `end` asks the idle connection to end. It is called on any thread, with the table's lock held.
  // Call once, before the first SetIdle.
  void OnEnd(std::function<void()> end) { end_ = std::move(end); }
  // The connection may be asked to end from now on, or no longer. One that had lost its place and
  // goes on all the same has one again.
  void SetIdle(bool is_idle);
  // Its place was given to another connection.
  bool HasLostPlace() const;

 private:
  friend class ConnectionTable;
  Entry(ConnectionTable& table, Network& network, std::string name)
      : table_(table), network_(network), name_(std::move(name)) {}

  ConnectionTable& table_;
  Network& network_;
  const std::string name_;  // of the network
  std::function<void()> end_;
  bool has_place_ = true, is_idle_ = false;
  Entries::iterator in_all_, in_network_;  // valid while idle
};

}  // namespace diffserve
