// SPDX-License-Identifier: Apache-2.0
// Every damage to a checkpoint of every family, in processes with limits of memory and time: all
// cuts, flipped bits over each whole file, headers, indexes and JSON that lie, and the text files
// of the bundled model. Prints what went wrong, case by case, and a line of figures for each
// checkpoint; exit code 1 if anything did.
//   loader_robustness [--flips N] [--family NAME] [--binary PATH] [--sample N]
// --flips: bits a file (10000). --family: only this one. --binary: diffserve; every N-th case
// (--sample, 50) is also given to its `inspect`. Takes minutes; TMPDIR=/dev/shm spares the disk.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "tests/robustness/limited_process.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/models/damaged_json.h"
#include "tests/testing/models/load_outcome.h"

namespace diffserve {
namespace {

struct Arguments {
  size_t flips = 10'000;
  std::string family;
  std::string binary;
  size_t sample = 50;
};

struct Tally {
  size_t cases = 0, refused = 0, loaded = 0, signals = 0, wrong = 0, inspected = 0;
  double slowest_ms = 0, most_mib = 0;
  std::string slowest, largest;

  void Add(const ProcessOutcome& outcome, bool loaded_now, const std::string& name) {
    ++cases;
    outcome.signal != 0 ? ++signals : loaded_now ? ++loaded : ++refused;
    if (outcome.ms > slowest_ms) slowest_ms = outcome.ms, slowest = name;
    if (outcome.mib > most_mib) most_mib = outcome.mib, largest = name;
  }
};

constexpr size_t kBatch = 32;  // cases a process; the one that a process dies of is known by its
                               // number

// Runs the damages of one directory and counts what came of them.
class Runner {
 public:
  using Load = std::function<LoadOutcome(const std::string& dir)>;
  Runner(DamagedCopy& copy, std::string name, const Arguments& arguments, Load load)
      : copy_(copy), name_(std::move(name)), arguments_(arguments), load_(std::move(load)) {}

  // Small damages that are many: a process makes and tries kBatch of them.
  void TryMany(const std::vector<Damage>& damages) {
    for (size_t next = 0; next < damages.size();) {
      const size_t end = std::min(next + kBatch, damages.size());
      const ProcessOutcome batch = RunLimited(
          limits_, [&](int out) { return TryInChild(damages, next, end, out); });
      size_t position = 0;
      for (Record record; next < end && TakeRecord(batch.output, position, record); ++next) {
        const std::string line = batch.output.substr(position - record.line_bytes,
                                                     record.line_bytes);
        Finish(damages[next], {.exit_code = record.loaded ? 0 : 1,
                               .ms = record.ms,
                               .mib = record.mib,
                               .output = line});
      }
      if (next == end) continue;
      // The process died of this one, and left the directory as it was then.
      damages[next].apply(copy_);
      copy_.Restore();
      Finish(damages[next++], {.exit_code = batch.exit_code,
                               .signal = batch.signal,
                               .ms = batch.ms,
                               .mib = batch.mib,
                               .output = ""});
    }
  }

  // A process each, which does not make the damage itself: what that takes is not the loader's.
  void TryEach(const std::vector<Damage>& damages) {
    for (const Damage& damage : damages) {
      damage.apply(copy_);
      const ProcessOutcome ended = RunLimited(limits_, [&](int out) {
        if (damage.as_unprivileged_user && geteuid() == 0 && seteuid(65534) != 0) return 9;
        const LoadOutcome outcome = load_(copy_.dir());
        const std::string line = outcome.line.substr(0, 1500);
        return write(out, line.data(), line.size()) < 0 ? 9 : outcome.loaded ? 0 : 1;
      });
      copy_.Restore();
      Finish(damage, ended);
    }
  }

  // The line of figures. False if anything was wrong.
  bool Report() const {
    std::printf(
        "%-18s %6zu cases, %6zu refused, %6zu loaded, %zu signals, %zu wrong, %zu inspected, "
        "slowest %.0f ms (%s), "
        "most %.1f MiB (%s)\n",
        name_.c_str(), tally_.cases, tally_.refused, tally_.loaded, tally_.signals, tally_.wrong,
        tally_.inspected, tally_.slowest_ms, tally_.slowest.c_str(), tally_.most_mib,
        tally_.largest.c_str());
    std::fflush(stdout);
    return tally_.wrong == 0 && tally_.signals == 0;
  }

