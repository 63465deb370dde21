// The emulator finds the faults that it says it finds, in every order.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "cuda/kernels/dialect.cuh"
#include "support/this_build.h"

namespace mortise::cuda {
namespace {

std::string error_of(void (*kernel)(), unsigned blocks = 1) {
  std::string text;
  for (const Schedule schedule : {Schedule::kForward, Schedule::kBackward, Schedule::kShuffled}) {
    emulator_options() = {schedule};
    try {
      launch({blocks}, {64}, [kernel] { kernel(); });
      return "";
    } catch (const EmulatorError& error) {
      text = error.what();
    }
  }
  return text;
}

TEST(CudaEmulator, ReportsARaceInSharedMemory) {
  EXPECT_NE(error_of([] {
              MORTISE_SHARED(int, numbers, 64);
              numbers[threadIdx.x] = 1;
              static_cast<void>(int{numbers[(threadIdx.x + 1) % 64]});
            }).find("numbers["),
            std::string::npos);
}

TEST(CudaEmulator, ReportsABarrierThatSomeThreadsMiss) {
  EXPECT_NE(error_of([] {
              if (threadIdx.x < 32) __syncthreads();
            }).find("do not come"),
            std::string::npos);
}

TEST(CudaEmulator, ReportsAnIndexBeyondTheArray) {
  EXPECT_NE(error_of([] {
              MORTISE_SHARED(int, numbers, 32);
              numbers[threadIdx.x] = 1;
            }).find("beyond its 32 elements"),
            std::string::npos);
}

TEST(CudaEmulator, ReportsAReadOfWhatNobodyWrote) {
  EXPECT_NE(error_of([] {
              MORTISE_SHARED(int, numbers, 64);
              static_cast<void>(int{numbers[threadIdx.x]});
            }).find("before anything wrote it"),
            std::string::npos);
}

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// The sanitizer's copies of the threads' stacks are used again, too: once they took 17 GB.
TEST(CudaEmulator, ManyBlocksNeedTheMemoryOfOne) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "has a thread of its own for each CUDA thread";
  emulator_options() = {};
  const auto meet = [] { __syncthreads(); };
  launch({1}, {256}, meet);
  const long before = peak_kib();
  launch({200}, {256}, meet);
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

TEST(CudaEmulator, BarriersOrderMemory) {
  EXPECT_EQ(error_of([] {
              MORTISE_SHARED(int, numbers, 64);
              numbers[threadIdx.x] = 1;
              __syncthreads();
              static_cast<void>(int{numbers[(threadIdx.x + 1) % 64]});
            }),
            "");
}

// Global memory, which only ThreadSanitizer looks at.
class CudaGlobalMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::kThreadSanitizer) GTEST_SKIP() << "only ThreadSanitizer looks at global memory";
    std::ranges::fill(numbers, 0);
  }
  static void expect_race(unsigned blocks, void (*kernel)()) {
    EXPECT_NE(error_of(kernel, blocks).find("ThreadSanitizer"), std::string::npos);
  }
  static inline int numbers[64];
};

TEST_F(CudaGlobalMemory, HasARaceOfTwoBlocks) {
  expect_race(2, [] {
    if (threadIdx.x == 0) numbers[0] = 1;
  });
}

TEST_F(CudaGlobalMemory, HasARaceOfTwoThreadsOfABlock) {
  expect_race(1, [] {
    numbers[threadIdx.x] = 1;
    numbers[(threadIdx.x + 1) % 64] = 2;
  });
}

TEST_F(CudaGlobalMemory, IsNotOrderedByABarrierOfAnotherBlock) {
  expect_race(2, [] {
    if (blockIdx.x == 0 && threadIdx.x == 0) numbers[0] = 1;
    __syncthreads();
    if (blockIdx.x == 1 && threadIdx.x == 1) numbers[0] = 2;
  });
}

TEST_F(CudaGlobalMemory, IsNotOrderedByAWarpFunction) {
  expect_race(1, [] {
    if (threadIdx.x == 0) numbers[0] = 1;
    __shfl_xor_sync(~0U, 0, 1);
    if (threadIdx.x == 1) numbers[0] = 2;
  });
}

TEST_F(CudaGlobalMemory, IsOrderedByBarriersOfTheBlock) {
  EXPECT_EQ(error_of([] {
              for (unsigned round = 0; round < 4; ++round) {
                if (threadIdx.x == round) ++numbers[0];
                __syncthreads();
              }
            }),
            "");
}

TEST_F(CudaGlobalMemory, IsOrderedByTheEndOfALaunch) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(error_of([] { ++numbers[threadIdx.x]; }), "");
    ++numbers[0];
  }
}

}  // namespace
}  // namespace mortise::cuda
