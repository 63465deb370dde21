// Memory that lies in a file: its numbers stay, its pages go, the file has no name, and a disk without room is an error.
#include "foundation/base/file_memory.h"

#include <gmock/gmock.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::HasSubstr;

// A folder on a disk: that of temporary files may be in memory.
Path disk_folder() { return MORTISE_BINARY_DIR; }

// Pages of the mapping that this process has now.
size_t pages_here(const FileMemory& memory) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<uint64_t> entries((memory.size() + page - 1) / page);
  std::FILE* file = std::fopen("/proc/self/pagemap", "re");
  EXPECT_NE(file, nullptr);
  if (file == nullptr) return 0;
  const auto first = reinterpret_cast<uintptr_t>(memory.data()) / page;
  EXPECT_EQ(std::fseek(file, static_cast<long>(first * sizeof(uint64_t)), SEEK_SET), 0);
  EXPECT_EQ(std::fread(entries.data(), sizeof(uint64_t), entries.size(), file), entries.size());
  std::fclose(file);
  size_t here = 0;
  for (const uint64_t entry : entries) here += entry >> 63U;
  return here;
}

TEST(FileMemory, KeepsNumbersWithoutKeepingPages) {
  constexpr size_t kBytes = 1 << 20;
  const auto names = default_env().list_dir(disk_folder()).value();
  ASSERT_OK_AND_ASSIGN(const FileMemory memory, FileMemory::create(disk_folder(), kBytes));
  EXPECT_EQ(default_env().list_dir(disk_folder()).value(), names);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  for (size_t i = 0; i < kBytes; ++i) memory.data()[i] = static_cast<std::byte>(i * 7);
  EXPECT_GE(pages_here(memory), kBytes / 4096 / 16);  // pages may be larger than 4 KiB
  FileMemory::release({memory.data(), memory.size()});
  EXPECT_EQ(pages_here(memory), 0U);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory.data()[i], static_cast<std::byte>(i * 7)) << i;
}

TEST(FileMemory, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
  // A limit of the size of files is the same to the program as a disk without room.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 16;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto made = FileMemory::create(disk_folder(), 1 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::kDisk);
  EXPECT_THAT(error_of(made), HasSubstr(disk_folder().string()));
}

TEST(FileMemory, AFolderThatIsItselfInMemoryIsRefused) {
  struct statfs system {};
  ASSERT_EQ(::statfs("/dev/shm", &system), 0);
  if (system.f_type != TMPFS_MAGIC) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const auto made = FileMemory::create("/dev/shm", 4096);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(error_of(made), HasSubstr("itself in memory"));
}

TEST(FileMemory, AMissingFolderIsNamed) {
  const auto made = FileMemory::create(disk_folder() / "no/such/folder", 4096);
  EXPECT_THAT(error_of(made), HasSubstr("no/such/folder"));
}

}  // namespace
}  // namespace mortise
