// The two ends of a connection for weights, over Gloo and real sockets. tests/unit/train/weights_to_servers_test.cpp has
// torch.distributed at the other end.
#include "dist/weights/weight_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "dist/nccl/nccl_module.h"

namespace mortise::test {
namespace {

using std::chrono::milliseconds;

WeightPlace sender_place(int size = 2) {
  WeightPlace place;
  place.address = "127.0.0.1";
  place.prefix = "weights";
  place.size = size;
  place.timeout = std::chrono::hours(1);
  return place;
}

WeightPlace receiver_place(const WeightLink& sender, int rank = 1, int size = 2) {
  WeightPlace place = sender_place(size);
  place.port = sender.port();
  place.rank = rank;
  return place;
}

std::vector<std::byte> numbered(size_t count) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251);
  return out;
}

TEST(WeightLink, CarriesPiecesInTheirOrderToAllRanks) {
  const std::vector<std::byte> first = numbered(5), second = numbered(3'000'001);
  auto sender = open_weight_link(sender_place(3));
  ASSERT_TRUE(sender.ok()) << sender.error().to_string();
  std::vector<std::vector<std::byte>> taken(2);
  const auto receive = [&](int rank) {
    auto link = open_weight_link(receiver_place(**sender, rank, 3));
    if (!link.ok() || !(*link)->join().ok()) return;
    std::vector<std::byte> pieces(first.size() + second.size());
    const std::span<std::byte> all(pieces);
    const bool is_there = (*link)->receive(all.first(first.size())).ok() && (*link)->receive({}).ok() &&
                          (*link)->receive(all.subspan(first.size())).ok();
    if (is_there) taken[static_cast<size_t>(rank - 1)] = std::move(pieces);
  };
  std::thread one(receive, 1), two(receive, 2);
  const Result<> joined = (*sender)->join();
  EXPECT_TRUE(joined.ok()) << joined.error().to_string();
  EXPECT_TRUE((*sender)->send(first).ok());
  EXPECT_TRUE((*sender)->send({}).ok());
  EXPECT_TRUE((*sender)->send(second).ok());
  one.join();
  two.join();
  std::vector<std::byte> expected = first;
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_TRUE(taken[0] == expected);
  EXPECT_TRUE(taken[1] == expected);
}

// A receiver that gives up closes its end: the sender need not wait for its limit.
TEST(WeightLink, ASenderNoticesAtOnceThatItsReceiverHasGone) {
  auto sender = open_weight_link(sender_place());
  ASSERT_TRUE(sender.ok()) << sender.error().to_string();
  std::thread receiver([&] {
    auto link = open_weight_link(receiver_place(**sender));
    ASSERT_TRUE(link.ok() && (*link)->join().ok());
    std::vector<std::byte> piece(10);
    EXPECT_TRUE((*link)->receive(piece).ok());
  });
  EXPECT_TRUE((*sender)->join().ok());
  EXPECT_TRUE((*sender)->send(numbered(10)).ok());
  receiver.join();
  BackgroundLink background(std::move(*sender));
  std::optional<Result<>> ended;
  background.start([](WeightLink& link) -> Result<> {
    for (int i = 0; i < 100; ++i) TRY(link.send(numbered(4'000'000)));
    return {};
  });
  while (!(ended = background.look())) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(ended->ok());  // that this test ends shows that the sender does not wait for its limit of an hour
}

TEST(WeightLink, EndsWhenItsOtherEndDoesNotCome) {
  WeightPlace place = sender_place();
  place.timeout = milliseconds(300);
  auto sender = open_weight_link(place);
  ASSERT_TRUE(sender.ok());
  const Result<> joined = (*sender)->join();
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().kind, ErrorKind::kRankFailure);
  place.rank = 1;
  place.port = 1;  // nothing listens there
  EXPECT_FALSE(open_weight_link(place).ok());
}

// c10d would try to reach the address until the limit, and the trainer would wait.
TEST(WeightLink, ASenderRefusesAnAddressOfAnotherMachine) {
  for (const std::string address : {"192.0.2.7", "nobody.invalid", "0.0.0.0", ""}) {  // the first is for documentation
    WeightPlace place = sender_place();
    place.address = address;
    const auto sender = open_weight_link(place);
    ASSERT_FALSE(sender.ok()) << address;
    EXPECT_EQ(sender.error().kind, ErrorKind::kConfig);
    EXPECT_NE(sender.error().what.find("'" + address + "' is not an address of this machine"), std::string::npos)
        << sender.error().what;
  }
}

// What waits continues without its owner, and its pieces are kept until then.
TEST(WeightLink, AnOwnerThatGoesWaitsForNobody) {
  WeightPlace place = sender_place();
  place.timeout = milliseconds(20'000);
  auto sender = open_weight_link(place);
  ASSERT_TRUE(sender.ok());
  const auto kept = std::make_shared<int>(0);
  {
    BackgroundLink background(std::move(*sender));
    background.start([kept](WeightLink& link) { return link.join(); });
    EXPECT_FALSE(background.look().has_value());
  }
  EXPECT_EQ(kept.use_count(), 2) << "the owner waited for the limit";
  while (kept.use_count() > 1) std::this_thread::sleep_for(milliseconds(5));
}

TEST(WeightLink, NcclAloneSaysWhatIsMissing) {
  const auto absent = open_nccl_id_group(0, milliseconds(100), "/nowhere/libmortise_nccl.so");
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().what.find("/nowhere/libmortise_nccl.so is not there"), std::string::npos);
  EXPECT_NE(absent.error().next.find("or send the weights by files"), std::string::npos) << absent.error().next;
  EXPECT_FALSE(open_cuda_sharer(0, "/nowhere/libmortise_nccl.so").ok());
}

}  // namespace
}  // namespace mortise::test
