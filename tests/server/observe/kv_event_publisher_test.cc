// SPDX-License-Identifier: Apache-2.0
#include "server/observe/kv_event_publisher.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <zmq.hpp>

#include "server/observe/kv_event_message.h"
#include "tests/testing/kernels/eventually.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

KvEvent Stored(std::vector<uint64_t> hashes, std::optional<uint64_t> parent = std::nullopt,
               std::string salt = "") {
  KvEvent event;
  event.parent = parent;
  event.salt = std::move(salt);
  for (size_t i = 0; i < 2 * hashes.size(); ++i)
    event.tokens.push_back(static_cast<int32_t>(100 + i));
  event.hashes = std::move(hashes);
  return event;
}

KvEvent Removed(std::vector<uint64_t> hashes) {
  KvEvent event;
  event.kind = KvEvent::Kind::kRemoved;
  event.hashes = std::move(hashes);
  return event;
}

KvEvent Cleared() {
  KvEvent event;
  event.kind = KvEvent::Kind::kCleared;
  return event;
}

OrderedJson Decoded(const std::string& payload) { return OrderedJson::from_msgpack(payload); }

TEST(KvEventMessageTest, MessageHasTheFormatThatRoutersRead) {
  const KvEvent events[] = {Stored({1, ~0ull}), Stored({7}, 1), Stored({9}, std::nullopt, "tenant"),
                            Removed({7, 1}), Cleared()};
  const OrderedJson batch = Decoded(KvEventPayload(1234.5, events, 2));
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0], 1234.5);
  EXPECT_EQ(batch[2], 0);
  const OrderedJson expected = OrderedJson::parse(R"([
    {"type": "BlockStored", "block_hashes": [1, 18446744073709551615], "parent_block_hash": null, "token_ids": [100, 101, 102, 103],
     "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [null, null], "group_idx": 0,
     "kv_cache_spec_kind": "full_attention"},
    {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": 1, "token_ids": [100, 101],
     "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [null], "group_idx": 0,
     "kv_cache_spec_kind": "full_attention"},
    {"type": "BlockStored", "block_hashes": [9], "parent_block_hash": null, "token_ids": [100, 101],
     "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [["tenant"]], "group_idx": 0,
     "kv_cache_spec_kind": "full_attention"},
    {"type": "BlockRemoved", "block_hashes": [7, 1], "medium": "GPU", "group_idx": 0},
    {"type": "AllBlocksCleared"}])");
  EXPECT_EQ(batch[1].dump(), expected.dump())
      << "the order of the members too: readers want the type first";
}

struct ZmqMessage {
  std::string topic;
  int64_t number = -2;
  OrderedJson batch;
};

int64_t NumberOf(const zmq::message_t& frame) {
  int64_t number = 0;
  for (size_t i = 0; i < frame.size(); ++i) number = number << 8 | frame.data<uint8_t>()[i];
  return number;
}

