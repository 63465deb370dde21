// Durations as users write them, and the injected clock.
#include "foundation/base/clock.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(Duration, Parses) {
  EXPECT_EQ(*parse_duration_ns("10s"), 10'000'000'000);
  EXPECT_EQ(*parse_duration_ns("250ms"), 250'000'000);
  EXPECT_EQ(*parse_duration_ns("1.5m"), 90'000'000'000);
  EXPECT_EQ(*parse_duration_ns("1h30m"), int64_t{5400} * 1'000'000'000);
  EXPECT_EQ(*parse_duration_ns("2d"), int64_t{172800} * 1'000'000'000);
  EXPECT_EQ(*parse_duration_ns("7us"), 7'000);
  EXPECT_EQ(*parse_duration_ns("0"), 0);
}

TEST(Duration, RefusesEverythingElse) {
  for (const char* bad :
       {"", "10", "s", "-1s", "10 s", "1x", "1.2.3s", "30m1h", "1s1s", "1e3s", "999999999999d", "1h "}) {
    const auto result = parse_duration_ns(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.error().kind, ErrorKind::kConfig);
    EXPECT_THAT(result.error().next, HasSubstr("\"10s\""));
  }
  EXPECT_THAT(error_of(parse_duration_ns("10")), HasSubstr("unit is missing"));
}

TEST(Duration, Formats) {
  EXPECT_EQ(format_duration(0.416), "0.42 s");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(125), "2m05s");
  EXPECT_EQ(format_duration(3 * 3600 + 12 * 60), "3h12m");
  EXPECT_EQ(format_duration(4 * 86400 + 7 * 3600), "4d07h");
  EXPECT_EQ(format_duration(99.96), "1m40s");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_time_utc(int64_t{1'700'000'000} * 1'000'000'000), "2023-11-14T22:13:20Z");
}

// A clock that the test sets.
class StillEnv final : public Env {
 public:
  int64_t now_ns = 0;
  Result<std::string> read_file(const Path&, uint64_t) override { return std::string(); }
  Result<MappedFile> map_file(const Path&) override { return MappedFile(); }
  Result<FileInfo> info(const Path&) override { return FileInfo(); }
  bool exists(const Path&) override { return false; }
  Result<std::vector<std::string>> list_dir(const Path&) override { return std::vector<std::string>(); }
  Result<uint64_t> free_bytes(const Path&) override { return uint64_t{0}; }
  Result<std::unique_ptr<WritableFile>> open_for_write(const Path&, WriteMode) override {
    return std::unique_ptr<WritableFile>();
  }
  Result<> rename(const Path&, const Path&) override { return {}; }
  Result<> unlink(const Path&) override { return {}; }
  Result<> remove_dir(const Path&) override { return {}; }
  Result<> create_dirs(const Path&) override { return {}; }
  Result<> sync_dir(const Path&) override { return {}; }
  int64_t wall_time_ns() override { return now_ns; }
  int64_t monotonic_ns() override { return now_ns; }
  void random_bytes(std::span<std::byte>) override {}
};

TEST(Stopwatch, ReadsTheInjectedClock) {
  StillEnv env;
  double total_s = 1;
  {
    const ScopedTimer timer(&total_s, env);
    env.now_ns += 2'500'000'000;
  }
  EXPECT_DOUBLE_EQ(total_s, 3.5);
  Stopwatch watch(env);
  env.now_ns += 7;
  EXPECT_EQ(watch.elapsed_ns(), 7);
  watch.restart();
  EXPECT_EQ(watch.elapsed_ns(), 0);
}

}  // namespace
}  // namespace mortise
