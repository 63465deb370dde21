// ZeRO: how parameters are cut into ranges of ranks, and an optimizer whose moments lie on several of them. Whole
// updates with every stage are in ranks_test.cpp.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>

#include "drawn_once.h"
#include "foundation/base/rng.h"
#include "learn/optim/adamw.h"
#include "support/joined_state.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;

TEST(Shards, RangesAreCutAtBlocksAndCoverEverything) {
  const int64_t block = Shards::kBlock;
  const std::vector<int64_t> sizes{5, 3 * block + 7, 1, 0, 2 * block, 100};
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (const int size : {1, 2, 3, 4, 20}) {
    const Shards shards(sizes, size);
    int64_t end = 0;
    for (int rank = 0; rank < size; ++rank) {
      const FlatRange range = shards.of(rank);
      EXPECT_EQ(range.begin, end);
      end = range.end;
      int64_t sum = 0;
      for (const TensorPart& part : shards.parts(range)) {
        EXPECT_EQ(part.begin % block, 0) << "rank " << rank << " begins inside a block";
        const bool ends_block = (part.begin + part.size) % block == 0 || part.begin + part.size == sizes[part.tensor];
        EXPECT_TRUE(ends_block) << rank;
        sum += part.size;
      }
      EXPECT_EQ(sum, range.size());
      EXPECT_LE(range.size(), total / size + 2 * block) << "ranges are about as long";
    }
    EXPECT_EQ(end, total);
  }
}

// An optimizer of spread weights steps the tensors that are not frozen. Each number stays with the rank that has it.
TEST(Shards, OnlySomeTensorsKeepTheirOwners) {
  const int64_t block = Shards::kBlock;
  const std::vector<int64_t> sizes{7, 3 * block + 11, 37, 2 * block + 5, 100};
  const std::vector<std::vector<size_t>> choices{{1}, {3}, {1, 3}, {0, 3}, {2, 3, 4}, {1, 2}, {0, 1, 2, 3, 4}};
  bool cuts_a_tensor = false;
  for (const int size : {1, 2, 3, 4, 9}) {
    const Shards all(sizes, size);
    for (const std::vector<size_t>& chosen : choices) {
      const Shards some = all.only(chosen);
      ASSERT_EQ(some.num_ranks(), size);
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(some.of(rank).begin, end);
        end = some.of(rank).end;
        std::vector<TensorPart> expected = all.parts(all.of(rank));
        std::erase_if(expected, [&](const TensorPart& part) { return std::ranges::count(chosen, part.tensor) == 0; });
        const std::vector<TensorPart> parts = some.parts(some.of(rank));
        ASSERT_EQ(parts.size(), expected.size()) << "rank " << rank << " of " << size;
        for (size_t i = 0; i < parts.size(); ++i) {
          EXPECT_EQ(chosen[parts[i].tensor], expected[i].tensor);
          EXPECT_EQ(parts[i].begin, expected[i].begin);
          EXPECT_EQ(parts[i].size, expected[i].size);
          cuts_a_tensor |= parts[i].begin > 0;
        }
      }
      int64_t total = 0;
      for (size_t i = 0; i < chosen.size(); ++i) {
        EXPECT_EQ(some.begin_of(i), total);
        total += sizes[chosen[i]];
      }
      EXPECT_EQ(end, total);
    }
  }
  EXPECT_TRUE(cuts_a_tensor) << "the tensors are too small";
}

