// SPDX-License-Identifier: Apache-2.0
#include "server/api/stream_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/eventually.h"

namespace diffserve {
namespace {

using std::chrono::seconds;
using Missing = StreamStore::Missing;
using Reading = StreamStore::Reading;

const StreamOwner kOwner = {"key:0", "/v1/completions"};

// The answer, as the test sets it.
struct Script {
  bool begun = true;    // there is a reply
  bool streams = true;  // the reply is a stream
  std::string next;     // its next frames
  bool ends = false;    // the answer ends after them
  bool with_error = false;
  bool destroyed = false;
};

class ScriptedAnswer : public HttpExchange {
 public:
  explicit ScriptedAnswer(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  ~ScriptedAnswer() override { script_->destroyed = true; }
  std::optional<HttpReply> Reply() override {
    if (!script_->begun) return std::nullopt;
    HttpReply reply;
    reply.streams = script_->streams;
    reply.content_type = "text/event-stream";
    if (!script_->streams) reply.status = 400;
    return reply;
  }
  bool Frames(std::string* bytes) override {
    *bytes += std::exchange(script_->next, {});
    return script_->ends;
  }
  bool EndWithError() override { return script_->ends = script_->with_error = true; }
  bool EndedWithError() const override { return script_->with_error; }

 private:
  const std::shared_ptr<Script> script_;
};

class StreamStoreTest : public ::testing::Test {
 protected:
  static constexpr size_t kStreamBytes = 100;

  StreamStoreTest() { Limit(4); }
  void Limit(size_t streams) {
    store_.emplace(
        StreamStoreLimits{.max_bytes = streams * kStreamBytes,
                          .max_stream_bytes = kStreamBytes,
                          .linger = seconds(60)},
        [this] { return now_; }, [this](StreamFate fate) { ++fates_[static_cast<size_t>(fate)]; });
  }

  struct Opened {
    std::shared_ptr<Script> script = std::make_shared<Script>();
    std::optional<Reading> reading;
    std::shared_ptr<int> woken = std::make_shared<int>(0);
  };
  Opened Open() {
    Opened opened;
    Result<Reading> reading = store_->Open(kOwner, [woken = opened.woken] { ++*woken; });
    if (!reading.ok()) return opened;
    opened.reading = std::move(reading).value();
    opened.reading->stream->Begin(std::make_unique<ScriptedAnswer>(opened.script));
    return opened;
  }
  static std::string Read(const Reading& reading, bool* last = nullptr) {
    EXPECT_TRUE(reading.stream->Reply(reading.reader).has_value());
    std::string bytes;
    const bool ended = reading.stream->Frames(reading.reader, &bytes);
    if (last != nullptr) *last = ended;
    return bytes;
  }
  // Sends an event; returns what the reader gets of it.
  static std::string Tell(const Opened& opened, const std::string& data) {
    opened.script->next = "data: " + data + "\n\n";
    return Read(*opened.reading);
  }
  static std::string IdOf(const std::string& event) {
    EXPECT_TRUE(event.starts_with("id: ")) << event;
    return event.substr(4, event.find('\n') - 4);
  }
  std::optional<Reading> Resume(const std::string& id, const StreamOwner& owner = kOwner) {
    return store_->Resume(owner, id, [] {}, &missing_);
  }
  int Fates(StreamFate fate) const { return fates_[static_cast<size_t>(fate)]; }

