// SPDX-License-Identifier: Apache-2.0
// The functions of kernels/base/cuda/wgmma.cuh on the CPU, with the layouts of fragments and shared
// memory in the PTX manual. Each warp multiplies its own 16 rows, at some time between the
// instruction and the wait for it. Until the wait the accumulators hold NaNs. A's registers and
// shared memory are read when the multiplication runs, so code that changes or fills them at the
// wrong time gets another result. (The hardware keeps the four warps of a warpgroup closer
// together.)
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "kernels/base/dtype.h"
#include "tests/kernels/shim/fiber_grid.h"
#include "tests/kernels/shim/tensor_core.h"

namespace diffserve::cuda {

namespace on_cpu {

// The true values of accumulators whose registers hold NaNs.
struct WgmmaAccumulators {
  float* lanes[32];
  size_t count;               // per lane
  std::vector<float> values;  // [32][count]
  int num_in_flight = 0;      // multiplications
};
// In flight, by lane 0's address.
inline std::map<float*, std::weak_ptr<WgmmaAccumulators>> wgmma_accumulators;

struct WgmmaArgument {
  float* d;
  size_t count;
  const uint32_t* a;  // [4]
  uint64_t b;
  bool b_is_mn_major;
  bool accumulate;
};

// Calls visit(chunk) for the chunks of 8 elements of B: [N][2], along K, or [16][N / 8], along N.
template <typename Visit>
void VisitWgmmaChunks(uint64_t operand, size_t n, bool is_mn_major, Visit visit) {
  const uint32_t start = static_cast<uint32_t>(operand & 0x3fff) << 4;
  const uint32_t leading = static_cast<uint32_t>(operand >> 16 & 0x3fff) << 4;
  const uint32_t stride = static_cast<uint32_t>(operand >> 32 & 0x3fff) << 4;
  // The row in which the swizzle's pattern begins.
  const uint32_t base_offset = static_cast<uint32_t>(operand >> 49 & 7);
  const auto at = [&](uint32_t offset) {
    const uint32_t linear = start + offset;
    const uint32_t row = (linear >> 7) - base_offset;
    visit(reinterpret_cast<const uint16_t*>(shim::SharedAt(linear ^ (row & 7) << 4, 16, 16)));
  };
  if (is_mn_major) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t i = 0; i < n; i += 8)
        at(i / 64 * leading + i % 64 * 2 + k / 8 * stride + k % 8 * 128);
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) {
      for (uint32_t k = 0; k < 16; k += 8) at(i / 8 * stride + i % 8 * 128 + k * 2);
    }
  }
}

struct WgmmaTask {
  std::shared_ptr<WgmmaAccumulators> d;
  const uint32_t* a[32];
  std::vector<const uint16_t*> b;
  bool b_is_mn_major;
  bool accumulate;

  void Run() const {
    const size_t n = d->count * 2;
    float a_rows[16][16];
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t i = 0; i < 8; ++i) {  // register 2 h + r, half e
        const size_t e = i % 2, r = i / 2 % 2, h = i / 4;
        a_rows[lane / 4 + 8 * r][8 * h + lane % 4 * 2 + e] = BFloat16ToFloat(
            static_cast<uint16_t>(a[lane][2 * h + r] >> (16 * e)));
      }
    }
    std::vector<float> b_rows(16 * n);
    for (size_t i = 0; i < b.size(); ++i) {
      for (size_t j = 0; j < 8; ++j) {
        const size_t k = b_is_mn_major ? i / (n / 8) : i % 2 * 8 + j;
        const size_t column = b_is_mn_major ? i % (n / 8) * 8 + j : i / 2;
        b_rows[k * n + column] = BFloat16ToFloat(b[i][j]);
      }
    }
    for (size_t row = 0; row < 16; ++row) {
      for (size_t first = 0; first < n; first += 4) {
        const auto value_of = [&](size_t i) -> float& {
          const size_t lane = row % 8 * 4 + (first + i) / 2 % 4;
          return d->values[lane * d->count + first / 8 * 4 + row / 8 * 2 + i % 2];
        };
        float sums[4] = {};
        for (size_t i = 0; accumulate && i < 4; ++i) sums[i] = value_of(i);
        shim::AddProducts<shim::kHopperStep>(a_rows[row], b_rows.data() + first, n, sums);
        for (size_t i = 0; i < 4; ++i) value_of(i) = sums[i];
      }
    }
  }

  void Publish() const {
    if (--d->num_in_flight > 0) return;
    wgmma_accumulators.erase(d->lanes[0]);
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t i = 0; i < d->count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, d->lanes[lane] + i, sizeof(bits));
        if (bits != 0xffffffffu) shim::Fail("an accumulator changes while wgmma is in flight");
        d->lanes[lane][i] = d->values[lane * d->count + i];
      }
    }
  }
};