// Lists that have fewer blocks than there are ranks.
TEST(Shards, ManyListsLeaveTheRanksWithAboutTheSame) {
  const int64_t block = Shards::kBlock;
  const std::vector<std::vector<int64_t>> lists{{5 * block + 7, 3}, {block}, {2 * block, 9}, {40, 41}, {3 * block + 1}};
  for (const ShardCut cut : {ShardCut::kBlocks, ShardCut::kTensors}) {
    for (const int size : {1, 2, 3, 8}) {
      std::vector<int64_t> loads(static_cast<size_t>(size), 0), owned = loads;
      for (int round = 0; round < 20; ++round) {
        for (const std::vector<int64_t>& sizes : lists) {
          const Shards shards(sizes, cut, loads);
          ASSERT_EQ(shards.num_ranks(), size);
          int64_t end = 0;
          for (int rank = 0; rank < size; ++rank) {
            EXPECT_EQ(shards.of(rank).begin, end);
            end = shards.of(rank).end;
            owned[static_cast<size_t>(rank)] += shards.of(rank).size();
          }
          EXPECT_EQ(end, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
        }
      }
      EXPECT_EQ(loads, owned);
      const auto [least, most] = std::ranges::minmax(loads);
      EXPECT_LE(most - least, (cut == ShardCut::kBlocks ? 2 : 11) * block) << size << " ranks";
    }
  }
}

TEST(Shards, FewTensorsLeaveRanksWithNothing) {
  const Shards shards(std::vector<int64_t>{10, 20}, 4);
  int num_owners = 0;
  for (int rank = 0; rank < 4; ++rank) num_owners += shards.of(rank).size() > 0 ? 1 : 0;
  EXPECT_EQ(num_owners, 2);
  EXPECT_EQ(shards.largest(), 20);
  EXPECT_TRUE(shards.parts({0, 0}).empty());
}

at::Tensor random_tensor(int64_t size, uint64_t seed, at::ScalarType type) {
  return test::drawn_once({size}, seed, type, [&] {
    RandomStream stream({seed, RandomPurpose::kTest, 0, 0, 0});
    const at::Tensor tensor = at::empty({size}, at::kDouble);
    for (double& value : std::span(tensor.mutable_data_ptr<double>(), static_cast<size_t>(size)))
      value = stream.next_normal();
    return tensor.to(type);
  });
}

// Two tensors of several blocks and a small one without decay, and the gradient of their next update.
struct Problem {
  std::vector<OptimizedParameter> parameters;

  explicit Problem(at::ScalarType type) {
    const std::vector<int64_t> sizes{2 * Shards::kBlock + 11, 37, Shards::kBlock + 3};
    for (size_t i = 0; i < sizes.size(); ++i)
      parameters.push_back({"p" + std::to_string(i), random_tensor(sizes[i], 50 + i, type), i != 1});
  }
  [[nodiscard]] std::vector<at::Tensor> gradients(uint64_t update) const {
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < parameters.size(); ++i)
      out.push_back(random_tensor(parameters[i].tensor.numel(), 100 * update + i, parameters[i].tensor.scalar_type()));
    return out;
  }
  // Every rank has the same whole gradient; a sharded optimizer takes its range.
  void update(AdamW& optimizer, int rank, uint64_t number, double& norm) const {
    const std::vector<at::Tensor> gradients = this->gradients(number);
    if (optimizer.is_sharded()) {
      for (ShardUnit& unit : optimizer.units()) {
        const FlatRange own = unit.shards.of(rank);
        unit.own_gradient = at::empty({own.size()}, gradients[0].options());
        const auto of_unit = std::span(gradients).subspan(unit.parameters.front(), unit.parameters.size());
        copy_from_tensors(unit.shards, of_unit, own, unit.own_gradient);
      }
    } else {
      for (size_t i = 0; i < gradients.size(); ++i) parameters[i].tensor.mutable_grad() = gradients[i];
    }
    norm = optimizer.grad_norm().value();
    ASSERT_OK(optimizer.step(1e-2, clip_factor(norm, 1.0)));
  }
};

// Three units have a parameter each, the last one first.
ZeroOptions in_units(Communicator& ranks, size_t num_units) {
  ZeroOptions zero{&ranks, 1};
  if (num_units == 3) zero.bucket_bytes = 1;
  return zero;
}

struct AfterUpdates {
  std::vector<at::Tensor> weights;
  std::vector<double> norms;
};

