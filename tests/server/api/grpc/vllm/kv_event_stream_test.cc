// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm/kv_event_stream.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/testing/kernels/eventually.h"
#include "tests/testing/server/grpc_stack.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace diffserve {
namespace {

namespace wire = ::smg::grpc::common;
using testing::CallIsCounted;
using ::testing::ElementsAre;
using testing::Eventually;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using ::testing::HasSubstr;
using vllm::grpc::engine::VllmEngine;

constexpr char kMethod[] = "VllmEngine.SubscribeKvEvents";

KvEvent Pages(KvEvent::Kind kind, std::vector<uint64_t> hashes,
              std::optional<uint64_t> parent = std::nullopt) {
  KvEvent event;
  event.kind = kind;
  event.hashes = std::move(hashes);
  event.parent = parent;
  for (size_t i = 0; kind == KvEvent::Kind::kStored && i < 2 * event.hashes.size(); ++i)
    event.tokens.push_back(static_cast<int32_t>(10 + i));
  return event;
}

TEST(KvEventMessagesTest, EachKindHasItsFields) {
  constexpr uint64_t kHigh = ~uint64_t{0} - 4;
  const NumberedKvEvents batch = {
      .number = 9,
      .unix_seconds = 12.5,
      .first_event_id = 30,
      .events = {Pages(KvEvent::Kind::kStored, {1, kHigh}, 7), Pages(KvEvent::Kind::kStored, {2}),
                 Pages(KvEvent::Kind::kRemoved, {kHigh, 1}), Pages(KvEvent::Kind::kCleared, {})}};
  wire::KvEventBatch out;
  out.set_sequence_number(1);
  out.add_events();  // of an earlier message
  FillKvEvents(batch, 2, out);
  EXPECT_EQ(out.sequence_number(), 9u);
  EXPECT_EQ(out.timestamp(), 12.5);
  EXPECT_EQ(out.dp_rank(), 0);
  ASSERT_EQ(out.events_size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out.events(i).event_id(), 30u + static_cast<uint64_t>(i));

  const wire::KvBlocksStored& stored = out.events(0).stored();
  EXPECT_EQ(stored.parent_block_hash(), 7);
  ASSERT_EQ(stored.blocks_size(), 2);
  EXPECT_EQ(stored.blocks(0).block_hash(), 1);
  EXPECT_EQ(stored.blocks(1).block_hash(), -5);
  EXPECT_THAT(stored.blocks(0).token_ids(), ElementsAre(10, 11));
  EXPECT_THAT(stored.blocks(1).token_ids(), ElementsAre(12, 13));
  EXPECT_EQ(stored.blocks(1).block_size(), 2);
  EXPECT_EQ(stored.blocks(1).cache_level(), 0);
  EXPECT_FALSE(stored.blocks(1).has_lora_id());
  EXPECT_FALSE(out.events(1).stored().has_parent_block_hash());
  EXPECT_THAT(out.events(2).removed().block_hashes(), ElementsAre(-5, 1));
  EXPECT_TRUE(out.events(3).has_cleared());
}

// A server whose feed the tests fill, or whose engine does.
class KvEventStreamTest : public ::testing::Test {
 protected:
  explicit KvEventStreamTest(size_t max_batches = 100)
      : feed_(std::make_shared<KvEventFeed>(
            KvEventFeedOptions{.page_size = 2, .max_batches = max_batches})) {
    GrpcStackOptions options;
    options.grpc.kv_events = feed_;
    stack_ = std::make_unique<GrpcStack>(std::move(options));
    stub_ = VllmEngine::NewStub(stack_->NewChannel());
  }

  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<wire::KvEventBatch>> reader;

    Call(VllmEngine::Stub& stub, uint64_t last_number) {
      wire::SubscribeKvEventsRequest request;
      request.set_start_sequence_number(last_number);
      reader = stub.SubscribeKvEvents(&context, request);
    }
    // -1: the stream is over.
    int64_t NextNumber() const {
      wire::KvEventBatch batch;
      return reader->Read(&batch) ? static_cast<int64_t>(batch.sequence_number()) : -1;
    }
  };
  void Append(uint64_t first, uint64_t last, size_t pages = 1) {
    for (uint64_t number = first; number <= last; ++number) {
      const KvEvent event = Pages(KvEvent::Kind::kStored, std::vector<uint64_t>(pages, number));
      feed_->Append(number, 1.0, {&event, 1});
    }
  }

  const std::shared_ptr<KvEventFeed> feed_;
  std::unique_ptr<GrpcStack> stack_;
  std::unique_ptr<VllmEngine::Stub> stub_;
};