class KvEventPublisherTest : public ::testing::Test {
 protected:
  static KvEventPublisherOptions MakeOptions() {
    KvEventPublisherOptions options;
    options.endpoint = options.replay_endpoint = "tcp://127.0.0.1:*";
    options.topic = "kv@pod@model";
    options.page_size = 2;
    return options;
  }
  void Start(KvEventPublisherOptions options) {
    auto started = KvEventPublisher::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().message();
    publisher_ = std::move(started).value();
  }
  zmq::socket_t Connected(zmq::socket_type type, const std::string& endpoint) {
    zmq::socket_t socket(context_, type);
    socket.set(zmq::sockopt::rcvtimeo, 20000);
    socket.set(zmq::sockopt::linger, 0);
    if (type == zmq::socket_type::sub) socket.set(zmq::sockopt::subscribe, "kv@");
    socket.connect(endpoint);
    return socket;
  }
  static std::vector<zmq::message_t> Frames(zmq::socket_t& socket) {
    std::vector<zmq::message_t> frames;
    do {
      zmq::message_t frame;
      if (!socket.recv(frame)) break;
      frames.push_back(std::move(frame));
    } while (frames.back().more());
    return frames;
  }
  static ZmqMessage MessageOf(const std::vector<zmq::message_t>& frames, size_t begin) {
    if (frames.size() != begin + 3) return {};
    const zmq::message_t& payload = frames[begin + 2];
    return {frames[begin].to_string(), NumberOf(frames[begin + 1]),
            payload.size() == 0 ? OrderedJson() : Decoded(payload.to_string())};
  }
  // What the replay socket gives from `first` on, the end mark included.
  std::vector<ZmqMessage> Replayed(uint64_t first) {
    zmq::socket_t client = Connected(zmq::socket_type::dealer, publisher_->replay_endpoint());
    std::string number(8, '\0');
    for (int i = 0; i < 8; ++i)
      number[static_cast<size_t>(i)] = static_cast<char>(first >> (8 * (7 - i)));
    client.send(zmq::message_t(), zmq::send_flags::sndmore);
    client.send(zmq::buffer(number), zmq::send_flags::none);
    std::vector<ZmqMessage> messages;
    do messages.push_back(MessageOf(Frames(client), 1));
    while (messages.back().number >= 0);
    return messages;
  }
  void WaitUntilPublished(uint64_t events) {
    EXPECT_TRUE(testing::Eventually([&] { return publisher_->counts().published >= events; }));
  }

  zmq::context_t context_;
  std::unique_ptr<KvEventPublisher> publisher_;
};

TEST_F(KvEventPublisherTest, SubscriberGetsNumberedBatchesInOrder) {
  Start(MakeOptions());
  WaitUntilPublished(1);  // batch 0 says that all is cleared; no subscriber gets it
  zmq::socket_t subscriber = Connected(zmq::socket_type::sub, publisher_->endpoint());
  // A publisher does not learn when a subscription takes effect: publish until one batch arrives,
  // then count from there.
  ZmqMessage first;
  subscriber.set(zmq::sockopt::rcvtimeo, 20);
  for (uint64_t hash = 1; first.number < 0; ++hash) {
    publisher_->Publish({Stored({hash})});
    first = MessageOf(Frames(subscriber), 0);
  }
  subscriber.set(zmq::sockopt::rcvtimeo, 20000);
  publisher_->Publish({Removed({4242})});
  ZmqMessage message = first;
  for (int64_t number = first.number; message.batch[1][0]["type"] != "BlockRemoved"; ++number) {
    EXPECT_EQ(message.topic, "kv@pod@model");
    EXPECT_EQ(message.number, number);
    EXPECT_EQ(message.batch[1][0]["block_hashes"], OrderedJson::array({number}));
    message = MessageOf(Frames(subscriber), 0);
  }
  EXPECT_EQ(message.batch[1][0]["block_hashes"], OrderedJson::array({4242}));
}

TEST_F(KvEventPublisherTest, MissedBatchesComeFromTheReplaySocket) {
  Start(MakeOptions());
  for (uint64_t hash = 1; hash <= 5; ++hash) publisher_->Publish({Stored({hash})});
  WaitUntilPublished(6);
  const std::vector<ZmqMessage> all = Replayed(0);
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[0].batch[1][0]["type"], "AllBlocksCleared");
  for (int64_t number = 1; number <= 5; ++number) {
    EXPECT_EQ(all[static_cast<size_t>(number)].topic, "kv@pod@model");
    EXPECT_EQ(all[static_cast<size_t>(number)].number, number);
    EXPECT_EQ(all[static_cast<size_t>(number)].batch[1][0]["block_hashes"],
              OrderedJson::array({number}));
  }
  EXPECT_EQ(all.back().number, -1);
  EXPECT_EQ(Replayed(4).size(), 3u);
  EXPECT_EQ(Replayed(6).size(), 1u) << "nothing newer: the end mark alone";
}

TEST_F(KvEventPublisherTest, ReplayKeepsOnlyTheNewestBatches) {
  KvEventPublisherOptions options = MakeOptions();
  options.max_replay_batches = 2;
  Start(options);
  for (uint64_t hash = 1; hash <= 5; ++hash) publisher_->Publish({Stored({hash})});
  WaitUntilPublished(6);
  const std::vector<ZmqMessage> kept = Replayed(0);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].number, 4);
  EXPECT_EQ(kept[1].number, 5);
}

