// The real Env, its compositions, and the words of its errors.
#include "foundation/base/env.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "foundation/base/rename_target.h"
#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Env, WritesAndReadsFiles) {
  const test::TempDir dir;
  Env& env = default_env();
  const std::string bytes = std::string("a\0b", 3) + std::string(5'000'000, 'x');
  ASSERT_OK(write_file(env, dir / "f", bytes));
  EXPECT_EQ(*env.read_file(dir / "f"), bytes);
  ASSERT_OK_AND_ASSIGN(const MappedFile mapped, env.map_file(dir / "f"));
  EXPECT_EQ(mapped.text(), bytes);
  ASSERT_OK_AND_ASSIGN(const FileInfo info, env.info(dir / "f"));
  EXPECT_EQ(info.size_bytes, bytes.size());
  EXPECT_TRUE(info.is_file);
  EXPECT_NEAR(static_cast<double>(info.modified_ns), static_cast<double>(env.wall_time_ns()), 60e9);
  EXPECT_GT(*env.free_bytes(dir.path()), 0u);
}

TEST(Env, MapsAnEmptyFileAndMoves) {
  const test::TempDir dir;
  dir.write("empty", "");
  dir.write("full", "hello");
  ASSERT_OK_AND_ASSIGN(MappedFile a, default_env().map_file(dir / "empty"));
  EXPECT_TRUE(a.bytes().empty());
  ASSERT_OK_AND_ASSIGN(MappedFile b, default_env().map_file(dir / "full"));
  const char* address = b.text().data();
  a = std::move(b);
  EXPECT_EQ(a.text(), "hello");
  EXPECT_EQ(a.text().data(), address);
}

TEST(Env, WriteModes) {
  const test::TempDir dir;
  Env& env = default_env();
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(auto file, env.open_for_write(dir / "log", WriteMode::kAppend));
    ASSERT_OK(file->append_text("x"));
    ASSERT_OK(file->close());
    ASSERT_OK(file->close());
  }
  EXPECT_EQ(dir.read("log"), "xx");
  EXPECT_THAT(error_of(env.open_for_write(dir / "log", WriteMode::kExclusive)), HasSubstr("File exists"));
  ASSERT_OK(write_file(env, dir / "log", "y"));
  EXPECT_EQ(dir.read("log"), "y");
}

TEST(Env, ErrorsNamePathCauseAndNextStep) {
  const test::TempDir dir;
  Env& env = default_env();
  const Result<std::string> missing = env.read_file(dir / "no_such");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kData);
  EXPECT_EQ(missing.error().where, (dir / "no_such").string());
  EXPECT_THAT(missing.error().what, HasSubstr("No such file"));
  EXPECT_EQ(missing.error().next, "check the path");
  EXPECT_THAT(error_of(env.read_file(dir.path())), HasSubstr("Is a directory"));
  EXPECT_THAT(error_of(env.map_file(dir.path())), HasSubstr("Is a directory"));
  EXPECT_THAT(error_of(env.unlink(dir / "no_such")), HasSubstr("cannot delete"));
  EXPECT_THAT(error_of(env.rename(dir / "no_such", dir / "x")), HasSubstr("cannot rename to"));
  EXPECT_THAT(error_of(env.list_dir(dir / "no_such")), HasSubstr("cannot list"));
  for (const auto& kind : {env.map_file(dir.path()).error().kind, env.list_dir(dir / "no_such").error().kind,
                           env.info(dir / "no_such").error().kind})
    EXPECT_EQ(kind, ErrorKind::kData);
  for (const auto& kind : {env.unlink(dir / "no_such").error().kind,
                           env.open_for_write(dir / "no_such/file", WriteMode::kTruncate).error().kind})
    EXPECT_EQ(kind, ErrorKind::kDisk);
  EXPECT_THAT(disk_error(ENOSPC, "write", "/x").to_string(), HasSubstr("the disk is full"));
  EXPECT_THAT(disk_error(EDQUOT, "write", "/x").to_string(), HasSubstr("quota"));
  EXPECT_THAT(disk_error(123456, "write", "/x").to_string(), HasSubstr("123456"));
  dir.write("five", "12345");
  EXPECT_THAT(error_of(env.read_file(dir / "five", 4)), HasSubstr("larger than the 4 bytes"));
  EXPECT_EQ(*env.read_file(dir / "five", 5), "12345");
}

TEST(Env, AFullDeviceIsNamed) {
  if (!default_env().exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  EXPECT_THAT(error_of(write_file(default_env(), "/dev/full", "x")), HasSubstr("the disk is full"));
}

TEST(Env, ListsSortedAndMakesFolders) {
  const test::TempDir dir;
  dir.write("b", ""), dir.write("a", ""), dir.write("Z/deep/er", "");
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("Z", "a", "b"));
  EXPECT_OK(default_env().create_dirs(dir / "Z/deep"));
  EXPECT_FALSE(default_env().create_dirs(dir / "a/b").ok());
}

