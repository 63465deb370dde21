// Copies through pinned buffers, on a stream that is as late as a GPU may be: it copies only when somebody waits.
#include "model/device/staged_copies.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <deque>
#include <utility>

namespace mortise {
namespace {

class LateStream final : public CopyStream {
 public:
  at::Tensor host_bytes(int64_t size) override {
    ++num_buffers;
    return at::full({size}, 0xCD, at::kByte);
  }
  void start(const at::Tensor& to, const at::Tensor& from) override {
    pending.push_back([to, from] { to.copy_(from); });
  }
  std::function<void()> mark() override {
    const auto place = num_started + static_cast<int64_t>(pending.size());
    return [this, place] { run_to(place); };
  }
  void run_to(int64_t place) {
    for (; num_started < place; ++num_started) {
      pending.front()();
      pending.pop_front();
    }
  }

  std::deque<std::function<void()>> pending;
  int64_t num_started = 0;
  int num_buffers = 0;
};

// Numbers that no buffer holds whole go there and back, and the host's are overwritten as soon as they were sent.
TEST(StagedCopies, NumbersGoThereAndBack) {
  for (const int64_t size : {1, 63, 64, 65, 1000}) {
    auto own = std::make_unique<LateStream>();
    LateStream& stream = *own;
    StagedCopies copies(std::move(own), 256);
    const at::Tensor want = at::arange(size, at::kFloat);
    at::Tensor host = want.clone(), device = at::zeros_like(want), back = at::zeros_like(want);
    copies.send(host, device);
    host.fill_(-1);
    stream.start(device, device);  // a kernel: in the order of the stream
    int num_done = 0;
    copies.receive(device, back, [&] { ++num_done; });
    copies.finish();
    EXPECT_TRUE(device.equal(want)) << size;
    EXPECT_TRUE(back.equal(want)) << size;
    EXPECT_EQ(num_done, 1) << size;
    EXPECT_LE(stream.num_buffers, StagedCopies::kBuffers);
  }
}

// Many tensors in both directions share the buffers. None is used again before its copy is done, and each `done` comes
// behind its numbers.
TEST(StagedCopies, BuffersAreUsedAgainBehindTheirCopies) {
  auto own = std::make_unique<LateStream>();
  LateStream& stream = *own;
  StagedCopies copies(std::move(own), 64);
  std::vector<at::Tensor> host, device;
  std::vector<int> order;
  for (int i = 0; i < 9; ++i) {
    host.push_back(at::full({7 + 5 * i}, i, at::kFloat));
    device.push_back(at::empty_like(host.back()));
    copies.send(host.back(), device.back());
    stream.pending.push_back([one = device.back()] { one.add_(100); });
    copies.receive(device.back(), host.back(), [&, i] {
      EXPECT_TRUE(host[static_cast<size_t>(i)].eq(100 + i).all().item<bool>()) << i;
      order.push_back(i);
    });
  }
  EXPECT_FALSE(stream.pending.empty()) << "the host has not waited for the last";
  copies.finish();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(stream.num_buffers, StagedCopies::kBuffers);
}

// If some of the numbers that are sent were just received, the host has them before they leave. Numbers next to those that
// were received are not waited for.
TEST(StagedCopies, NumbersThatWereJustReceivedAreSent) {
  for (const int64_t begin : {0, 20, 28, 36}) {
    StagedCopies copies(std::make_unique<LateStream>(), 64);
    const at::Tensor host = at::zeros({40}, at::kFloat), changed = at::arange(1, 33, at::kFloat);
    const at::Tensor want = at::zeros_like(host), again = at::full({4}, -1, at::kFloat);
    want.narrow(0, 0, 32).copy_(changed);
    bool is_done = false;
    copies.receive(changed, host.narrow(0, 0, 32), [&] { is_done = true; });
    copies.send(host.narrow(0, begin, 4), again);
    EXPECT_EQ(is_done, begin < 32) << begin;
    copies.finish();
    EXPECT_TRUE(again.equal(want.narrow(0, begin, 4))) << begin;
    EXPECT_TRUE(host.equal(want)) << begin;
  }
}

// The host waits for the oldest copy only if it needs a buffer.
TEST(StagedCopies, TheHostDoesNotWaitForTheLastCopies) {
  auto own = std::make_unique<LateStream>();
  LateStream& stream = *own;
  StagedCopies copies(std::move(own), 64);
  const at::Tensor host = at::arange(16 * StagedCopies::kBuffers, at::kFloat), device = at::zeros_like(host);
  copies.send(host, device);
  EXPECT_EQ(stream.num_started, 0);
  copies.send(host.narrow(0, 0, 16), device.narrow(0, 0, 16));
  EXPECT_EQ(stream.num_started, 1);
}

}  // namespace
}  // namespace mortise