AfterUpdates learnt_alone(at::ScalarType type, uint64_t num_updates) {
  const Problem problem(type);
  AdamW optimizer(problem.parameters, {});
  AfterUpdates out;
  for (uint64_t update = 1; update <= num_updates; ++update)
    problem.update(optimizer, 0, update, out.norms.emplace_back());
  for (const OptimizedParameter& parameter : problem.parameters) out.weights.push_back(parameter.tensor);
  return out;
}

TEST(Zero, ShardedUpdatesHaveTheBitsOfWholeOnes) {
  at::set_num_threads(1);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const AfterUpdates expected = learnt_alone(type, 3);
    for (const auto& [size, num_units] : std::vector<std::pair<int, size_t>>{{2, 3}, {3, 1}, {5, 3}}) {
      on_ranks(size, [&, num_units = num_units](Communicator& ranks) {
        const Problem problem(type);
        AdamW optimizer(problem.parameters, {}, "actor.optim", in_units(ranks, num_units));
        ASSERT_EQ(optimizer.units().size(), num_units);
        for (uint64_t update = 1; update <= 3; ++update) {
          double norm = 0.0;
          problem.update(optimizer, ranks.rank(), update, norm);
          EXPECT_EQ(norm, expected.norms[update - 1]);
        }
        for (size_t i = 0; i < expected.weights.size(); ++i)
          EXPECT_TRUE(problem.parameters[i].tensor.equal(expected.weights[i])) << i << " in " << num_units << " units";
      });
    }
  }
}

// Sharded optimizers save together what a whole one would, and each loads what another number of ranks saved, in other
// units.
TEST(Zero, SavedStatesDoNotDependOnTheRanks) {
  at::set_num_threads(1);
  const AfterUpdates expected = learnt_alone(at::kFloat, 2);
  std::map<int, test::JoinedState> saved;
  for (const int size : {1, 2, 3}) {
    test::JoinedState& joined = saved[size];
    on_ranks(size, [&, size](Communicator& ranks) {
      const Problem problem(at::kFloat);
      AdamW optimizer(problem.parameters, {}, "actor.optim", in_units(ranks, size == 2 ? 3 : 1));
      double norm = 0.0;
      problem.update(optimizer, ranks.rank(), 1, norm);
      StateSnapshot snapshot;
      StateWriter writer("actor.optim", &snapshot);
      ASSERT_OK(optimizer.save_state(writer));
      ASSERT_OK(writer.status());
      const bool is_whole = size == 1;
      for (const TensorView& tensor : snapshot.tensors) EXPECT_EQ(tensor.source == nullptr, is_whole) << tensor.name;
      joined.add(snapshot);
    });
  }
  const StateSnapshot whole = saved[1].snapshot();
  for (const int from : {2, 3}) {
    const StateSnapshot state = saved[from].snapshot();
    ASSERT_EQ(state.tensors.size(), whole.tensors.size());
    for (size_t i = 0; i < state.tensors.size(); ++i) {
      EXPECT_EQ(state.tensors[i].name, whole.tensors[i].name);
      const auto a = state.tensors[i].bytes, b = whole.tensors[i].bytes;
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << state.tensors[i].name;
    }
    on_ranks(from == 2 ? 3 : 2, [&](Communicator& ranks) {
      const Problem problem(at::kFloat);
      AdamW alone(problem.parameters, {}),
          optimizer(problem.parameters, {}, "actor.optim", in_units(ranks, from == 2 ? 1 : 3));
      double norm = 0.0;
      problem.update(alone, 0, 1, norm);  // the weights
      StateReader reader("actor.optim", &state, "test");
      ASSERT_OK(optimizer.load_state(reader));
      EXPECT_TRUE(reader.unread_keys().empty());
      problem.update(optimizer, ranks.rank(), 2, norm);
      for (size_t i = 0; i < expected.weights.size(); ++i)
        EXPECT_TRUE(problem.parameters[i].tensor.equal(expected.weights[i])) << i << " from " << from << " ranks";
    });
  }
}

}  // namespace
}  // namespace mortise