TEST_F(KvEventStreamTest, HeadersComeBeforeTheFirstEventAndThenEachBatch) {
  Call call(*stub_, 0);
  call.reader->WaitForInitialMetadata();  // hangs without the server's headers
  Append(0, 1);
  EXPECT_EQ(call.NextNumber(), 0);
  EXPECT_EQ(call.NextNumber(), 1);
  Append(2, 2);
  EXPECT_EQ(call.NextNumber(), 2);
}

TEST_F(KvEventStreamTest, SubscriberComesBackWhereItWas) {
  Append(0, 5);
  Call call(*stub_, 3);
  EXPECT_EQ(call.NextNumber(), 4);
  EXPECT_EQ(call.NextNumber(), 5);
  Call ahead(*stub_, 6);
  EXPECT_EQ(ahead.NextNumber(), -1);
  const grpc::Status status = ahead.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "start_sequence_number is 6; allowed: 0 to 5");
  EXPECT_EQ(testing::TrailerOf(ahead.context, "param"), "start_sequence_number");
  EXPECT_TRUE(CallIsCounted(*stack_, kMethod, grpc::StatusCode::OUT_OF_RANGE));
}

TEST_F(KvEventStreamTest, DisconnectedSubscribersLeaveNothing) {
  for (int i = 0; i < 3; ++i) {
    Call call(*stub_, 0);
    call.reader->WaitForInitialMetadata();
    if (i == 2) Append(0, 0);
    call.context.TryCancel();
    EXPECT_EQ(call.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return feed_->num_subscriptions() == 0; }));
  Append(1, 3);
  Call next(*stub_, 2);
  EXPECT_EQ(next.NextNumber(), 3);
}

TEST_F(KvEventStreamTest, StopEndsTheStreamAfterItsLastBatch) {
  Call call(*stub_, 0);
  call.reader->WaitForInitialMetadata();
  Append(0, 0);
  std::thread stop([&] { stack_->StopAll(); });
  EXPECT_EQ(call.NextNumber(), 0);
  EXPECT_EQ(call.NextNumber(), -1);
  EXPECT_EQ(call.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stop.join();
}

class SmallKvEventWindowTest : public KvEventStreamTest {
 protected:
  SmallKvEventWindowTest() : KvEventStreamTest(4) {}
};

TEST_F(SmallKvEventWindowTest, SubscriberThatDoesNotReadIsEndedAndDelaysNoOther) {
  Call slow(*stub_, 0);
  slow.reader->WaitForInitialMetadata();
  const auto quick_stub = VllmEngine::NewStub(stack_->NewChannel());
  Call quick(*quick_stub, 0);
  quick.reader->WaitForInitialMetadata();
  constexpr size_t kPages = 100'000;  // a megabyte and more: gRPC buffers few of them
  constexpr uint64_t kBatches = 40;
  for (uint64_t number = 0; number < kBatches; ++number) {
    Append(number, number, kPages);
    EXPECT_EQ(quick.NextNumber(), static_cast<int64_t>(number));
  }
  uint64_t read = 0;
  while (slow.NextNumber() >= 0) ++read;
  EXPECT_LT(read, kBatches);
  const grpc::Status status = slow.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("read too slowly"));
}

TEST(KvEventsOfTheEngineTest, StreamHasWhatZeroMqHas) {
  GrpcStackOptions options;
  options.kv_events.endpoint = "inproc://kv-events";
  options.kv_events.page_size = 16;
  options.kv_events.feed = options.grpc.kv_events = std::make_shared<KvEventFeed>(
      KvEventFeedOptions{.page_size = 16});
  GrpcStack stack(std::move(options));
  const auto stub = VllmEngine::NewStub(stack.NewChannel());
  std::vector<int32_t> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(5 + i);
  const auto inference = stack.NewStub();
  ASSERT_TRUE(testing::Generate(*inference, testing::RequestOf(prompt, 1)).status.ok());

  grpc::ClientContext context;
  const auto reader = stub->SubscribeKvEvents(&context, {});
  wire::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 0u);
  ASSERT_EQ(batch.events_size(), 1);
  EXPECT_TRUE(batch.events(0).has_cleared()) << "a new process has nothing cached";
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 1u);
  ASSERT_EQ(batch.events_size(), 1);
  const wire::KvBlocksStored& stored = batch.events(0).stored();
  ASSERT_EQ(stored.blocks_size(), 2) << "of 40 tokens";
  EXPECT_EQ(stored.blocks(0).token_ids(0), 5u);
  EXPECT_EQ(stored.blocks(1).token_ids(15), 36u);
  context.TryCancel();
  reader->Finish();
}

}  // namespace
}  // namespace diffserve
