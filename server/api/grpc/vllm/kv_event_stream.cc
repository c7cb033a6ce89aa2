// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm/kv_event_stream.h"

#include <memory>
#include <optional>
#include <utility>

#include "kernels/base/refusal.h"
#include "server/api/grpc/stream_call.h"

namespace diffserve {
namespace {

namespace wire = ::smg::grpc::common;

constexpr int kOneRank = 0;     // data-parallel
constexpr int kFirstLevel = 0;  // of the cache: pages that a step reads

void FillStored(const KvEvent& event, int page_size, wire::KvBlocksStored& out) {
  if (event.parent) out.set_parent_block_hash(static_cast<int64_t>(*event.parent));
  auto tokens = event.tokens.begin();
  for (const uint64_t hash : event.hashes) {
    wire::KvBlock& block = *out.add_blocks();
    block.set_block_hash(static_cast<int64_t>(hash));
    block.mutable_token_ids()->Add(tokens, tokens + page_size);
    block.set_block_size(page_size);
    block.set_cache_level(kFirstLevel);
    tokens += page_size;
  }
}

class KvEventStream : public StreamCall<wire::KvEventBatch> {
 public:
  static auto* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                     const WireRequest<wire::SubscribeKvEventsRequest>& request) {
    return StreamCall::Begin<KvEventStream>(
        shared, context, request.status,
        [&](KvEventStream& call) { return call.Start(request.message.start_sequence_number()); });
  }

  KvEventStream(CallContext& shared, grpc::CallbackServerContext* context)
      : StreamCall("VllmEngine.SubscribeKvEvents", shared, context),
        feed_(shared.options.kv_events.get()) {}

 private:
  Status Start(uint64_t last_number) {
    if (feed_ == nullptr) {
      return Status(StatusCode::kUnimplemented,
                    RefusalText("this server publishes no KV events", "with --kv-events-endpoint"));
    }
    Result<int64_t> subscription = feed_->Subscribe(last_number,
                                                    [weak = weak_self()] { Wake(weak); });
    if (!subscription.ok()) {
      end_code_ = grpc::StatusCode::OUT_OF_RANGE;
      return subscription.status();
    }
    subscription_ = *subscription;
    StartSendInitialMetadata();  // tells the client that it is subscribed, before the first event
    Wake(weak_self());
    return {};
  }

  bool TakeNext(wire::KvEventBatch* message) override {
    if (done_ || !subscription_) return false;
    const Result<std::shared_ptr<const NumberedKvEvents>> next = feed_->Next(*subscription_);
    if (!next.ok()) {
      done_ = next.status();
      if (done_->code() == StatusCode::kResourceExhausted) end_code_ = grpc::StatusCode::DATA_LOSS;
      return false;
    }
    if (*next == nullptr) return false;
    FillKvEvents(**next, feed_->page_size(), *message);
    return true;
  }

  grpc::Status ToGrpc(const Status& status) const override {
    const grpc::Status usual = StreamCall::ToGrpc(status);
    return end_code_ ? grpc::Status(*end_code_, usual.error_message()) : usual;
  }
  void Cancel() override { Close(); }
  void Close() override {
    if (subscription_) feed_->Unsubscribe(*subscription_);
  }

  KvEventFeed* const feed_;                   // nullptr: nothing is published
  std::optional<int64_t> subscription_;       // set before any reaction can run
  std::optional<grpc::StatusCode> end_code_;  // by which subscribers know what to do next
};

}  // namespace

void FillKvEvents(const NumberedKvEvents& batch, int page_size, wire::KvEventBatch& out) {
  out.Clear();
  out.set_sequence_number(batch.number);
  out.set_timestamp(batch.unix_seconds);
  out.set_dp_rank(kOneRank);
  uint64_t id = batch.first_event_id;
  for (const KvEvent& event : batch.events) {
    wire::KvCacheEvent& to = *out.add_events();
    to.set_event_id(id++);
    switch (event.kind) {
      case KvEvent::Kind::kStored:
        FillStored(event, page_size, *to.mutable_stored());
        break;
      case KvEvent::Kind::kRemoved:
        for (const uint64_t hash : event.hashes)
          to.mutable_removed()->add_block_hashes(static_cast<int64_t>(hash));
        to.mutable_removed()->set_cache_level(kFirstLevel);
        break;
      case KvEvent::Kind::kCleared:
        to.mutable_cleared();
        break;
    }
  }
}

grpc::ServerWriteReactor<wire::KvEventBatch>* BeginKvEvents(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<wire::SubscribeKvEventsRequest>& request) {
  return KvEventStream::Begin(shared, context, request);
}

}  // namespace diffserve