TEST_F(KvEventPublisherTest, BadReplayRequestsAreNotAnsweredAndDoNoHarm) {
  Start(MakeOptions());
  zmq::socket_t client = Connected(zmq::socket_type::dealer, publisher_->replay_endpoint());
  client.send(zmq::str_buffer("no delimiter"), zmq::send_flags::none);
  client.send(zmq::message_t(), zmq::send_flags::sndmore);
  client.send(zmq::str_buffer("short"), zmq::send_flags::none);
  for (int i = 0; i < 20; ++i)
    client.send(zmq::message_t(), i < 19 ? zmq::send_flags::sndmore : zmq::send_flags::none);
  const std::vector<ZmqMessage> all = Replayed(0);
  EXPECT_EQ(all.size(), 2u);
  client.set(zmq::sockopt::rcvtimeo, 0);
  EXPECT_TRUE(Frames(client).empty());
}

TEST_F(KvEventPublisherTest, FullQueueDropsAndCountsAndLeavesAGap) {
  KvEventPublisherOptions options = MakeOptions();
  options.max_queued_batches = 0;  // always full
  Start(options);
  publisher_->Publish({Stored({1}), Removed({1})});
  publisher_->Publish({Stored({2})});
  EXPECT_EQ(publisher_->counts().dropped, 3u);
  WaitUntilPublished(1);
  EXPECT_EQ(Replayed(0).size(), 2u) << "the first batch and the end mark";
}

TEST_F(KvEventPublisherTest, ManyEventsAreSplitIntoAcceptedPayloads) {
  Start(MakeOptions());
  std::vector<KvEvent> events;
  for (uint64_t hash = 1; hash <= kMaxKvEventsInPayload + 1; ++hash)
    events.push_back(Stored({hash}));
  publisher_->Publish(std::move(events));
  WaitUntilPublished(kMaxKvEventsInPayload + 2);
  const std::vector<ZmqMessage> all = Replayed(1);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].batch[1].size(), kMaxKvEventsInPayload);
  EXPECT_EQ(all[1].batch[1].size(), 1u);
}

TEST_F(KvEventPublisherTest, EndpointWithoutAStarIsConnectedTo) {
  zmq::socket_t subscriber(context_, zmq::socket_type::sub);
  subscriber.set(zmq::sockopt::subscribe, "");
  subscriber.set(zmq::sockopt::rcvtimeo, 20);
  subscriber.bind("tcp://127.0.0.1:*");
  KvEventPublisherOptions options = MakeOptions();
  options.endpoint = subscriber.get(zmq::sockopt::last_endpoint);
  options.replay_endpoint.clear();
  Start(options);
  EXPECT_EQ(publisher_->endpoint(), options.endpoint);
  ZmqMessage message;
  while (message.number < 1) {
    publisher_->Publish({Stored({1})});
    message = MessageOf(Frames(subscriber), 0);
  }
  EXPECT_EQ(message.batch[1][0]["block_hashes"], OrderedJson::array({1}));
}

TEST_F(KvEventPublisherTest, InvalidOrUsedEndpointErrorNamesTheFlag) {
  const auto error = [](std::string endpoint, std::string replay) {
    KvEventPublisherOptions options = MakeOptions();
    options.endpoint = std::move(endpoint);
    options.replay_endpoint = std::move(replay);
    return KvEventPublisher::Start(std::move(options)).status();
  };
  EXPECT_EQ(error("nonsense", "").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error("nonsense", "").param(), "--kv-events-endpoint");
  EXPECT_EQ(error("tcp://127.0.0.1:*", "udp://*:1").param(), "--kv-events-replay-endpoint");
  Start(MakeOptions());
  const Status taken = error("tcp://127.0.0.1:*", publisher_->replay_endpoint());
  EXPECT_EQ(taken.code(), StatusCode::kUnavailable);
  EXPECT_NE(taken.message().find(publisher_->replay_endpoint() + ": Address already in use"),
            std::string::npos)
      << taken.message();
}

}  // namespace
}  // namespace diffserve
