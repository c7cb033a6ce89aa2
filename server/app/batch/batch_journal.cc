// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/batch_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "kernels/process/log.h"
#include "server/app/batch/batch_lines.h"
#include "server/app/batch/line_reader.h"

namespace diffserve {

Result<std::unique_ptr<BatchJournal>> BatchJournal::Open(const std::string& path) {
  // Non-blocking, so that opening a pipe returns.
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0)
    return InvalidArgument(path + ": cannot be opened for writing: " + std::strerror(errno));
  std::unique_ptr<BatchJournal> journal(new BatchJournal(path, descriptor));
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode))
    return InvalidArgument(path + ": is no regular file, which the answers need");
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return journal->Failure("locked");
    return InvalidArgument(path + ": another run writes it; wait for its end or name another file");
  }
  DS_RETURN_IF_ERROR(journal->Read());
  return journal;
}

BatchJournal::~BatchJournal() { close(descriptor_); }

Status BatchJournal::Failure(const char* what) const {
  return Status(StatusCode::kUnavailable,
                path_ + ": cannot be " + what + ": " + std::strerror(errno));
}

Status BatchJournal::Read() {
  LineReader reader(path_, descriptor_, kAnswerHeadBytes);
  for (;;) {
    Result<std::optional<TextLine>> next = reader.Next();
    if (!next.ok()) return next.status();
    if (!*next) return {};
    const TextLine& line = **next;
    if (!line.is_ended && BeginsAnswerLine(line.text)) {
      Log(LogLevel::kWarning, "unfinished_answer_removed",
          {{"file", path_}, {"bytes", std::to_string(line.bytes)}});
      return CutTo(bytes_);
    }
    Result<AnsweredLine> answered = line.is_ended ? ReadAnswerLine(line.text)
                                                  : InvalidArgument("has no end");
    if (!answered.ok()) {
      return InvalidArgument(path_ + ": line " + std::to_string(line.number) +
                             " is no answer of run-batch (" + answered.status().message() +
                             "), so nothing is written; name another file");
    }
    if (auto* custom_id = std::get_if<std::string>(&*answered))
      answered_.custom_ids.insert(std::move(*custom_id));
    else
      answered_.lines.insert(std::get<uint64_t>(*answered));
    bytes_ += line.bytes;
  }
}

Status BatchJournal::CutTo(uint64_t bytes) {
  return ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? Status() : Failure("shortened");
}

Result<bool> BatchJournal::Append(const std::string& line) {
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = pwrite(descriptor_, line.data() + written, line.size() - written,
                                 static_cast<off_t>(bytes_ + written));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const bool is_full = errno == ENOSPC || errno == EDQUOT;
      const Status failure = Failure("written");
      if (written > 0) DS_RETURN_IF_ERROR(CutTo(bytes_));
      return is_full ? Result<bool>(false) : Result<bool>(failure);
    }
    written += static_cast<size_t>(count);
  }
  bytes_ += written;
  return true;
}

Status BatchJournal::Sync() { return fdatasync(descriptor_) == 0 ? Status() : Failure("synced"); }

}  // namespace diffserve
