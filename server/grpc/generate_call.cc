#include "server/grpc/generate_call.h"

#include <grpc/grpc.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/log.h"
#include "server/grpc/messages.h"
#include "server/request_checks.h"

namespace diffserve {

using std::chrono::steady_clock;
using std::chrono::system_clock;

namespace {

steady_clock::time_point ToSteady(system_clock::time_point time) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(time - system_clock::now());
}

}  // namespace

// One Generate call. There is one write at a time; the next event is taken when it is done, so a
// slow client fills its own ResponseStream and nothing else. It keeps itself alive until gRPC says
// that the call is over.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  static GenerateCall* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                             const WireRequest<v1::GenerateRequest>& request) {
    const auto call = std::make_shared<GenerateCall>(shared, context);
    call->self_ = call;
    shared.write_starter.Watch(call);
    call->Submit(request);
    return call.get();
  }

  GenerateCall(CallContext& shared, grpc::CallbackServerContext* context)
      : shared_(shared), context_(context), record_("Generate", shared.api_keys, context) {}

  // Starts the next write, or ends the call, if nothing is under way.
  void Advance() {
    queued_.store(false);
    const v1::GenerateResponse* to_write = nullptr;
    grpc::Status status;
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_) return;
      if (cancelled_) {
        const bool late = context_->deadline() <= system_clock::now();
        status = late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                     "the call's deadline has passed")
                      : grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled");
      } else if (TakeEvents()) {
        current_ = std::move(pending_.front());
        pending_.pop_front();
        to_write = &current_;
      } else if (!done_) {
        return;
      } else {
        status = record_.ToGrpc(*done_);
      }
      writing_ = to_write != nullptr;
      if (writing_) write_begin_ = steady_clock::now();
      finished_ = !writing_;
    }
    // Neither call may be made under the lock: gRPC may run a reaction before it returns.
    if (to_write != nullptr) {
      StartWrite(to_write);
    } else {
      End(status);
    }
  }

  // Cancels the call if one write has been under way since `begin`.
  void EndIfStalled(steady_clock::time_point begin) {
    grpc_call* call = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (!writing_ || finished_ || cancelled_ || write_begin_ > begin) return;
      call = context_->c_call();
      grpc_call_ref(call);
    }
    Log(LogLevel::kInfo, "grpc_write_stalled", {{"request_id", shape_.request_id}});
    grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "the client takes nothing", nullptr);
    grpc_call_unref(call);
  }

 private:
  void Submit(const WireRequest<v1::GenerateRequest>& request) {
    Status status = record_.access().ok() ? request.status : record_.access();
    if (status.ok()) status = TakePlace();
    if (status.ok()) status = SubmitToFrontend(request.message);
    if (status.ok()) return;
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    End(record_.ToGrpc(status));
  }

  Status TakePlace() {
    const Status status = shared_.open_calls.Take(record_.client());
    has_place_ = status.ok();
    return status;
  }

  Status SubmitToFrontend(const v1::GenerateRequest& message) {
    Result<GenerateRequest> request = FromProto(message, shared_.frontend.options(),
                                                shared_.frontend.DefaultSampling());
    if (!request.ok()) return request.status();
    request->client = record_.client();
    if (request->request_id.empty())
      request->request_id = "grpc-" + std::to_string(shared_.next_id.fetch_add(1));
    if (request->request_id.size() > kMaxRequestIdBytes) {
      return InvalidArgument("request_id has " + std::to_string(request->request_id.size()) +
                                 " bytes, allowed: at most " + std::to_string(kMaxRequestIdBytes),
                             "request_id");
    }
    if (context_->deadline() < system_clock::now() + std::chrono::hours(24 * 365))
      request->deadline = ToSteady(context_->deadline());
    shape_.request_id = request->request_id;
    shape_.logprobs = request->sampling.num_logprobs >= 0;
    stream_ = std::make_shared<ResponseStream>(
        shared_.frontend.options().max_stream_bytes,
        [call = std::weak_ptr<GenerateCall>(self_)] { Notify(call); });
    const Result<ResponseId> id = shared_.frontend.Generate(std::move(request).value(), stream_);
    if (id.ok()) response_ = *id;
    return id.ok() ? Status() : id.status();
  }

  // Runs on the thread that pushed an event.
  static void Notify(const std::weak_ptr<GenerateCall>& weak) {
    const std::shared_ptr<GenerateCall> call = weak.lock();
    if (call != nullptr && !call->queued_.exchange(true)) call->shared_.write_starter.Add(weak);
  }

  // True if there is a message to write. The start waits for what comes next, since that may be a
  // refusal by the engine, and only a call that has had no message can be retried by the client's
  // own library.
  // REQUIRES: mutex_ is held.
  bool TakeEvents() {
    while (!done_ && (pending_.empty() || holds_start_)) {
      const std::optional<ResponseEvent> event = stream_->TryPop();
      if (!event) break;
      const auto* done = std::get_if<ResponseDone>(&*event);
      if (done != nullptr) done_ = done->status;
      if (done != nullptr && !done->status.ok() && holds_start_) pending_.clear();
      AppendMessages(*event, shape_, pending_);
      holds_start_ = std::holds_alternative<ResponseStarted>(*event);
    }
    return !pending_.empty() && !holds_start_;
  }

  void End(const grpc::Status& status) {
    shared_.End(record_, status, shape_.request_id);
    Finish(status);
  }

  void Abandon() {
    {
      std::lock_guard lock(mutex_);
      if (cancelled_ || finished_) return;
      cancelled_ = true;
    }
    if (stream_ == nullptr) return;
    stream_->Close();
    shared_.frontend.Abandon(response_);
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    if (!ok) Abandon();
    Advance();
  }

  void OnCancel() override {
    Abandon();
    Advance();
  }

  void OnDone() override {
    if (stream_ != nullptr) stream_->Close();
    if (has_place_) shared_.open_calls.Give(record_.client());
    self_.reset();  // may delete this
  }

  CallContext& shared_;
  grpc::CallbackServerContext* const context_;
  const CallRecord record_;
  std::shared_ptr<GenerateCall> self_;
  AnswerShape shape_{{}, false, shared_.frontend.tokenizer()};
  std::shared_ptr<ResponseStream> stream_;
  bool has_place_ = false;           // among the open calls
  ResponseId response_ = 0;          // set before any reaction can run
  std::atomic<bool> queued_{false};  // in the WriteStarter's queue

  std::mutex mutex_;
  bool writing_ = false;
  steady_clock::time_point write_begin_;
  bool finished_ = false;
  bool cancelled_ = false;
  std::deque<v1::GenerateResponse> pending_;
  bool holds_start_ = false;      // pending_ is the start alone
  v1::GenerateResponse current_;  // being written
  std::optional<Status> done_;
};

