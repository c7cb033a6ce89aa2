// StreamCall: one call of the gRPC port whose answer is a stream of messages. There is one write at
// a time; the next message is taken when it is done, so a slow client holds up nothing but its own
// answer. It keeps itself alive until gRPC says that the call is over. `Reactor` is gRPC's face of
// it: a stream of answers, or one to a stream of requests, whose reads are its own business.
//
// Thread safety: reactions come on gRPC's threads, Wake from any.
#pragma once

#include <grpc/grpc.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "kernels/base/log.h"
#include "kernels/base/memory_reserve.h"
#include "server/grpc/call_context.h"
#include "server/request_checks.h"

namespace diffserve {

inline grpc::Status OutOfMemoryOfCall() {
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, OutOfMemoryStatus().message());
}

// A call for which memory has run out before there was one.
template <typename Reactor>
class RefusedCall : public Reactor {
 public:
  RefusedCall() { this->Finish(OutOfMemoryOfCall()); }

 private:
  void OnDone() override { delete this; }
};

// A call for which memory runs out ends with RESOURCE_EXHAUSTED, and no other.
template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class StreamCall : public WatchedCall, public Reactor {
 public:
  void Advance() noexcept override {
    try {
      AdvanceOrThrow();
    } catch (const std::bad_alloc&) {
      Fail();
    }
  }

  void EndIfStalled(std::chrono::steady_clock::time_point begin) override {
    grpc_call* call = nullptr;
    std::string request_id;
    {
      std::lock_guard lock(mutex_);
      if (!writing_ || finished_ || cancelled_ || write_begin_ > begin) return;
      request_id = request_id_;  // a stream of requests goes on to the next
      call = context_->c_call();
      grpc_call_ref(call);
    }
    Log(LogLevel::kInfo, "grpc_write_stalled", {{"request_id", request_id}});
    grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "the client takes nothing", nullptr);
    grpc_call_unref(call);
  }

 protected:
  StreamCall(const char* method, CallContext& shared, grpc::CallbackServerContext* context)
      : shared_(shared), context_(context), record_(method, shared.api_keys, context) {}

  // The next message of the answer, or false if there is none now; sets done_ if there will be
  // none.
  // REQUIRES: mutex_ is held.
  virtual bool TakeNext(Message* message) = 0;
  // The call is over before its answer was: what makes it stops. Without the lock, once.
  virtual void Cancel() = 0;
  // A message has been taken by the client, and the next is not taken yet. Without the lock.
  virtual void Written() {}

  // Makes a call and begins it: `start(call)` says how what makes its answer is begun.
  template <typename Call, typename Start>
  static Reactor* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                        const Status& request, const Start& start) {
    std::shared_ptr<Call> call;
    try {
      call = std::make_shared<Call>(shared, context);
      shared.write_starter.Watch(call);
    } catch (const std::bad_alloc&) {
      return new RefusedCall<Reactor>;
    }
    call->self_ = call;
    call->BeginWith(request, [&] { return start(*call); });
    return call.get();
  }

  // The client's id of the request, or one of ours.
  Status TakeRequestId(const std::string& asked) {
    request_id_ = asked.empty() ? "grpc-" + std::to_string(shared_.next_id.fetch_add(1)) : asked;
    if (request_id_.size() <= kMaxRequestIdBytes) return {};
    return InvalidArgument("request_id has " + std::to_string(request_id_.size()) +
                               " bytes, allowed: at most " + std::to_string(kMaxRequestIdBytes),
                           "request_id");
  }

  // The call's deadline, if it is within a year.
  std::optional<std::chrono::steady_clock::time_point> deadline() const {
    using std::chrono::steady_clock;
    using std::chrono::system_clock;
    const system_clock::time_point now = system_clock::now();
    if (context_->deadline() >= now + std::chrono::hours(24 * 365)) return std::nullopt;
    return steady_clock::now() +
           std::chrono::duration_cast<steady_clock::duration>(context_->deadline() - now);
  }

  std::weak_ptr<StreamCall> weak_self() const { return self_; }
  // TakeNext may have something to give. From any thread; the call may be over.
  static void Wake(const std::weak_ptr<StreamCall>& weak) {
    const std::shared_ptr<StreamCall> call = weak.lock();
    if (call != nullptr && !call->queued_.exchange(true)) call->shared_.write_starter.Add(*call);
  }

  CallContext& shared_;
  grpc::CallbackServerContext* const context_;
  const CallRecord record_;
  std::string request_id_;
  std::mutex mutex_;
  std::optional<Status> done_;

 private:
  void AdvanceOrThrow() {
    const WorksForAllRequests uses_the_reserve;  // without memory gRPC ends the process
    queued_.store(false);
    const Message* to_write = nullptr;
    grpc::Status status;
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_) return;
      if (cancelled_) {
        const bool late = context_->deadline() <= std::chrono::system_clock::now();
        status = late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                     "the call's deadline has passed")
                      : grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled");
      } else if (TakeNext(&current_)) {
        to_write = &current_;
      } else if (!done_) {
        return;
      } else {
        status = record_.ToGrpc(*done_);
      }
      writing_ = to_write != nullptr;
      if (writing_) write_begin_ = std::chrono::steady_clock::now();
      finished_ = !writing_;
    }
    // Neither call may be made under the lock: gRPC may run a reaction before it returns.
    if (to_write != nullptr) {
      Write(*to_write);
    } else {
      End(status);
    }
  }

  void Write(const Message& message) {
    try {
      this->StartWrite(&message);
    } catch (const std::bad_alloc&) {
      std::lock_guard lock(mutex_);
      writing_ = false;
      throw;
    }
  }

  template <typename Start>
  void BeginWith(const Status& request, const Start& start) {
    Status status;
    try {
      status = record_.access().ok() ? request : record_.access();
      if (status.ok()) status = TakePlace();
      if (status.ok()) status = start();
    } catch (const std::bad_alloc&) {
      status = OutOfMemoryStatus();
    }
    if (status.ok()) return;
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    try {
      End(record_.ToGrpc(status));
    } catch (const std::bad_alloc&) {
      End(OutOfMemoryOfCall());
    }
  }

  Status TakePlace() {
    const Status status = shared_.open_calls.Take(record_.client());
    has_place_ = status.ok();
    return status;
  }

  void End(const grpc::Status& status) {
    try {
      shared_.End(record_, status, request_id_);
    } catch (const std::bad_alloc&) {
      Log(LogLevel::kError, "grpc_request_untold");
    }
    this->Finish(status);
  }

  // Memory has run out for this call.
  void Fail() noexcept {
    Abandon();
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_) return;
      finished_ = true;
    }
    End(OutOfMemoryOfCall());
  }

  void Abandon() {
    {
      std::lock_guard lock(mutex_);
      if (cancelled_ || finished_) return;
      cancelled_ = true;
    }
    Cancel();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    if (ok)
      Written();
    else
      Abandon();
    Advance();
  }

  void OnCancel() override {
    Abandon();
    Advance();
  }

  void OnDone() override {
    Close();
    if (has_place_) shared_.open_calls.Give(record_.client());
    self_.reset();  // may delete this
  }

  // The call is over: nothing wakes it any more.
  virtual void Close() = 0;

  std::shared_ptr<StreamCall> self_;
  bool has_place_ = false;           // among the open calls
  std::atomic<bool> queued_{false};  // in the WriteStarter's queue
  bool writing_ = false;
  std::chrono::steady_clock::time_point write_begin_;
  bool finished_ = false;
  bool cancelled_ = false;
  Message current_;  // being written
};

// The reactor of a unary call, whose answer is a stream of one message.
template <typename Message>
class OneAnswer : public grpc::ServerUnaryReactor {
 protected:
  void StartWrite(const Message* message) {
    *answer_ = *message;
    OnWriteDone(true);
  }
  virtual void OnWriteDone(bool) {}

  Message* answer_ = nullptr;  // gRPC's
};

}  // namespace diffserve