TEST(RemoveTree, TakesAllButNeverFollowsLinks) {
  const test::TempDir dir;
  dir.write("keep/file", "precious");
  dir.write("doomed/a/b/c", "x");
  ASSERT_EQ(::symlink((dir / "keep").c_str(), (dir / "doomed/link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (dir / "doomed/broken").c_str()), 0);
  ASSERT_OK(remove_tree(default_env(), dir / "doomed"));
  EXPECT_FALSE(default_env().exists(dir / "doomed"));
  EXPECT_EQ(dir.read("keep/file"), "precious");
  EXPECT_OK(remove_tree(default_env(), dir / "doomed"));  // already deleted: fine
}

TEST(WriteFileAtomic, OldOrNewAtEveryFailure) {
  for (int64_t k = 1;; ++k) {
    const test::TempDir dir;
    dir.write("f", "old");
    test::FaultEnv env(default_env());
    env.crash_at(k);
    const Result<> done = write_file_atomic(env, dir / "f", "new content");
    const std::string now = dir.read("f");
    EXPECT_TRUE(now == "old" || now == "new content") << "operation " << k << " left '" << now << "'";
    if (done.ok()) {
      EXPECT_EQ(now, "new content");
      EXPECT_EQ(k, env.num_operations() + 1);
      EXPECT_GE(k, 6);  // open, append, sync, close, rename, sync_dir
      break;
    }
  }
}

// A write must not replace a device or a pipe. A link remains, and its target is replaced.
TEST(WriteFileAtomic, WhatIsNoFileIsWrittenDirectly) {
  const test::TempDir dir;
  ASSERT_EQ(::symlink("/dev/null", (dir / "null").c_str()), 0);
  for (const Path& path : {Path("/dev/null"), dir / "null"}) {
    EXPECT_FALSE(*rename_target(default_env(), path));
    ASSERT_OK(write_file_atomic(default_env(), path, "gone"));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(*rename_target(default_env(), "/dev/stdout"));
  dir.write("f", "old");
  ASSERT_EQ(::symlink("f", (dir / "link").c_str()), 0);
  ASSERT_OK(write_file_atomic(default_env(), dir / "link", "new"));
  EXPECT_EQ(dir.read("f"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
}

TEST(WriteFileAtomic, ALinkToNothingStaysALink) {
  const test::TempDir dir;
  dir.write("folder/f", "");
  ASSERT_EQ(::symlink("folder/new", (dir / "second").c_str()), 0);
  ASSERT_EQ(::symlink("second", (dir / "first").c_str()), 0);
  ASSERT_OK(write_file_atomic(default_env(), dir / "first", "text"));
  EXPECT_EQ(dir.read("folder/new"), "text");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "first"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "second"));
  ASSERT_EQ(::symlink("loop", (dir / "loop").c_str()), 0);
  EXPECT_THAT(error_of(write_file_atomic(default_env(), dir / "loop", "text")),
              HasSubstr("the link leads back to itself"));
}

TEST(WriteFileAtomic, AFailureLeavesNothingBehind) {
  const test::TempDir dir;
  test::FaultEnv env(default_env());
  env.disk_full_after(3);
  EXPECT_THAT(error_of(write_file_atomic(env, dir / "f", "12345")), HasSubstr("the disk is full"));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre());
}

// A folder of someone else may hold anything under a file's name: each is an error at once.
TEST(Env, WhatIsNoFileIsRefusedAtOnce) {
  const test::TempDir dir;
  Env& env = default_env();
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/dev/zero", (dir / "zero").c_str()), 0);
  ASSERT_EQ(::symlink("loop", (dir / "loop").c_str()), 0);
  for (const char* name : {"fifo", "zero"}) {
    EXPECT_THAT(error_of(env.read_file(dir / name)), HasSubstr("a pipe, a device or a socket, not a file")) << name;
    EXPECT_THAT(error_of(env.map_file(dir / name)), HasSubstr("a pipe, a device or a socket, not a file")) << name;
    EXPECT_EQ(env.read_file(dir / name).error().kind, ErrorKind::kData);
  }
  EXPECT_TRUE(env.exists(dir / "loop")) << "an error to read, where a missing file may be none";
  EXPECT_THAT(error_of(env.read_file(dir / "loop")), HasSubstr("symbolic links"));
  EXPECT_THAT(error_of(env.map_file(dir.path())), HasSubstr("give a file instead of a folder"));
}

TEST(Env, APipeThatAShellNamesIsRead) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "a = 1\n", 6), 6);
  ::close(ends[1]);
  const std::string name = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_THAT(error_of(default_env().map_file(name)), HasSubstr("write its contents to a file, and name that file"));
  EXPECT_EQ(*default_env().read_file(name), "a = 1\n");
  ::close(ends[0]);
}

TEST(UniqueName, Differs) {
  const std::string a = unique_name(default_env(), "x"), b = unique_name(default_env(), "x");
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 13u);
}

TEST(Env, ClocksMove) {
  Env& env = default_env();
  const int64_t before = env.monotonic_ns();
  EXPECT_GE(env.monotonic_ns(), before);
  EXPECT_GT(env.wall_time_ns(), int64_t{1'700'000'000} * 1'000'000'000);
}

}  // namespace
}  // namespace mortise