inline std::shared_ptr<WgmmaAccumulators> HoldAccumulators(void* const (&lanes)[32]) {
  const auto& first = *static_cast<const WgmmaArgument*>(lanes[0]);
  std::weak_ptr<WgmmaAccumulators>& held = wgmma_accumulators[first.d];
  std::shared_ptr<WgmmaAccumulators> d = held.lock();
  if (d != nullptr) return d;
  d = std::make_shared<WgmmaAccumulators>();
  d->count = first.count;
  for (size_t lane = 0; lane < 32; ++lane) {
    d->lanes[lane] = static_cast<const WgmmaArgument*>(lanes[lane])->d;
    d->values.insert(d->values.end(), d->lanes[lane], d->lanes[lane] + d->count);
    std::memset(d->lanes[lane], 0xff, d->count * sizeof(float));
  }
  held = d;
  return d;
}

inline void WgmmaApply(void* const (&lanes)[32]) {
  const auto& first = *static_cast<const WgmmaArgument*>(lanes[0]);
  const size_t n = first.count * 2;
  for (void* lane : lanes) {
    const auto& argument = *static_cast<const WgmmaArgument*>(lane);
    if (argument.b != first.b || argument.accumulate != first.accumulate)
      shim::Fail("wgmma: lanes differ in operands");
  }
  if (first.b >> 62 != 1) shim::Fail("wgmma: only the 128-byte swizzle is simulated");
  // Every address is valid.
  VisitWgmmaChunks(first.b, n, first.b_is_mn_major, [](const uint16_t*) {});
  shim::AnnounceTask(first.b * 31 + first.count * 4 + (first.accumulate ? 2 : 0) +
                     (first.b_is_mn_major ? 1 : 0));

  auto task = std::make_shared<WgmmaTask>();
  for (size_t lane = 0; lane < 32; ++lane)
    task->a[lane] = static_cast<const WgmmaArgument*>(lanes[lane])->a;
  VisitWgmmaChunks(first.b, n, first.b_is_mn_major,
                   [&](const uint16_t* chunk) { task->b.push_back(chunk); });
  task->b_is_mn_major = first.b_is_mn_major;
  task->accumulate = first.accumulate;
  task->d = HoldAccumulators(lanes);
  ++task->d->num_in_flight;
  shim::IssueTask({[task] { task->Run(); }, [task] { task->Publish(); }});
}

inline void MeetWgmma(const char* operation, void* argument, shim::WarpOperation apply) {
  shim::MeetWarp(0xffffffffu, operation, argument, apply);
}

}  // namespace on_cpu

inline void WgmmaFence() {
  on_cpu::MeetWgmma("wgmma.fence", nullptr, [](void* const(&)[32]) { shim::FenceTasks(); });
}
inline void WgmmaCommit() {
  on_cpu::MeetWgmma("wgmma.commit_group", nullptr, [](void* const(&)[32]) { shim::CommitTasks(); });
}
template <int kGroupsInFlight>
void WgmmaWait() {
  on_cpu::MeetWgmma("wgmma.wait_group", nullptr,
                    [](void* const(&)[32]) { shim::WaitTasks(kGroupsInFlight); });
}
template <typename T, size_t kCount>
void WgmmaHold(T (&)[kCount]) {}

template <bool kBIsMnMajor, size_t kCount>
void Wgmma(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  on_cpu::WgmmaArgument argument{d, kCount, a, b, kBIsMnMajor, accumulate};
  on_cpu::MeetWgmma("wgmma", &argument, on_cpu::WgmmaApply);
}

template <int kRegisters>
void DecreaseRegisters() {}
template <int kRegisters>
void IncreaseRegisters() {}

}  // namespace diffserve::cuda
