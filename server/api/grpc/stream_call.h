// SPDX-License-Identifier: Apache-2.0
// StreamCall: one call of the gRPC port whose answer is a stream of messages. It writes one message
// at a time and takes the next when the write is done, so a slow client delays only its own answer.
// It keeps itself alive until gRPC says that the call is over. `Reactor` is the gRPC base class: a
// stream of answers, or one that also reads a stream of requests and handles the reads itself.
//
// Thread safety: reactions run on gRPC's threads; Wake may be called from any thread.
#pragma once

#include <grpc/grpc.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "kernels/process/random_bits.h"
#include "server/api/grpc/call_context.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {

template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class StreamCall : public WatchedCall, public Reactor {
 public:
  void Advance() override {
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
        status = ToGrpc(*done_);
      }
      writing_ = to_write != nullptr;
      if (writing_) write_begin_ = std::chrono::steady_clock::now();
      finished_ = !writing_;
    }
    // Neither call may be made under the lock: gRPC may run a reaction before it returns.
    if (to_write != nullptr) {
      this->StartWrite(to_write);
    } else {
      End(status);
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
    grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "the client does not read", nullptr);
    grpc_call_unref(call);
  }

 protected:
  StreamCall(const char* method, CallContext& shared, grpc::CallbackServerContext* context)
      : shared_(shared), context_(context), record_(method, shared.watch, context) {}

  // Takes the next message of the answer; false if there is none yet. Sets done_ if there will be
  // none.
  virtual bool TakeNext(Message* message) = 0;
  // Stops the work on the answer, because the call is over early. Called once, without the lock.
  virtual void Cancel() = 0;
  // Called after the client has taken a message and before the next one is taken. Without the lock.
  virtual void Written() {}
  // For protocols with codes of their own.
  virtual grpc::Status ToGrpc(const Status& status) const { return record_.ToGrpc(status); }

  // Makes a call and starts it; `start(call)` starts the work on its answer.
  template <typename Call, typename Start>
  static Reactor* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                        const Status& request, const Start& start) {
    const auto call = std::make_shared<Call>(shared, context);
    shared.write_starter.Watch(call);
    call->self_ = call;
    call->BeginWith(request, [&] { return start(*call); });
    return call.get();
  }

  // The client's id of the request, or one of ours.
  Status TakeRequestId(const std::string& asked) {
    request_id_ = asked.empty() ? "grpc-" + std::to_string(RandomBits()) : asked;
    if (request_id_.size() <= kMaxRequestIdBytes) return {};
    return TooMany("request_id", request_id_.size(), "bytes", kMaxRequestIdBytes);
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
  // Signals that TakeNext may have a message. May be called from any thread, also after the call's
  // end.
  static void Wake(const std::weak_ptr<StreamCall>& weak) {
    const std::shared_ptr<StreamCall> call = weak.lock();
    if (call != nullptr) call->shared_.write_starter.Add(call);
  }

  CallContext& shared_;
  grpc::CallbackServerContext* const context_;
  const CallRecord record_;
  std::string request_id_;
  std::mutex mutex_;
  std::optional<Status> done_;

 private:
  template <typename Start>
  void BeginWith(const Status& request, const Start& start) {
    Status status = record_.access().ok() ? request : record_.access();
    if (status.ok()) status = TakePlace();
    if (status.ok()) status = start();
    if (status.ok()) return;
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    End(ToGrpc(status));
  }

  Status TakePlace() {
    const Status status = shared_.open_calls.Take(record_.client());
    has_place_ = status.ok();
    return status;
  }

  void End(const grpc::Status& status) {
    shared_.End(record_, status, request_id_);
    this->Finish(status);
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

  // Marks the call as over; wakes have no effect after this.
  virtual void Close() = 0;

  std::shared_ptr<StreamCall> self_;
  bool has_place_ = false;  // among the open calls
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