void WriteStarter::Run() {
  std::unique_lock lock(mutex_);
  const auto woken = [this] { return stopping_ || !calls_.empty(); };
  while (true) {
    // Watch wakes it too: then there is something to look at in time.
    if (watched_.empty())
      wake_.wait(lock, [&] { return woken() || !watched_.empty(); });
    else
      wake_.wait_until(lock, next_look_, woken);
    if (!watched_.empty() && steady_clock::now() >= next_look_) EndStalled(lock);
    if (stopping_ && calls_.empty()) return;
    if (calls_.empty()) continue;
    const std::weak_ptr<GenerateCall> weak = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->Advance();
    lock.lock();
  }
}

// Looks at all that is watched, without the lock; calls that are over are forgotten.
void WriteStarter::EndStalled(std::unique_lock<std::mutex>& lock) {
  const steady_clock::time_point now = steady_clock::now();
  next_look_ = now + stall_timeout_ / 4;
  std::erase_if(watched_, [](const auto& call) { return call.expired(); });
  const std::vector<std::weak_ptr<GenerateCall>> watched = watched_;
  lock.unlock();
  for (const std::weak_ptr<GenerateCall>& weak : watched) {
    if (const std::shared_ptr<GenerateCall> call = weak.lock())
      call->EndIfStalled(now - stall_timeout_);
  }
  lock.lock();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* BeginGenerate(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<v1::GenerateRequest>& request) {
  return GenerateCall::Begin(shared, context, request);
}

}  // namespace diffserve
