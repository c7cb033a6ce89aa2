// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/batch_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "server/app/batch/batch_lines.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

HttpReply EmptyReply() {
  HttpReply reply;
  reply.body = "{}";
  return reply;
}

class BatchJournalTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.path() / "out.jsonl"; }
  void Write(const std::string& text) const { directory_.Write("out.jsonl", text); }
  std::string Content() const { return FileBytes(path()); }
  // The journal of the file as it is; nullptr if it is refused.
  std::unique_ptr<BatchJournal> Open() const {
    Result<std::unique_ptr<BatchJournal>> journal = BatchJournal::Open(path());
    EXPECT_TRUE(journal.ok()) << journal.status().message();
    return journal.ok() ? std::move(journal).value() : nullptr;
  }
  std::string Refusal() const { return BatchJournal::Open(path()).status().message(); }

  const TemporaryDirectory directory_;
  const std::string a_ = AnswerLine("a", EmptyReply()), b_ = AnswerLine("b", EmptyReply());
  const std::string line_3_ = ErrorLine({"", 3, "code", "message", ""});
};

TEST_F(BatchJournalTest, LinesAreFoundByTheNextRun) {
  {
    const auto journal = Open();
    EXPECT_TRUE(journal->answered().custom_ids.empty());
    for (const std::string& line : {a_, line_3_, b_}) EXPECT_TRUE(*journal->Append(line));
    EXPECT_TRUE(journal->Sync().ok());
  }
  EXPECT_EQ(Content(), a_ + line_3_ + b_);
  const auto journal = Open();
  EXPECT_THAT(journal->answered().custom_ids, UnorderedElementsAre("a", "b"));
  EXPECT_THAT(journal->answered().lines, UnorderedElementsAre(3));
}

TEST_F(BatchJournalTest, UnfinishedLineIsCutOffAndTheNextFollowsTheWholeOnes) {
  for (size_t length = 1; length < b_.size(); ++length) {
    Write(a_ + b_.substr(0, length));
    const auto journal = Open();
    EXPECT_EQ(Content(), a_);
    EXPECT_THAT(journal->answered().custom_ids, UnorderedElementsAre("a"));
    EXPECT_TRUE(*journal->Append(line_3_));
    EXPECT_EQ(Content(), a_ + line_3_);
  }
}

TEST_F(BatchJournalTest, ForeignFileIsLeftAsItIs) {
  for (const std::string& text :
       {std::string("{\"name\": 1}"), a_ + "text\n", a_ + "text", std::string("\n")}) {
    Write(text);
    EXPECT_THAT(Refusal(), HasSubstr("is no answer of run-batch")) << text;
    EXPECT_EQ(Content(), text);
  }
}

TEST_F(BatchJournalTest, SecondRunOnTheSameFileIsRefused) {
  auto journal = Open();
  EXPECT_THAT(Refusal(), HasSubstr("another run writes it"));
  journal.reset();
  EXPECT_EQ(Refusal(), "");
}

TEST_F(BatchJournalTest, DirectoryAndPipeAreRefused) {
  EXPECT_THAT(BatchJournal::Open(directory_.path()).status().message(),
              HasSubstr("cannot be opened for writing"));
  const std::string pipe = directory_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(BatchJournal::Open(pipe).status().message(), HasSubstr("is no regular file"));
}

// The limit stands for a write that fails in the middle of a line.
TEST_F(BatchJournalTest, FailedWriteLeavesTheWholeLines) {
  const auto journal = Open();
  EXPECT_TRUE(*journal->Append(a_));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = a_.size() + 5;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Result<bool> written = journal->Append(b_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(written.ok());
  EXPECT_THAT(written.status().message(), HasSubstr("cannot be written: File too large"));
  EXPECT_EQ(Content(), a_);
  EXPECT_TRUE(*journal->Append(b_));
  EXPECT_EQ(Content(), a_ + b_);
}

}  // namespace
}  // namespace diffserve