  StreamStore::TimePoint now_;
  int fates_[2] = {};
  Missing missing_ = Missing::kNone;
  std::optional<StreamStore> store_;
};

TEST_F(StreamStoreTest, ReturningReaderGetsMissedEventsAndThenTheRest) {
  const Opened opened = Open();
  const std::string first = IdOf(Tell(opened, "a"));
  Tell(opened, "b");
  store_->Leave(*opened.reading);
  const std::optional<Reading> again = Resume(first);
  ASSERT_TRUE(again);
  opened.script->next = "data: c\n\n";
  opened.script->ends = true;
  bool last = false;
  const std::string bytes = Read(*again, &last);
  EXPECT_NE(bytes.find(":2\ndata: b\n\nid: "), std::string::npos) << bytes;
  EXPECT_NE(bytes.find(":3\ndata: c\n\n"), std::string::npos) << bytes;
  EXPECT_EQ(bytes.find("data: a"), std::string::npos) << bytes;
  EXPECT_TRUE(last);
  EXPECT_TRUE(opened.script->destroyed) << "what is whole needs no answer any more";
  EXPECT_EQ(Fates(StreamFate::kResumed), 1);
}

TEST_F(StreamStoreTest, UnreadStreamIsCancelledAfterTheLingerTime) {
  const Opened opened = Open();
  const std::string id = IdOf(Tell(opened, "a"));
  EXPECT_EQ(store_->Expire(), std::nullopt) << "it is read";
  now_ += seconds(1000);
  store_->Leave(*opened.reading);
  EXPECT_EQ(store_->Expire(), now_ + seconds(60));
  now_ += seconds(59);
  store_->Expire();
  EXPECT_FALSE(opened.script->destroyed);
  EXPECT_EQ(store_->size(), 1u);
  now_ += seconds(1);
  EXPECT_EQ(store_->Expire(), std::nullopt);
  EXPECT_TRUE(opened.script->destroyed);
  EXPECT_EQ(store_->size(), 0u);
  EXPECT_EQ(Fates(StreamFate::kExpired), 1);
  EXPECT_FALSE(Resume(id));
  EXPECT_EQ(missing_, Missing::kUnknown);
}

TEST_F(StreamStoreTest, ResumingStopsTheLingerTimer) {
  const Opened opened = Open();
  const std::string id = IdOf(Tell(opened, "a"));
  store_->Leave(*opened.reading);
  now_ += seconds(59);
  const std::optional<Reading> again = Resume(id);
  ASSERT_TRUE(again);
  now_ += seconds(1000);
  store_->Expire();
  EXPECT_FALSE(opened.script->destroyed);
  store_->Leave(*again);
  now_ += seconds(59);
  store_->Expire();
  EXPECT_FALSE(opened.script->destroyed);
}

TEST_F(StreamStoreTest, OnlyTheOwnerFindsAStreamByItsPath) {
  const Opened opened = Open();
  const std::string id = IdOf(Tell(opened, "a"));
  for (const StreamOwner& other :
       {StreamOwner{"key:1", kOwner.route}, StreamOwner{"", kOwner.route},
        StreamOwner{kOwner.client, "/v1/messages"}}) {
    EXPECT_FALSE(Resume(id, other));
    EXPECT_EQ(missing_, Missing::kUnknown);
  }
  EXPECT_TRUE(Resume(id));
}

TEST_F(StreamStoreTest, UnknownAndDroppedIdsAreDistinguished) {
  const Opened opened = Open();
  const std::string first = IdOf(Tell(opened, "a"));
  const std::string stream = first.substr(0, first.find(':'));
  for (const std::string& id : {stream + ":2", stream + ":x", std::string("none:1"), stream}) {
    EXPECT_FALSE(Resume(id)) << id;
    EXPECT_EQ(missing_, Missing::kUnknown) << id;
  }
  Tell(opened, std::string(30, 'b'));
  Tell(opened, std::string(30, 'c'));
  EXPECT_FALSE(Resume(first));
  EXPECT_EQ(missing_, Missing::kOutgrown);
  EXPECT_EQ(Fates(StreamFate::kResumed), 0);
}

TEST_F(StreamStoreTest, NewConnectionTakesOverFromOneThatSeemsAlive) {
  const Opened opened = Open();
  const std::string id = IdOf(Tell(opened, "a"));
  const std::optional<Reading> second = Resume(id);
  ASSERT_TRUE(second);
  EXPECT_EQ(*opened.woken, 1) << "the first one is to see that it is over";
  opened.script->next = "data: b\n\n";
  bool last = false;
  EXPECT_EQ(Read(*opened.reading, &last), "");
  EXPECT_TRUE(last);
  EXPECT_NE(Read(*second, &last).find("data: b"), std::string::npos);
  EXPECT_FALSE(last);
  store_->Leave(*opened.reading);
  EXPECT_EQ(store_->Expire(), std::nullopt) << "the second one reads it";
  EXPECT_FALSE(opened.reading->stream->EndWithError(opened.reading->reader));
  EXPECT_TRUE(second->stream->EndWithError(second->reader));
}

TEST_F(StreamStoreTest, CurrentReaderIsWoken) {
  const Opened opened = Open();
  opened.reading->stream->Wake();
  EXPECT_EQ(*opened.woken, 1);
  const std::string id = IdOf(Tell(opened, "a"));
  store_->Leave(*opened.reading);
  opened.reading->stream->Wake();
  EXPECT_EQ(*opened.woken, 1);
  int second = 0;
  ASSERT_TRUE(store_->Resume(kOwner, id, [&second] { ++second; }, &missing_));
  opened.reading->stream->Wake();
  EXPECT_EQ(second, 1);
}

TEST_F(StreamStoreTest, MissedEndIsKeptAndReadEndRemovesTheStream) {
  const Opened opened = Open();
  const std::string first = IdOf(Tell(opened, "a"));
  opened.script->ends = true;
  const std::string last = IdOf(Tell(opened, "b"));
  store_->Leave(*opened.reading);
  EXPECT_FALSE(Resume(last));
  EXPECT_EQ(missing_, Missing::kNone);
  const std::optional<Reading> again = Resume(first);
  ASSERT_TRUE(again);
  bool ended = false;
  EXPECT_NE(Read(*again, &ended).find("data: b"), std::string::npos);
  EXPECT_TRUE(ended);
  store_->Leave(*again);
  now_ += seconds(60);
  store_->Expire();
  EXPECT_EQ(store_->size(), 0u);
  EXPECT_EQ(Fates(StreamFate::kExpired), 0) << "nothing was cancelled";
}

TEST_F(StreamStoreTest, StreamThatHasNotBegunEndsWithItsConnection) {
  const Opened waiting = Open();
  waiting.script->begun = false;
  EXPECT_FALSE(waiting.reading->stream->Reply(waiting.reading->reader).has_value());
  store_->Leave(*waiting.reading);
  EXPECT_EQ(store_->size(), 0u);
  const Opened refused = Open();
  refused.script->streams = false;
  EXPECT_EQ(refused.reading->stream->Reply(refused.reading->reader)->status, 400);
  store_->Leave(*refused.reading);
  EXPECT_EQ(store_->size(), 0u);
}

TEST_F(StreamStoreTest, EndedStreamsMakeRoomAtTheLimit) {
  Limit(2);
  const Opened first = Open(), second = Open();
  Tell(first, "a");
  const std::string id = IdOf(Tell(second, "a"));
  EXPECT_FALSE(Open().reading) << "both are read";
  store_->Leave(*first.reading);
  EXPECT_FALSE(Open().reading) << "it may still be asked for";
  second.script->ends = true;
  Tell(second, "b");
  store_->Leave(*second.reading);
  EXPECT_TRUE(Open().reading);
  EXPECT_FALSE(Resume(id));
  EXPECT_FALSE(first.script->destroyed);
}

TEST_F(StreamStoreTest, ClosingEndsAllOfThem) {
  Opened opened = Open();
  Tell(opened, "a");
  store_->Leave(*opened.reading);
  opened.reading.reset();
  store_->Close();
  EXPECT_TRUE(opened.script->destroyed);
  EXPECT_FALSE(Open().reading);
}

TEST_F(StreamStoreTest, ExpiredStreamsAreEndedByTheThread) {
  StreamStore store(
      {.max_bytes = kStreamBytes, .max_stream_bytes = kStreamBytes, .linger = seconds(0)},
      std::chrono::steady_clock::now, [](StreamFate) {});
  store.Start();
  const auto script = std::make_shared<Script>();
  Result<Reading> reading = store.Open(kOwner, [] {});
  ASSERT_TRUE(reading.ok());
  reading->stream->Begin(std::make_unique<ScriptedAnswer>(script));
  Read(*reading);
  EXPECT_EQ(store.size(), 1u);
  store.Leave(*reading);
  EXPECT_TRUE(testing::Eventually([&] { return store.size() == 0; }));
}

TEST_F(StreamStoreTest, WithoutBytesNothingIsKept) {
  Limit(0);
  EXPECT_FALSE(store_->keeps());
}

TEST_F(StreamStoreTest, SmallBudgetKeepsOneStream) {
  const StreamStoreLimits few = {.max_bytes = 10}, many = {.max_bytes = (5 << 20) + 1};
  EXPECT_EQ(few.max_streams(), 1u);
  EXPECT_EQ(few.stream_bytes(), 10u);
  EXPECT_EQ(many.max_streams(), 5u);
  EXPECT_EQ(many.stream_bytes(), size_t{1} << 20);
}

}  // namespace
}  // namespace diffserve
