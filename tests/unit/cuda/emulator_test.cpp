// The emulator finds the faults that it says it finds, in every order.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "cuda/kernels/dialect.cuh"

namespace mortise::cuda {
namespace {

std::string error_of(void (*kernel)()) {
  std::string text;
  for (const Schedule schedule : {Schedule::kForward, Schedule::kBackward, Schedule::kShuffled}) {
    emulator_options() = {schedule};
    try {
      launch({1}, {64}, [kernel] { kernel(); });
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

}  // namespace
}  // namespace mortise::cuda
