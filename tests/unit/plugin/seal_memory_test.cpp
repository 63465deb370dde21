// Seals of a memfd: what else holds its memory for a moment is waited for, what keeps it is an error.
#include "plugin/pack/seal_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace mortise {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBytes = 4096;

// A memfd with a page that is mapped for writing, which keeps F_SEAL_WRITE away.
class SealMemory : public testing::Test {
 protected:
  void SetUp() override {
    fd_ = ::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(::ftruncate(fd_, kBytes), 0);
    page_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    ASSERT_NE(page_, MAP_FAILED);
  }
  void TearDown() override { ::close(fd_); }
  void unmap() { ::munmap(page_, kBytes); }

  int fd_ = -1;
  void* page_ = nullptr;
};

TEST_F(SealMemory, WaitsUntilNobodyHoldsThePages) {
  std::thread holder([this] {
    std::this_thread::sleep_for(milliseconds(100));
    unmap();
  });
  EXPECT_TRUE(seal_memory(fd_, F_SEAL_WRITE));
  holder.join();
  EXPECT_EQ(::fcntl(fd_, F_GET_SEALS), F_SEAL_WRITE);
}

TEST_F(SealMemory, GivesUpWhenTheTimeIsOver) {
  EXPECT_FALSE(seal_memory(fd_, F_SEAL_WRITE, milliseconds(20)));
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(::fcntl(fd_, F_GET_SEALS), 0);
  unmap();
}

TEST_F(SealMemory, OtherFailuresAreNotTriedAgain) {
  unmap();
  ASSERT_TRUE(seal_memory(fd_, F_SEAL_SEAL));
  EXPECT_FALSE(seal_memory(fd_, F_SEAL_WRITE, std::chrono::hours(1)));
  EXPECT_EQ(errno, EPERM);
}

}  // namespace
}  // namespace mortise
