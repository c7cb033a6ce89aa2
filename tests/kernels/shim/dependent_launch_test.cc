// SPDX-License-Identifier: Apache-2.0
// Kernels that start before the one before them ends: what they may do, and that the shim finds
// what they may not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/base/cuda/graph.h"
#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "tests/cuda/device_array.h"
#include "tests/kernels/shim/device_memory.h"

namespace diffserve {
namespace {

using cuda::LaunchDependents;
using cuda::WaitForPrevious;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::IsOk;

constexpr unsigned kBlocks = 3, kThreads = 64;
constexpr size_t kCount = size_t{kBlocks} * kThreads;
constexpr size_t kUnchanged = 4;  // after them, in each array

struct Arrays {
  const float* constant;
  float* first;
  float* second;
  float* third;
};

unsigned Index() { return blockIdx.x * blockDim.x + threadIdx.x; }

void Produce(Arrays a) { a.first[Index()] = a.constant[Index()] + 1; }

void Consume(Arrays a) {
  const float constant = a.constant[Index()];
  WaitForPrevious();
  LaunchDependents();
  a.second[Index()] = constant + a.first[(Index() + 70) % kCount];
}
void ConsumeAgain(Arrays a) {
  WaitForPrevious();
  a.third[Index()] = a.first[Index()] + a.second[(Index() + 70) % kCount];
}

void ReadEarly(Arrays a) {
  const float first = a.first[Index()];
  WaitForPrevious();
  a.second[Index()] = first;
}
void CopyEarly(Arrays a) {
  cuda::CpAsync16(0, a.first);
  cuda::CpAsyncCommit();
  WaitForPrevious();
  cuda::CpAsyncWait<0>();
  a.second[Index()] = cuda::LoadShared(0);
}
void BulkCopyEarly(const float* from) {
  constexpr uint32_t kBarrier = 16;
  if (threadIdx.x == 0) {
    cuda::BarrierInit(kBarrier, 1);
    cuda::BarrierInitFence();
    cuda::BarrierArriveExpect(kBarrier, 16);
    cuda::BulkCopy(0, from, 16, kBarrier);
  }
  WaitForPrevious();
  if (threadIdx.x == 0) cuda::BarrierWait(kBarrier, 0);
}
void BulkCopyOfChangedEarly(Arrays a) { BulkCopyEarly(a.first); }
void BulkCopyOfUnchangedEarly(Arrays a) { BulkCopyEarly(a.first + kCount); }
void ReadOlderEarly(Arrays a) {
  const float first = a.first[Index()];
  WaitForPrevious();
  a.third[Index()] = first;
}
void WriteEarly(Arrays a) {
  a.second[Index()] = 1;
  WaitForPrevious();
}
void NeverWait(Arrays a) { a.second[Index()] = 1; }
void WaitInSomeThreads(Arrays a) {
  if (threadIdx.x < 32) WaitForPrevious();
  a.second[Index()] = 1;
}
void LaunchBeforeWait(Arrays) {
  LaunchDependents();
  WaitForPrevious();
}
void WaitForThreadsThatWait(Arrays) {
  if (threadIdx.x < 32) WaitForPrevious();
  __syncthreads();
  if (threadIdx.x >= 32) WaitForPrevious();
}

class DependentLaunchTest : public testing::OnDeviceTest {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    for (size_t i = 0; i < kCount + kUnchanged; ++i) constant_.push_back(static_cast<float>(i));
    for (auto* array : {&arrays_[0], &arrays_[1], &arrays_[2], &arrays_[3]})
      *array = std::make_unique<DeviceArray<float>>(constant_, *stream_);
    shim::CountEarlyKernels();
  }

  Arrays All() const {
    return {arrays_[0]->data(), arrays_[1]->data(), arrays_[2]->data(), arrays_[3]->data()};
  }
  Status Queue(void (*kernel)(Arrays), bool is_dependent = true) const {
    return cuda::Launch("a test's kernel",
                        {.grid = dim3(kBlocks),
                         .threads = dim3(kThreads),
                         .shared_bytes = 32,
                         .is_dependent = is_dependent},
                        *stream_, kernel, All());
  }
  // What happens after Produce; the fault of the kernels, or "".
  std::string Fault(std::initializer_list<void (*)(Arrays)> kernels) const {
    EXPECT_TRUE(IsOk(Queue(Produce, /*is_dependent=*/false)));
    for (void (*kernel)(Arrays) : kernels) EXPECT_TRUE(IsOk(Queue(kernel)));
    static_cast<void>(stream_->Synchronize());
    return shim::last_failure;
  }
  void ExpectConsumed() const {
    const std::vector<float> second = arrays_[2]->Read(*stream_),
                             third = arrays_[3]->Read(*stream_);
    for (size_t i = 0; i < kCount; ++i) {
      const auto of = [](size_t at) {
        return static_cast<float>(at) + static_cast<float>((at + 70) % kCount) + 1;
      };
      ASSERT_EQ(second[i], of(i));
      ASSERT_EQ(third[i], static_cast<float>(i) + 1 + of((i + 70) % kCount));
    }
  }

