// Gradients are sent while backward runs: which buckets there are, when each is complete, and who may touch them.
#include "learn/update/ready_gradients.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "late_rank.h"
#include "learn/update/owner_sums.h"
#include "learnt.h"

namespace mortise {

void PrintTo(const ParameterRange& range, std::ostream* out) { *out << "[" << range.begin << ", " << range.end << ")"; }
bool operator==(const ParameterRange& a, const ParameterRange& b) { return a.begin == b.begin && a.end == b.end; }

namespace {

using testing::ElementsAre;

OptimizedParameter leaf(const std::string& name, int64_t size = 1, at::ScalarType type = at::kFloat) {
  return {name, at::ones({size}, type).set_requires_grad(true)};
}

std::vector<OptimizedParameter> parameters_of_a_model() {
  return {leaf("model.embed_tokens.weight", 8),
          leaf("model.layers.0.mlp.up_proj.weight", 4),
          leaf("model.layers.0.input_layernorm.weight"),
          leaf("model.layers.1.mlp.up_proj.weight", 4),
          leaf("model.layers.1.input_layernorm.weight"),
          leaf("model.norm.weight"),
          leaf("lm_head.weight", 8)};
}

TEST(BackwardGroups, GoFromTheHeadOverTheLayersToTheEmbedding) {
  EXPECT_THAT(backward_groups(parameters_of_a_model(), 1000),
              ElementsAre(ParameterRange{6, 7}, ParameterRange{1, 5}, ParameterRange{5, 6}, ParameterRange{0, 1}));
}

TEST(BackwardGroups, HaveAtMostSoManyBytesOfOneType) {
  std::vector<OptimizedParameter> parameters = parameters_of_a_model();
  EXPECT_THAT(backward_groups(parameters, 20),
              ElementsAre(ParameterRange{6, 7}, ParameterRange{3, 5}, ParameterRange{1, 3}, ParameterRange{5, 6},
                          ParameterRange{0, 1}));
  EXPECT_EQ(backward_groups(parameters, 1).size(), parameters.size());
  parameters[2] = leaf("model.layers.0.input_layernorm.weight", 1, at::kDouble);
  EXPECT_THAT(backward_groups(parameters, 1000),
              ElementsAre(ParameterRange{6, 7}, ParameterRange{3, 5}, ParameterRange{2, 3}, ParameterRange{1, 2},
                          ParameterRange{5, 6}, ParameterRange{0, 1}));
}

// A chain of three layers, the second of which has an expert that no token reaches.
struct Chain {
  std::vector<OptimizedParameter> parameters{leaf("model.layers.0.w"), leaf("model.layers.1.w"),
                                             leaf("model.layers.1.experts.0.w"), leaf("model.layers.2.w")};
  at::Tensor input = at::ones({1}).set_requires_grad(true);
  ReadyGradients ready{parameters, backward_groups(parameters, 1)};

  [[nodiscard]] std::string stored() const {
    std::string out;
    for (const OptimizedParameter& one : parameters) out += one.tensor.grad().defined() ? '1' : '0';
    return out;
  }
  [[nodiscard]] at::Tensor output() const {
    return input * parameters[0].tensor * parameters[1].tensor * parameters[3].tensor;
  }
};

TEST(ReadyGradients, AreToldAsSoonAsTheyAndThoseBeforeThemAreStored) {
  Chain chain;
  std::vector<std::pair<size_t, std::string>> told;
  const at::Tensor out = chain.output();
  ASSERT_OK(chain.ready.run([&] { out.backward(); },
                            [&](size_t group) -> Result<> {
                              told.emplace_back(group, chain.stored());
                              return {};
                            }));
  // Nobody knows before the end that the expert (the group 1) gets nothing.
  EXPECT_THAT(told,
              ElementsAre(std::pair(0U, "0001"), std::pair(1U, "1101"), std::pair(2U, "1101"), std::pair(3U, "1101")));
  // The next pass is not watched any more.
  told.clear();
  chain.output().backward();
  EXPECT_TRUE(told.empty());
}

TEST(ReadyGradients, TheFirstErrorEndsTheCallsButNotThePass) {
  const Chain chain;
  size_t num_calls = 0;
  const at::Tensor out = chain.output();
  const Result<> done = chain.ready.run([&] { out.backward(); },
                                        [&](size_t) -> Result<> {
                                          ++num_calls;
                                          return Error{ErrorKind::kRankFailure, "rank 1 was killed", "", ""};
                                        });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().what, "rank 1 was killed");
  EXPECT_EQ(num_calls, 1U);
  EXPECT_EQ(chain.stored(), "1101");
}

// A pass that stores twice what was sent already would lose the second term.
TEST(ReadyGradients, AGradientThatChangesAfterItWasToldIsAnError) {
  const Chain chain;
  const at::Tensor first = chain.output(), second = chain.output();
  const Result<> done = chain.ready.run(
      [&] {
        first.backward();
        second.backward();
      },
      [](size_t) -> Result<> { return {}; });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().what, "the gradient of model.layers.2.w has changed after it was sent");
}

