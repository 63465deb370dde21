// A run of one process: every call answers with this rank's own values, and refuses wrong arguments as Gloo's does.
#include "dist/one_process.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace mortise {
namespace {

TEST(OneProcess, KeepsTheValuesOfItsOnlyRank) {
  const auto ranks = one_process_communicator();
  EXPECT_EQ(ranks->rank(), 0);
  EXPECT_EQ(ranks->size(), 1);
  EXPECT_TRUE(ranks->is_main());
  const at::Tensor tensor = at::arange(5, at::kDouble);
  ASSERT_TRUE(ranks->all_reduce_sum(tensor, "gradients").ok());
  EXPECT_EQ(tensor[4].item<double>(), 4.0);
  std::vector<float> values{1.5F, -2.0F};
  ASSERT_TRUE(ranks->all_reduce_sum(std::span(values), "gradients").ok());
  EXPECT_EQ(values, (std::vector<float>{1.5F, -2.0F}));
  auto pending = ranks->start_all_reduce_sum(tensor, "gradients");
  ASSERT_TRUE(pending.ok());
  EXPECT_TRUE((*pending)->wait().ok());
  const at::Tensor out = at::zeros({5}, at::kDouble);
  ASSERT_TRUE(ranks->all_gather(tensor, out, "weights").ok());
  EXPECT_EQ(out[3].item<double>(), 3.0);
  const at::Tensor part = at::zeros({5}, at::kDouble);
  ASSERT_TRUE(ranks->reduce_scatter_sum(tensor, part, "gradients").ok());
  EXPECT_EQ(part[2].item<double>(), 2.0);
  const at::Tensor moved = at::zeros({5}, at::kDouble);
  const std::array<int64_t, 1> sizes{5};
  ASSERT_TRUE(ranks->all_to_all(tensor, sizes, moved, sizes, "gradients").ok());
  EXPECT_EQ(moved[3].item<double>(), 3.0);
  EXPECT_EQ(*ranks->exchange("bytes", "metrics"), std::vector<std::string>{"bytes"});
  EXPECT_EQ(*ranks->broadcast_bytes("bytes", 0, "metrics"), "bytes");
  EXPECT_TRUE(ranks->leave_note("rows", "bytes", "rewards").ok());
  EXPECT_EQ(ranks->take_note("rows", "rewards").value(), "bytes");
  EXPECT_EQ(ranks->take_note("rows", "rewards").value(), std::nullopt);
  EXPECT_TRUE(ranks->barrier("checkpoint").ok());
  EXPECT_TRUE(ranks->leave().ok());
}

TEST(OneProcess, RefusesWrongArguments) {
  const auto ranks = one_process_communicator();
  const Result<> bytes = ranks->all_reduce_sum(at::ones({2}, at::kByte), "gradients");
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().kind, ErrorKind::kInternal);
  EXPECT_EQ(bytes.error().what, "all_reduce_sum in stage 'gradients': ranks do not sum numbers of type Byte");
  EXPECT_FALSE(ranks->all_reduce_sum(at::ones({2, 3}, at::kFloat).t(), "gradients").ok());
  const Result<> parts = ranks->all_gather(at::ones({2}), at::ones({3}), "weights");
  ASSERT_FALSE(parts.ok());
  EXPECT_EQ(parts.error().what, "all_gather in stage 'weights': 2 numbers are not 1 parts of 3 each");
  const std::array<int64_t, 2> two_sizes{1, 1};
  const Result<> sizes = ranks->all_to_all(at::ones({2}), two_sizes, at::ones({2}), two_sizes, "gradients");
  ASSERT_FALSE(sizes.ok());
  EXPECT_EQ(sizes.error().what,
            "all_to_all in stage 'gradients': 2 sizes of together 2 are not the parts of 2 numbers for 1 ranks");
  EXPECT_FALSE(ranks->broadcast(at::ones({2}), 1, "weights").ok());
  EXPECT_FALSE(ranks->send(at::ones({2}), 0, "weights").ok());
  EXPECT_FALSE(ranks->recv(at::ones({2}), 1, "weights").ok());
}

}  // namespace
}  // namespace mortise