  std::vector<float> constant_;
  std::unique_ptr<DeviceArray<float>> arrays_[4];
};

TEST_F(DependentLaunchTest, StartsEarlyOrLateAndReadsWhatIsWritten) {
  for (uint32_t seed = 1; seed < 8; ++seed) {
    shim::SetGridOptions({.seed = seed});
    shim::CountEarlyKernels();
    EXPECT_EQ(Fault({Consume, ConsumeAgain}), "");
    EXPECT_EQ(shim::early_kernels, seed % 3 == 0 ? 0 : 2);
    ExpectConsumed();
  }
}

TEST_F(DependentLaunchTest, StartsEarlyInGraphs) {
  const cuda::Graph graph = cuda::Graph::Capture(*stream_, [&] {
                              DS_RETURN_IF_ERROR(Queue(Produce, /*is_dependent=*/false));
                              DS_RETURN_IF_ERROR(Queue(Consume));
                              return Queue(ConsumeAgain);
                            }).value();
  shim::CountEarlyKernels();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(IsOk(graph.Launch(*stream_)));
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
  EXPECT_EQ(shim::early_kernels, 4);
  ExpectConsumed();
}

TEST_F(DependentLaunchTest, EarlyAccessesAreFaults) {
  struct Case {
    void (*kernel)(Arrays);
    const char* fault;
  };
  for (const auto& [kernel, fault] : {Case{ReadEarly, "a read before the wait"},
                                      {CopyEarly, "a read before the wait"},
                                      {BulkCopyOfChangedEarly, "a bulk copy before the wait"},
                                      {WriteEarly, "a write before the wait"},
                                      {NeverWait, "a thread ends without a wait"},
                                      {WaitInSomeThreads, "a thread ends without a wait"},
                                      {LaunchBeforeWait, "dependents are launched before"},
                                      {WaitForThreadsThatWait, "threads wait for each other"}}) {
    arrays_[1]->Write(constant_, *stream_);
    EXPECT_THAT(Fault({kernel}), HasSubstr(fault));
    shim::ResetContext();
    EXPECT_EQ(Fault({Consume, ConsumeAgain}), "") << "the next kernels are not affected";
  }
}

// The kernel before writes to other parts of the same allocation.
TEST_F(DependentLaunchTest, EarlyBulkCopyOfUnchangedBytesIsNoFault) {
  EXPECT_EQ(Fault({BulkCopyOfUnchangedEarly}), "");
  EXPECT_EQ(shim::early_kernels, 1);
}

// A copy waits for all kernels, and no kernel overtakes it.
TEST_F(DependentLaunchTest, WhatWasWrittenBeforeACopyMayBeReadEarly) {
  EXPECT_TRUE(IsOk(Queue(Produce, /*is_dependent=*/false)));
  const float one = 1;
  EXPECT_TRUE(IsOk(cudaMemcpyAsync(arrays_[0]->data(), &one, sizeof(one), cudaMemcpyHostToDevice,
                                   stream_->handle())));
  EXPECT_TRUE(IsOk(Queue([](Arrays a) { a.third[Index()] = 1; }, /*is_dependent=*/false)));
  EXPECT_TRUE(IsOk(Queue(ReadEarly)));
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
  EXPECT_EQ(shim::last_failure, "");
}

// That the kernel before has begun says nothing about the one before it.
TEST_F(DependentLaunchTest, ReadOfWhatAnOlderKernelWroteIsAFault) {
  EXPECT_THAT(Fault({Consume, ReadOlderEarly}), HasSubstr("what an earlier kernel wrote"));
  shim::ResetContext();
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
}

// A missing wait is found even if it starts late.
TEST_F(DependentLaunchTest, MissingWaitIsFoundInEverySchedule) {
  shim::SetGridOptions({.seed = 3});
  EXPECT_THAT(Fault({NeverWait}), HasSubstr("a thread ends without a wait"));
}

TEST_F(DependentLaunchTest, NeedsHopperAndAKernelBefore) {
  EXPECT_FALSE(Queue(Consume).ok()) << "a copy is before it";
  ASSERT_TRUE(IsOk(Queue(Produce, /*is_dependent=*/false)));
  SimulateComputeCapability(8);
  EXPECT_FALSE(Queue(Consume).ok());
  SimulateComputeCapability(9);
  EXPECT_TRUE(IsOk(Queue(Consume)));
  const Status captured = cuda::Graph::Capture(*stream_, [&] { return Queue(Consume); }).status();
  EXPECT_FALSE(captured.ok()) << "it would be the graph's first";
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
}

}  // namespace
}  // namespace diffserve