// An update of micro-batches of so many rows, five groups of four in all.
Result<UpdateReport> update_on(LateRank& ranks, TestPolicy& policy, int64_t rows) {
  const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
  const RandomRows data(false, kShape);
  LearnerOptions options = cut_by({rows, 0});
  share(options, ranks, false, 1);
  ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
  return learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2});
}

TEST(BucketSums, AreStartedWhileBackwardRuns) {
  on_late_ranks(2, [](LateRank& ranks) {
    TestPolicy policy("float64", kShape.vocab, 4, /*seed=*/5, {&ranks, 0});
    ranks.optimizer = &policy.optimizer;
    ASSERT_OK(update_on(ranks, policy, 12));  // three groups, and two: a micro-batch for each rank
    const auto all = static_cast<int64_t>(policy.optimizer.parameters().size());
    ASSERT_GT(ranks.num_stored.size(), 8U);
    EXPECT_LT(ranks.num_stored.front(), all / 4) << "the last layer's go first";
    EXPECT_GE(std::ranges::count_if(ranks.num_stored, [&](int64_t stored) { return stored < all; }), 8);
    EXPECT_EQ(ranks.num_stored.back(), all);
  });
}

// What has left is freed. With stage 2, that is so in every pass; with stage 1, a rank's gradients pile up before its
// last one.
TEST(OwnerSums, GradientsLeaveWhileBackwardRuns) {
  const std::vector<std::tuple<int64_t, int64_t, bool>> runs{
      {1, 12, false}, {1, 4, true}, {2, 12, false}, {2, 4, false}};
  for (const auto& [stage, rows, keeps_all] : runs) {
    SCOPED_TRACE("ZeRO " + std::to_string(stage) + ", " + std::to_string(rows) + " rows in a micro-batch");
    on_late_ranks(2, [&, stage = stage, rows = rows, keeps_all = keeps_all](LateRank& ranks) {
      TestPolicy policy("float64", kShape.vocab, 4, /*seed=*/5, {&ranks, stage});
      ranks.optimizer = &policy.optimizer;
      ASSERT_OK(update_on(ranks, policy, rows));
      const auto all = static_cast<int64_t>(policy.optimizer.parameters().size());
      ASSERT_GT(ranks.num_stored.size(), 8U);
      EXPECT_EQ(*std::ranges::max_element(ranks.num_stored) > all / 2, keeps_all);
      EXPECT_EQ(ranks.num_stored.back(), 0);
      EXPECT_EQ(ranks.most_on_their_way, static_cast<int64_t>(OwnerSums::kMostRounds));
      for (const OptimizedParameter& one : policy.optimizer.parameters()) EXPECT_FALSE(one.tensor.grad().defined());
    });
  }
}

// A message that is lost in a pass ends the update on every rank, and leaves no sum behind.
TEST(OwnerSums, AFailureInAPassEndsTheUpdateOfAll) {
  for (const int64_t stage : {1, 2}) {
    on_late_ranks(3, [&](LateRank& ranks) {
      TestPolicy policy("float64", kShape.vocab, 2, /*seed=*/5, {&ranks, stage});
      if (ranks.rank() == 1) ranks.fail_at("gradients", 5);
      const Result<UpdateReport> report = update_on(ranks, policy, 3);
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.error().what, "rank 1 lost its connection");
      for (const ShardUnit& unit : policy.optimizer.units()) EXPECT_FALSE(unit.own_gradient.defined());
    });
  }
}

// Seven micro-batches on two and three ranks, some of which have none in the last round; losses that see the whole update.
TEST(BucketSums, NobodyReadsWhatIsOnItsWay) {
  const std::vector<std::pair<int, int64_t>> runs{{2, 0}, {3, 0}, {9, 0}, {2, 1}, {3, 2},
                                                  {9, 1}, {2, 2}, {3, 1}, {9, 2}};
  for (const size_t i : {0U, 3U, 7U}) {
    const Case& one = cases()[i];
    const Learnt alone_did = learn(one, "float64", alone(), false);
    for (size_t run = 0; run < runs.size(); ++run) {
      const auto [size, stage] = runs[run];
      if (stage > 0 && (run / 2 + i) % 2 != 0) continue;  // half of those with owners for each case, with both stages
      SCOPED_TRACE(std::string(one.name) + " on " + std::to_string(size) + " ranks, ZeRO " + std::to_string(stage));
      std::vector<Learnt> by_rank(static_cast<size_t>(size));
      on_late_ranks(size, [&, stage = stage](LateRank& ranks) {
        by_rank[static_cast<size_t>(ranks.rank())] = learn(one, "float64", ranks, false, 2, stage);
      });
      for (const Learnt& rank : by_rank) expect_same(rank, alone_did, 1e-12);
    }
  }
}

}  // namespace
}  // namespace mortise
