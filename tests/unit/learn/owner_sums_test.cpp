// What a rank has in memory while gradients leave in buckets.
#include "learn/update/owner_sums.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "late_rank.h"
#include "learn/optim/rules.h"
#include "support/counting_allocator.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

// A chain of matrices whose gradients are far larger than all else.
struct Matrices {
  static constexpr int64_t kCount = 48, kWidth = 256, kBytes = kWidth * kWidth * 8;  // kBytes: of each
  std::vector<OptimizedParameter> parameters;

  Matrices() {
    for (int64_t i = 0; i < kCount; ++i) {
      const at::Tensor weights = at::eye(kWidth, at::kDouble).mul_(1.0 + 0.01 * static_cast<double>(i));
      parameters.push_back({"model.layers." + std::to_string(i) + ".w", weights.requires_grad_()});
    }
  }
  [[nodiscard]] at::Tensor output(double input) const {
    at::Tensor x = at::full({1, kWidth}, input, at::kDouble);
    for (const OptimizedParameter& one : parameters) x = at::matmul(x, one.tensor).tanh();
    return x.sum();
  }
  // Each matrix is a bucket, which the ranks share with ZeRO 2.
  [[nodiscard]] Optimizer shared_optimizer(LateRank& ranks) const {
    return {parameters, make_sgd({}), 0.0, "actor.optim", {.communicator = &ranks, .stage = 2, .bucket_bytes = kBytes}};
  }
};

// All ranks come here. The first notes what there is in memory.
void begin_count(LateRank& ranks, CountingAllocator& memory, int64_t& before) {
  ASSERT_OK(ranks.barrier("start"));
  if (ranks.rank() == 0) {
    before = memory.bytes();
    memory.reset_peak();
  }
  ASSERT_OK(ranks.barrier("start"));
}

// Next to its part of the gradient, a rank has two complete buckets and the one in the making. Two rounds are on their
// way: what it sends of each, and the terms that arrive, of which LateRank has copies.
TEST(OwnerSums, ARankHasItsOwnPartAndSomeBuckets) {
  constexpr int64_t kBucket = Matrices::kBytes, kAll = Matrices::kCount * kBucket;
  at::set_num_threads(1);
  const std::array<Matrices, 2> chains;
  std::array<std::vector<at::Tensor>, 2> sums_of;
  CountingAllocator& memory = CountingAllocator::install();
  int64_t before = 0;
  on_late_ranks(2, [&](LateRank& ranks) {
    const auto own = static_cast<size_t>(ranks.rank());
    Optimizer optimizer = chains[own].shared_optimizer(ranks);
    ASSERT_EQ(optimizer.units().size(), static_cast<size_t>(Matrices::kCount));
    const at::Tensor out = chains[own].output(1.0 + ranks.rank());
    begin_count(ranks, memory, before);
    OwnerSums sums(chains[own].parameters, optimizer.units());
    sums.begin({true, true});
    ASSERT_OK(sums.start_in([&] { out.backward(); }, ranks));
    ASSERT_OK(sums.finish());
    for (const ShardUnit& unit : optimizer.units()) sums_of[own].push_back(unit.own_gradient);
  });
  constexpr int64_t kLimit = 2 * (kAll / 2 + (2 + 1 + 2 * (1 + 2 + 2)) * kBucket);
  EXPECT_LE(memory.peak() - before, kLimit);
  EXPECT_LT(kLimit, 2 * kAll) << "else whole gradients would do";
  for (const double input : {1.0, 2.0}) chains[0].output(input).backward();
  for (size_t i = 0; i < chains[0].parameters.size(); ++i) {
    const size_t unit = chains[0].parameters.size() - 1 - i;  // backward begins with the last one
    const at::Tensor sum = at::cat({sums_of[0][unit], sums_of[1][unit]});
    EXPECT_TRUE(sum.allclose(chains[0].parameters[i].tensor.grad().view({-1}), 1e-12)) << i;
  }
}

// Four micro-batches in two rounds, in the order of a tree. Next to its part of the sum, a rank keeps that of a subtree, and no
// whole gradient.
TEST(OwnerSums, OwnersAddTheLeavesOfATree) {
  constexpr int64_t kBucket = Matrices::kBytes, kAll = Matrices::kCount * kBucket;
  at::set_num_threads(1);
  const std::array<Matrices, 2> chains;
  std::array<std::vector<at::Tensor>, 2> sums_of;
  CountingAllocator& memory = CountingAllocator::install();
  int64_t before = 0;
  on_late_ranks(2, [&](LateRank& ranks) {
    const auto own = static_cast<size_t>(ranks.rank());
    Optimizer optimizer = chains[own].shared_optimizer(ranks);
    begin_count(ranks, memory, before);
    OwnerTrees trees;
    OwnerSums sums(chains[own].parameters, optimizer.units(), kOwnerRoundBytes, &trees);
    for (const size_t first_leaf : {size_t{0}, size_t{2}}) {
      sums.begin({true, true}, first_leaf);
      const at::Tensor out = chains[own].output(1.0 + static_cast<double>(first_leaf + own));
      ASSERT_OK(sums.start_in([&] { out.backward(); }, ranks));
      ASSERT_OK(sums.start_others(ranks));
    }
    ASSERT_OK(sums.finish());
    trees.finish(4);
    for (const ShardUnit& unit : optimizer.units()) sums_of[own].push_back(unit.own_gradient);
  });
  constexpr int64_t kLimit = 2 * (2 * kAll / 2 + 20 * kBucket);
  EXPECT_LE(memory.peak() - before, kLimit);
  EXPECT_LT(kLimit, 2 * 2 * kAll) << "else a kept leaf next to that of the pass would do";
  std::vector<std::vector<GradientNode>> trees(Matrices::kCount);
  for (size_t leaf = 0; leaf < 4; ++leaf) {
    chains[0].output(1.0 + static_cast<double>(leaf)).backward();
    for (size_t i = 0; i < trees.size(); ++i)
      add_node(trees[i], {0, leaf, {std::exchange(chains[0].parameters[i].tensor.mutable_grad(), at::Tensor())}});
  }
  for (size_t i = 0; i < trees.size(); ++i) {
    const size_t unit = trees.size() - 1 - i;  // backward begins with the last one
    const at::Tensor sum = at::cat({sums_of[0][unit], sums_of[1][unit]});
    EXPECT_TRUE(sum.equal(sum_of_nodes(std::move(trees[i])).front().view({-1}))) << i;
  }
}

// Leaves 1 and 4 of five have no gradient, which is not the same as 0.
TEST(OwnerTrees, LeavesMayBeAbsent) {
  const at::Tensor own = at::zeros({1}, at::kDouble);
  std::vector<GradientNode> nodes;
  OwnerTrees trees;
  for (const size_t leaf : {0, 1, 2, 3, 4}) {
    const bool is_absent = leaf == 1 || leaf == 4;
    const at::Tensor term = at::full({1}, 0.1 * static_cast<double>(1 + leaf), at::kDouble);
    add_node(nodes, {0, leaf, is_absent ? std::vector<at::Tensor>() : std::vector<at::Tensor>{term.clone()}});
    if (!is_absent) trees.add(own, leaf, term);
  }
  trees.finish(5);
  EXPECT_TRUE(own.equal(sum_of_nodes(std::move(nodes)).front()));
  EXPECT_EQ(own.item<double>(), 0.1 + (0.1 * 3.0 + 0.1 * 4.0));
}

}  // namespace
}  // namespace mortise
