// SPDX-License-Identifier: Apache-2.0
// ModelChildren: the processes of the models, one per model at most. Requests ask for the use of a
// model's process; one thread starts and stops processes as the residency policy says, passes their
// log lines on, and notices their end.
//
// Invariants: a process is stopped only when no use of it exists, except by Unload and Drain. A
// use of a process that has ended is harmless.
// Thread safety: every method may be called from any thread. All uses end before it does.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/door/pending_result.h"
#include "server/router/children/child_process.h"
#include "server/router/children/pipe_lines.h"
#include "server/router/children/residency.h"

namespace diffserve {

struct ChildModel {
  std::string name;
  std::vector<std::string> arguments;  // of this program
  int64_t bytes = 0;                   // of memory that it needs; 0: not known
  std::optional<size_t> gpu = {};      // whose memory that is; nullopt: the host's
  double gpu_share = 0;                // of that GPU's memory
  bool pinned = false;
  bool is_fetched = false;  // from a hub, which may answer later
};

struct ModelChildrenOptions {
  ResidencyLimits limits = {};
  size_t max_waiting = 128;  // requests that wait for a process, of all models; an eighth of what
                             // is free is kept for other clients
  std::chrono::milliseconds load_wait{300'000};    // of a request for its model's process
  std::chrono::milliseconds stop_grace{50'000};    // after SIGTERM, then SIGKILL follows
  std::vector<std::string> hidden_variables = {};  // of the environment, which no process sees
};

// Where a model's process listens, on 127.0.0.1, and the secret by which it knows this one's
// requests.
struct ChildAddress {
  int http_port = 0, grpc_port = 0;
  uint64_t run = 0;         // differs between the processes of a model
  std::string secret = {};  // of this run: NewParentSecret
};

// While it exists, a request is under way at the process.
using ChildUse = std::shared_ptr<const ChildAddress>;

// What /v1/models and /metrics say of a model.
struct ChildReport {
  ModelState state = ModelState::kUnloaded;
  std::optional<int> exit_code;  // of the last process, if it ended by itself
  int in_flight = 0;
  size_t waiting = 0;
  int64_t bytes = 0;
  int64_t starts = 0, failures = 0, stops_idle = 0, stops_room = 0;
  ChildAddress address = {};  // REQUIRES: kLoaded
};

class ModelChildren {
 public:
  ModelChildren(std::vector<ChildModel> models, ModelChildrenOptions options);
  ~ModelChildren();  // kills the processes

  // A use, or why there is none; nullopt: the request must wait. `client`: ClientName.
  std::optional<Result<ChildUse>> TryUse(size_t model, const std::string& client);
  // Waits for the process, which is started if needed. `wake` is called on another thread. Dropping
  // the Wait withdraws the request.
  using Wait = PendingResult<ChildUse>;
  std::shared_ptr<Wait> Ask(size_t model, const std::string& client, std::function<void()> wake);

  Status Load(size_t model, const std::string& client);  // does not wait for it
  void Unload(size_t model);  // its running requests end first, within stop_grace

  size_t num_models() const { return slots_.size(); }
  const std::string& name(size_t model) const { return slots_[model].model.name; }
  std::vector<ChildReport> Reports() const;
  // OK if no pinned model lacks its process, unless it was unloaded on purpose.
  Status Ready() const;
  // Refuses all requests from now on, ends those that wait, and stops all processes. Returns when
  // they have ended; the last are killed at `deadline`.
  void Drain(std::chrono::steady_clock::time_point deadline);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    std::weak_ptr<Wait> wait;
    std::string client;
    Clock::time_point since;
  };
  struct WantedLoad {
    std::string client;
    Clock::time_point since;
  };
  struct Slot {
    ChildModel model;
    ModelState state = ModelState::kUnloaded;
    std::optional<ChildProcess> process = {};
    PipeLines out = {}, err = {};
    bool reads_out = false, reads_err = false;  // the pipe is open
    ChildAddress address = {};
    Clock::time_point last_used = {}, loaded_at = {}, kill_at = {};
    std::vector<Waiting> waiting = {};           // the oldest first
    std::optional<WantedLoad> load_wanted = {};  // by Load
    bool held_down = false;                      // pinned, but unloaded on purpose
    std::string why_not = {};  // of a pinned model that is not loaded again before it is asked for
    int failures_in_a_row = 0;
    Clock::time_point not_before = {};
    ChildReport report = {};  // its counts
  };
  // Calls that fill waits, made without the lock.
  using Fills = std::vector<std::function<void()>>;

  Status Refusal(const Slot& slot) const;
  Status CheckRoom(const std::string& client);
  ChildUse UseOf(size_t model);
  void Release(size_t model, uint64_t run);
  void Wake() const;
  void Run();
  Clock::time_point Tick(Fills& fills);
  Clock::time_point DropOverdue(Slot& slot, Clock::time_point now, Fills& fills) const;
  std::vector<ResidentModel> View() const;
  void Poll(Clock::time_point until, Fills& fills);
  void ReadPipes(Slot& slot);
  void Start(Slot& slot, Fills& fills);
  void Stop(Slot& slot, const char* reason);
  void OnEnd(Slot& slot, const ChildProcess::End& end, Fills& fills);
  void OnFailure(Slot& slot, const std::string& how, Fills& fills);
  static bool CannotLoad(const Slot& slot, const ChildProcess::End& end);
  static void FailAll(Slot& slot, const Status& status, Fills& fills);

  const ModelChildrenOptions options_;
  const int wake_event_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Slot> slots_;
  Clock::time_point next_wake_;
  uint64_t next_run_ = 1;
  bool draining_ = false, stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace diffserve