 private:
  // What a child tells of a case, followed by the refusal's line.
  struct Record {
    bool loaded;
    double ms, mib;
    size_t line_bytes;
  };

  int TryInChild(const std::vector<Damage>& damages, size_t begin, size_t end, int out) {
    const double resident_mib = static_cast<double>(StatmBytes(1)) / (1 << 20);
    for (size_t i = begin; i < end; ++i) {
      damages[i].apply(copy_);
      const double mib_before = PeakResidentMib(), ms_before = CpuMs();
      const LoadOutcome outcome = load_(copy_.dir());
      const std::string line = outcome.line.substr(0, 1500);
      const double mib = PeakResidentMib();
      // A later case of the batch that needs less than an earlier one shows nothing.
      const Record record{outcome.loaded, CpuMs() - ms_before,
                          mib > mib_before ? mib - resident_mib : 0, line.size()};
      copy_.Restore();
      const std::string bytes =
          std::string(reinterpret_cast<const char*>(&record), sizeof(record)) + line;
      if (write(out, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return 9;
    }
    return 0;
  }
  static bool TakeRecord(const std::string& output, size_t& position, Record& record) {
    if (output.size() < position + sizeof(record)) return false;
    std::memcpy(&record, output.data() + position, sizeof(record));
    position += sizeof(record) + record.line_bytes;
    return position <= output.size();
  }

  void Finish(const Damage& damage, const ProcessOutcome& ended) {
    Judge(ended, damage, "");
    tally_.Add(ended, ended.exit_code == 0, damage.name);
    if (arguments_.binary.empty() || damage.as_unprivileged_user ||
        tally_.cases % arguments_.sample != 0)
      return;
    damage.apply(copy_);
    Inspect(damage);
    copy_.Restore();
  }

  void Judge(const ProcessOutcome& ended, const Damage& damage, const char* by) {
    std::string problem;
    if (ended.signal != 0) {
      problem = std::string("signal ") + strsignal(ended.signal);
    } else if (ended.exit_code != 0 && ended.exit_code != 1) {
      problem = "exit code " + std::to_string(ended.exit_code);
    } else {
      problem = ProblemOf({ended.exit_code == 0, ended.exit_code == 0 ? "" : ended.output}, damage,
                          copy_.dir());
      const bool slow = ended.exit_code == 1 && ended.ms > 1000;
      if (problem.empty() && slow)
        problem = "refused only after " + std::to_string(ended.ms) + " ms";
    }
    if (problem.empty()) return;
    ++tally_.wrong;
    std::printf("WRONG %s%s, %s: %s\n", name_.c_str(), by, damage.name.c_str(), problem.c_str());
    std::fflush(stdout);
  }

  void Inspect(const Damage& damage) {
    const ProcessOutcome ended = RunLimited(limits_, [&](int out) {
      const int none = open("/dev/null", O_RDWR);
      dup2(none, 0), dup2(none, 1), dup2(out, 2);
      // The limit was for this program's own space.
      const rlimit space{size_t{2} << 30, size_t{2} << 30};
      setrlimit(RLIMIT_AS, &space);
      execl(arguments_.binary.c_str(), "diffserve", "inspect", copy_.dir().c_str(),
            "--max-model-len", "32", "--kv-cache-memory", "16MiB", "--threads", "1",
            static_cast<char*>(nullptr));
      return 9;
    });
    ProcessOutcome line = ended;
    if (line.output.ends_with('\n')) line.output.pop_back();
    Judge(line, damage, " (inspect)");
    ++tally_.inspected;
  }

  DamagedCopy& copy_;
  const std::string name_;
  const Arguments& arguments_;
  const Load load_;
  const Limits limits_;
  Tally tally_;
};

LoadOutcome LoadWeightsAndAnswer(const std::string& dir) {
  ThreadPool pool({.num_threads = 1, .pin = false, .spin_us = 0});
  return LoadAndAnswer(dir, pool);
}

// The text files as `serve` reads them, and a prompt through them.
LoadOutcome LoadTextAndUse(const std::string& dir) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) return {false, tokenizer.status().message()};
  const Result<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Load(dir);
  if (!chat.ok()) return {false, chat.status().message()};
  const Result<std::vector<int32_t>> ids =
      (*tokenizer)->Encode("Once upon a time, 12 \xc3\xa9 <|user|>", true);
  if (ids.ok()) static_cast<void>((*tokenizer)->Decode(*ids, false).ok());
  if (*chat != nullptr)
    static_cast<void>(
        (*chat)->Render({"[{\"role\":\"user\",\"content\":\"hi\"}]", "{}", true}, nullptr).ok());
  return {true, ""};
}

bool TryFamily(const CheckpointToDamage& checkpoint, const Arguments& arguments) {
  DamagedCopy copy(checkpoint.dir, checkpoint.two_shards);
  if (!arguments.binary.empty()) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy(SourceDirectory() + "/models/demo/diff/" + name, copy.Path(name));
    }
  }
  const std::string name = checkpoint.family + (checkpoint.two_shards ? " shards" : "");
  Runner runner(copy, name, arguments, &LoadWeightsAndAnswer);
  uint64_t seed = 18;
  for (const auto& [file, bytes] : copy.good()) {
    runner.TryMany(Cuts(copy, file));
    runner.TryMany(Flips(copy, file, arguments.flips, ++seed));
    std::vector<Damage> no_files = NoFiles(file);
    for (Damage& damage : no_files) {
      if (file == "generation_config.json")
        damage.expected = Expected::kEither;  // it may be missing
    }
    runner.TryEach(no_files);
    if (!file.ends_with(".json")) continue;
    runner.TryEach(BrokenJson(file));
    if (file != kIndexName) runner.TryMany(WrongValues(copy, file));
  }
  runner.TryEach(LyingHeaders(copy, copy.TensorFiles().back()));
  runner.TryEach(BrokenHeaders(copy, copy.TensorFiles().back()));
  if (checkpoint.two_shards) runner.TryEach(LyingIndexes(copy));
  return runner.Report();
}

