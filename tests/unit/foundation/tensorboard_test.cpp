// The event files: records and checks read back by a parser of our own, and by the tensorboard package where it is
// there.
#include <gmock/gmock.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <protozero/pbf_reader.hpp>

#include "foundation/metrics/sinks.h"
#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

uint32_t crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return static_cast<uint32_t>(crc.checksum());
}

uint32_t unmasked(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return rotated << 15 | rotated >> 17;
}

template <class T>
T take(std::string_view& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

struct Event {
  int64_t step = 0;
  std::string version;
  int32_t session = 0;  // SessionLog's status
  std::vector<std::pair<std::string, float>> values;
};

std::vector<Event> read_events(std::string_view file) {
  std::vector<Event> events;
  while (!file.empty()) {
    const std::string_view length_bytes = file.substr(0, 8);
    const auto length = take<uint64_t>(file);
    EXPECT_EQ(unmasked(take<uint32_t>(file)), crc32c(length_bytes));
    const std::string_view bytes = file.substr(0, length);
    file.remove_prefix(length);
    EXPECT_EQ(unmasked(take<uint32_t>(file)), crc32c(bytes));
    Event event;
    protozero::pbf_reader reader(bytes.data(), bytes.size());
    while (reader.next()) {
      if (reader.tag() == 2)
        event.step = reader.get_int64();
      else if (reader.tag() == 3)
        event.version = reader.get_string();
      else if (reader.tag() == 7) {
        protozero::pbf_reader session = reader.get_message();
        while (session.next(1)) event.session = session.get_enum();
      } else if (reader.tag() == 5) {
        protozero::pbf_reader summary = reader.get_message();
        while (summary.next(1)) {
          protozero::pbf_reader value = summary.get_message();
          std::pair<std::string, float> pair;
          while (value.next()) {
            if (value.tag() == 1)
              pair.first = value.get_string();
            else
              pair.second = value.get_float();
          }
          event.values.push_back(pair);
        }
      } else {
        reader.skip();
      }
    }
    events.push_back(std::move(event));
  }
  return events;
}

void write_run(const Path& dir) {
  ASSERT_OK_AND_ASSIGN(const auto sink, make_tensorboard_sink(default_env(), dir, 0));
  ASSERT_OK(sink->write({{{"step", 1}}, {{"actor/pg_loss", 0.5}, {"critic/score/mean", -2.0}}}));
  ASSERT_OK(sink->write({{{"step", 300}}, {{"actor/pg_loss", 0.25}}}));
  ASSERT_OK(sink->close());
}

// A run killed in its third step after a checkpoint of the first, then resumed from there.
void write_resumed_run(const Path& dir) {
  for (const int64_t first : {0, 2}) {
    ASSERT_OK_AND_ASSIGN(const auto sink, make_tensorboard_sink(default_env(), dir, first));
    for (int64_t step = std::max<int64_t>(first, 1); step <= 3; ++step)
      ASSERT_OK(sink->write({{{"step", step}}, {{"loss", static_cast<double>(10 * first + step)}}}));
    ASSERT_OK(sink->close());
  }
}

// The package's reading of a folder against tensorboard_oracle.py's table of that name; nothing where it is not there.
std::optional<int> ask_package(const Path& dir, const std::string& run) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) return std::nullopt;
  const std::string command = "'" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                              "/tests/unit/foundation/tensorboard_oracle.py' '" + dir.string() + "' " + run;
  return std::system(command.c_str());
}

TEST(Tensorboard, Crc32cCheckValue) { EXPECT_EQ(crc32c("123456789"), 0xE3069283u); }

TEST(Tensorboard, RecordsReadBack) {
  const test::TempDir dir;
  write_run(dir / "tb");
  const auto names = *default_env().list_dir(dir / "tb");
  ASSERT_EQ(names.size(), 1u);
  EXPECT_THAT(names[0], testing::StartsWith("events.out.tfevents."));
  const auto events = read_events(dir.read("tb/" + names[0]));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[2].step, 1);
  EXPECT_THAT(events[2].values,
              testing::ElementsAre(testing::Pair("actor/pg_loss", 0.5f), testing::Pair("critic/score/mean", -2.0f)));
  EXPECT_EQ(events[3].step, 300);
}

TEST(Tensorboard, AResumedRunStartsAtItsStepBehindTheFilesBefore) {
  const test::TempDir dir;
  write_resumed_run(dir / "tb");
  const auto names = *default_env().list_dir(dir / "tb");
  ASSERT_EQ(names.size(), 2u);
  const auto first = read_events(dir.read("tb/" + names[0])), second = read_events(dir.read("tb/" + names[1]));
  ASSERT_EQ(first.size(), 5u);
  ASSERT_EQ(second.size(), 4u);
  for (const auto& [events, step] : {std::pair{&first, 0}, std::pair{&second, 2}}) {
    EXPECT_EQ((*events)[1].session, 1);  // START
    EXPECT_EQ((*events)[1].step, step);
  }
}

TEST(Tensorboard, BehindAFullDiskItGoesOnInAnotherFile) {
  const test::TempDir dir;
  test::FaultEnv env(default_env());
  ASSERT_OK_AND_ASSIGN(const auto sink, make_tensorboard_sink(env, dir / "tb", 0));
  const auto write = [&](int64_t step) { return sink->write({{{"step", step}}, {{"loss", 1.0}}}); };
  ASSERT_OK(write(1));
  env.disk_full_after(10);
  EXPECT_FALSE(write(2).ok());
  EXPECT_FALSE(write(3).ok());
  env.heal();
  ASSERT_OK(write(4));
  ASSERT_OK(sink->close());
  const auto names = *default_env().list_dir(dir / "tb");
  ASSERT_EQ(names.size(), 2u);
  const auto events = read_events(dir.read("tb/" + names[1]));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[1].session, 1);  // START
  EXPECT_EQ(events[1].step, 2);
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(events[i].step, static_cast<int64_t>(i));
}

TEST(Tensorboard, ThePackageReadsIt) {
  const test::TempDir dir;
  write_run(dir / "straight");
  write_resumed_run(dir / "resumed");
  const auto straight = ask_package(dir / "straight", "straight");
  if (!straight) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set";
  EXPECT_EQ(*straight, 0);
  EXPECT_EQ(ask_package(dir / "resumed", "resumed"), 0);
}

}  // namespace
}  // namespace mortise
