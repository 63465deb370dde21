// Messages, frames and areas: a reader gets what the writer wrote, and refuses garbage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "plugin/host/kinds/reward_args.h"
#include "plugin/worker/batch_area.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/shared_memory.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

TEST(WorkerWire, ALongFrameArrivesWithItsDescriptor) {
  ASSERT_OK_AND_ASSIGN(auto ends, Channel::pair());
  const std::string body(5 << 20, 'q');
  ASSERT_OK_AND_ASSIGN(const SharedMemory memory, SharedMemory::create("test", 64, SharedMemory::Peer::kReads));
  std::thread sender([&] {
    const int fd = memory.fd();
    EXPECT_TRUE(ends.first.send(kPiece, "short").ok());
    EXPECT_TRUE(ends.first.send(kPiece, body, {&fd, 1}).ok());
  });
  ASSERT_OK_AND_ASSIGN(const auto first, ends.second.receive(5000));
  ASSERT_OK_AND_ASSIGN(const auto second, ends.second.receive(5000));
  sender.join();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->body, "short");
  EXPECT_EQ(second->body, body);
  EXPECT_EQ(second->fds.size(), 1U);
  ends.first = Channel();
  ASSERT_OK_AND_ASSIGN(const auto nothing, ends.second.receive(5000));
  EXPECT_FALSE(nothing.has_value());
  EXPECT_TRUE(ends.second.closed());
}

TEST(WorkerWire, RubbishIsAnError) {
  ASSERT_OK_AND_ASSIGN(auto ends, Channel::pair());
  const std::string rubbish(64, '\xff');
  ASSERT_EQ(::send(ends.first.fd(), rubbish.data(), rubbish.size(), 0), 64);
  EXPECT_FALSE(ends.second.receive(1000).ok());

  RowMessage message;
  message.values.push_back({1, "name", 2.5});
  message.failed_rows.push_back({0, 3, "why"});
  message.metrics.push_back({"m", 1, 2, 0});
  const std::string body = encode(message);
  RowMessage back;
  ASSERT_OK(decode(body, back));
  EXPECT_EQ(back.values[0].name, "name");
  EXPECT_EQ(back.failed_rows[0].text, "why");
  EXPECT_EQ(back.metrics[0].weight, 2);
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_FALSE(decode(std::string_view(body).substr(0, size), back).ok()) << size;
  }
  EXPECT_FALSE(decode(body + "x", back).ok());
}

TEST(WorkerWire, ParametersKeepEveryDouble) {
  LoadMessage message;
  message.identity.params =
      Json{{"a", 0.1}, {"b", std::numeric_limits<double>::infinity()}, {"c", nullptr}, {"d", 1.0}};
  LoadMessage back;
  ASSERT_OK(decode(encode(message), back));
  EXPECT_EQ(back.identity.params, message.identity.params);
  EXPECT_TRUE(back.identity.params["d"].is_number_float());
}

TEST(WorkerWire, DeeplyNestedParametersAreRefused) {
  LoadMessage message;
  for (int depth = 0; depth < 1'000; ++depth) message.identity.params = Json::array({message.identity.params});
  LoadMessage back;
  EXPECT_FALSE(decode(encode(message), back).ok());
}

TEST(WorkerWire, ASliceOfAnAreaIsTheSliceOfTheBatch) {
  RewardBatch batch = rows_of({"one", "", "three", "four"}, 2);
  for (int64_t i = 0; i < 4; ++i) batch.completion_ids.append(std::vector<int64_t>(static_cast<size_t>(i + 1), i));
  const std::vector<Json> values = {"a", nullptr, "ccc", "d"};
  std::vector<const Json*> pointers;
  for (const Json& value : values) pointers.push_back(&value);
  batch.columns.push_back(DataColumn::from_json("answer", ColumnType::kText, pointers));
  batch.step = 9;
  const RewardArgs args(batch);
  std::vector<std::max_align_t> memory(batch_bytes(args.in()) / sizeof(std::max_align_t) + 1);
  const std::span<std::byte> area = std::as_writable_bytes(std::span(memory)).first(batch_bytes(args.in()));
  write_batch(args.in(), area);
  ASSERT_OK_AND_ASSIGN(BatchView view, BatchView::open(area));
  const mortise_reward_in& in = view.slice(2, 2);
  EXPECT_EQ(in.num_rows, 2);
  EXPECT_EQ(in.step, 9);
  EXPECT_EQ(std::string(in.completion.bytes, in.completion.offsets[1]), "three");
  EXPECT_EQ(in.completion_ids.offsets[0], 0U);
  EXPECT_EQ(in.completion_ids.offsets[1], 3U);
  EXPECT_EQ(in.completion_ids.ids[0], 2);
  EXPECT_EQ(in.row_id[1], 3);
  EXPECT_EQ(in.group_index[0], 1);
  EXPECT_EQ(std::string(in.columns[0]->text.bytes, in.columns[0]->text.offsets[1]), "ccc");
  EXPECT_EQ(in.columns[0]->valid[0], 1);
  for (size_t size = 0; size < 200; size += 8) EXPECT_FALSE(BatchView::open(area.first(size)).ok()) << size;
}

TEST(WorkerWire, AnAreaForReadingCannotBeMappedForWriting) {
  ASSERT_OK_AND_ASSIGN(const SharedMemory memory, SharedMemory::create("test", 4096, SharedMemory::Peer::kReads));
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0), MAP_FAILED);
  EXPECT_NE(::ftruncate(memory.fd(), 0), 0);
}

}  // namespace
}  // namespace mortise::test
