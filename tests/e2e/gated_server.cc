// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/gated_server.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "engine/executor.h"
#include "kernels/process/check.h"
#include "server/app/commands/commands.h"

namespace diffserve {
namespace {

// 0: the variable is not set.
uint64_t NumberOf(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// Calls itself without end.
[[gnu::noinline]] uint64_t UseUpStack(uint64_t depth) {
  volatile char used[4096];
  used[depth % sizeof(used)] = 1;
  return depth == UINT64_MAX ? 0 : UseUpStack(depth + 1) + static_cast<uint64_t>(used[0]);
}

class GatedExecutor : public Executor {
 public:
  GatedExecutor(std::unique_ptr<Executor> inner, std::string gate)
      : inner_(std::move(inner)), gate_(std::move(gate)) {}

  int depth() const override { return inner_->depth(); }
  void Launch(const StepPlan& plan) override {
    if (plan.step == crash_step_) std::raise(SIGSEGV);
    if (plan.step == failed_check_step_) DS_CHECK(plan.sequences.empty(), "a step that is to fail");
    if (plan.step == overflow_step_) UseUpStack(0);
    while (!MayLaunch()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    inner_->Launch(plan);
  }
  StepResult Collect() override { return inner_->Collect(); }
  double draft_seconds() const override { return inner_->draft_seconds(); }

 private:
  bool MayLaunch() {
    int64_t round = 0, steps = 0;
    std::ifstream file(gate_);
    if (file >> round >> steps && round > round_) {
      round_ = round;
      left_ = steps;
    }
    if (left_ < 0) return true;
    return left_ > 0 && left_-- > 0;
  }

  const std::unique_ptr<Executor> inner_;
  const std::string gate_;
  const uint64_t crash_step_ = NumberOf("DIFFSERVE_CRASH_STEP");
  const uint64_t failed_check_step_ = NumberOf("DIFFSERVE_FAILED_CHECK_STEP");
  const uint64_t overflow_step_ = NumberOf("DIFFSERVE_OVERFLOW_STEP");
  int64_t round_ = 0;
  int64_t left_ = 0;  // steps; -1: no limit
};

bool IsTensorData(int descriptor, off_t offset) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path) - 1);
  constexpr off_t kLengthField = 8;
  return length > 0 && offset > kLengthField && std::string(path).ends_with(".safetensors");
}

}  // namespace
}  // namespace diffserve

// Replaces the C library's function.
extern "C" ssize_t pread(int descriptor, void* out, size_t count, off_t offset) {
  const char* const held = std::getenv("DIFFSERVE_HELD_READ");
  if (held != nullptr && diffserve::IsTensorData(descriptor, offset)) {
    close(open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (;;) pause();
  }
  return syscall(SYS_pread64, descriptor, out, count, offset);
}

namespace diffserve {

int RunGatedProgram(int argc, char** argv) {
  const char* const gate = std::getenv("DIFFSERVE_GATE");
  if (gate == nullptr) return RunProgram(argc, argv);
  return RunProgram(argc, argv, [gate](std::unique_ptr<Executor> inner) {
    return std::make_unique<GatedExecutor>(std::move(inner), gate);
  });
}

}  // namespace diffserve