bool TryTextFiles(const Arguments& arguments) {
  DamagedCopy copy(SourceDirectory() + "/models/demo/diff");
  Runner runner(copy, "text files", arguments, &LoadTextAndUse);
  uint64_t seed = 1800;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::vector<Damage> damages = NoFiles(file);
    for (const Damage& damage : BrokenJson(file)) damages.push_back(damage);
    if (file == std::string("tokenizer_config.json")) {  // it may be missing, and its unknown keys
                                                         // may hold anything
      for (Damage& damage : damages) {
        for (const char* harmless : {"is missing", "link to nothing", "empty objects",
                                     "empty lists", "numbers", "members", "a key twice"}) {
          if (damage.name.ends_with(harmless)) damage.expected = Expected::kEither;
        }
      }
    }
    runner.TryEach(damages);
    runner.TryMany(Cuts(copy, file));
    runner.TryMany(Flips(copy, file, arguments.flips, ++seed));
  }
  return runner.Report();
}

int Run(const Arguments& arguments) {
  bool good = true;
  for (const CheckpointToDamage& checkpoint : CheckpointsToDamage()) {
    if (!arguments.family.empty() && arguments.family != checkpoint.family) continue;
    good = TryFamily(checkpoint, arguments) && good;
  }
  if (arguments.family.empty() || arguments.family == "text")
    good = TryTextFiles(arguments) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace diffserve

int main(int argc, char** argv) {
  diffserve::Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--flips") arguments.flips = std::strtoul(argv[i + 1], nullptr, 10);
    if (flag == "--family") arguments.family = argv[i + 1];
    if (flag == "--binary") arguments.binary = argv[i + 1];
    if (flag == "--sample")
      arguments.sample = std::max<size_t>(1, std::strtoul(argv[i + 1], nullptr, 10));
  }
  return diffserve::Run(arguments);
}
