// Updates of several ranks: the same numbers as of one, to rounding by default, and to the bit with
// trainer.deterministic. Losses of every coupling, the KL over the whole vocabulary, the critic and supervised updates.
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <set>

#include "learnt.h"
#include "support/long_run.h"

namespace mortise {
namespace {

using test::on_ranks;

// Numbers of ranks with a stage of ZeRO. Of nine ranks, two have no micro-batch.
const std::vector<std::pair<int, int>> kRuns{{2, 0}, {3, 0}, {4, 0}, {9, 0}, {2, 1}, {3, 1}, {9, 1},
                                             {2, 2}, {3, 2}, {9, 2}, {2, 3}, {3, 3}, {9, 3}};

// Every third run, and other ones for the next case: each run has a third of the cases. MORTISE_LONG=1 takes all.
std::vector<std::pair<int, int>> third_of_runs(size_t index_of_case) {
  if (test::is_long()) return kRuns;
  std::vector<std::pair<int, int>> some;
  for (size_t i = index_of_case % 3; i < kRuns.size(); i += 3) some.push_back(kRuns[i]);
  return some;
}

// Every rank's outcome against that of one rank.
void compare_ranks(const Case& one, const std::string& dtype, bool deterministic, double tolerance,
                   const std::vector<std::pair<int, int>>& runs) {
  const Learnt alone_did = learn(one, dtype, alone(), deterministic);
  for (const auto& [size, stage] : runs) {
    SCOPED_TRACE(std::string(one.name) + ", " + dtype + ", " + std::to_string(size) + " ranks, ZeRO " +
                 std::to_string(stage));
    std::vector<Learnt> by_rank(static_cast<size_t>(size));
    on_ranks(size, [&, stage = stage](Communicator& communicator) {
      by_rank[static_cast<size_t>(communicator.rank())] = learn(one, dtype, communicator, deterministic, 2, stage);
    });
    expect_same(by_rank[0], alone_did, tolerance);
    for (const Learnt& other : by_rank) expect_same(other, by_rank[0], 0.0);  // ranks never differ among themselves
  }
}

TEST(Ranks, Float64UpdatesAreEqualTo1e12) {
  for (size_t i = 0; i < cases().size(); ++i) compare_ranks(cases()[i], "float64", false, 1e-12, third_of_runs(i));
}

TEST(Ranks, Float32UpdatesAreEqualTo1e6) {
  const std::pair<int, int> whole[] = {{2, 0}, {3, 0}, {4, 0}}, shared[] = {{3, 1}, {4, 2}, {2, 3}};
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& one = cases()[i];
    // One update: Adam divides by the root of tiny squares, so that noise decides on the sign of its step where a
    // gradient is nearly 0.
    const Learnt alone_did = learn(one, "float32", alone(), false, 1);
    for (const auto& [size, stage] : {whole[i % 3], shared[i % 3]}) {
      SCOPED_TRACE(std::string(one.name) + ", " + std::to_string(size) + " ranks, ZeRO " + std::to_string(stage));
      std::vector<Learnt> by_rank(static_cast<size_t>(size));
      on_ranks(size, [&, stage = stage](Communicator& communicator) {
        by_rank[static_cast<size_t>(communicator.rank())] = learn(one, "float32", communicator, false, 1, stage);
      });
      expect_same_reports(by_rank[0].reports[0], alone_did.reports[0], 1e-6);
      if (stage == 0)  // else ranks have parts of it, whose norm is in the report
        EXPECT_LE(relative_l2_of_all(by_rank[0].gradients, alone_did.gradients), 1e-6);
    }
  }
}

TEST(Ranks, DeterministicUpdatesAreEqualToTheBit) {
  for (size_t i = 0; i < cases().size(); ++i) {
    compare_ranks(cases()[i], "float64", true, 0.0, third_of_runs(i + 2));
    compare_ranks(cases()[i], "float32", true, 0.0, third_of_runs(i + 1));
  }
}

// Each rank rounds the weights that all have, whoever stepped them.
TEST(Ranks, DeterministicBfloat16UpdatesAreEqualToTheBit) {
  const Case& one = cases().front();
  const Learnt alone_did = learn(one, "bfloat16", alone(), true);
  for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{2, 0}, {3, 1}, {3, 2}}) {
    std::vector<Learnt> by_rank(static_cast<size_t>(size));
    on_ranks(size, [&, stage = stage](Communicator& communicator) {
      by_rank[static_cast<size_t>(communicator.rank())] = learn(one, "bfloat16", communicator, true, 2, stage);
    });
    for (const Learnt& rank : by_rank) expect_same(rank, alone_did, 0.0);
  }
}

// Both ways add the same numbers.
TEST(Ranks, TheTreeGivesTheSameGradientAsTheSum) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    expect_same(learn(one, "float64", alone(), true), learn(one, "float64", alone(), false), 1e-12);
  }
}

// No pass of this token is finite.
void spoil_embedding(const Model& model, int64_t token) {
  const c10::NoGradGuard no_grad;
  const at::Tensor embedding = model.embedding_weight();
  const FlatRange row{token * embedding.size(1), (token + 1) * embedding.size(1)};
  const WeightShards* const shards = shards_of(model);
  const FlatRange own = shards != nullptr ? shards->shards_of(0).of(shards->rank()) : FlatRange{0, embedding.numel()};
  const FlatRange part = own.within(row);
  if (part.size() == 0) return;
  (shards != nullptr ? shards->numbers(0) : embedding.view({-1}))
      .narrow(0, part.begin - own.begin, part.size())
      .fill_(std::numeric_limits<float>::quiet_NaN());
}

// A rank whose own micro-batches are all finite learns of the others'.
TEST(Ranks, OneRankWithoutFiniteLogProbsSkipsTheUpdateOfAll) {
  const RandomRows data(false, kShape);
  // The token of the fewest rows: only theirs have log-probs that are not finite.
  std::vector<int64_t> num_rows(static_cast<size_t>(kShape.vocab), 0);
  for (size_t row = 0; row < data.prompts.size(); ++row) {
    std::set<int64_t> ids(data.prompts[row].begin(), data.prompts[row].end());
    ids.insert(data.responses[row].begin(), data.responses[row].end());
    for (const int64_t id : ids) ++num_rows[static_cast<size_t>(id)];
  }
  std::ranges::replace(num_rows, 0, 1000);
  const int64_t token = std::ranges::min_element(num_rows) - num_rows.begin();
  ASSERT_LT(num_rows[static_cast<size_t>(token)], 10);
  int64_t zero_stage = 0, window_bytes = 0;
  const auto run = [&](Communicator& communicator) {
    TestPolicy policy("float32", kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage}, 1, window_bytes);
    spoil_embedding(policy.model, token);
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    LearnerOptions options = cut_by({1, 0});
    options.ranks = {&communicator, false};
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    const std::vector<float> log_prob = learner.log_probs(policy.model, data.batch).value();
    EXPECT_TRUE(std::ranges::any_of(log_prob, [](float value) { return std::isfinite(value); }));
    const UpdateReport report = learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}).value();
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(std::isnan(report.grad_norm));
    EXPECT_EQ(policy.optimizer.num_updates(), 0);
    for (const ShardUnit& unit : policy.optimizer.units())
      EXPECT_FALSE(unit.own_gradient.defined()) << "a skipped update needs no memory";
  };
  run(alone());
  for (; zero_stage <= 3; ++zero_stage) on_ranks(4, run);
  zero_stage = 3;
  window_bytes = 1;
  on_ranks(4, run);
}

TEST(Ranks, CriticAndSupervisedUpdatesAreEqualToo) {
  for (const auto& weights_after : {&weights_after_critic, &weights_after_sft}) {
    for (const bool deterministic : {false, true}) {
      const std::vector<at::Tensor> expected = weights_after("float64", alone(), deterministic, 0, 1, 1);
      for (const auto& [size, stage] :
           std::vector<std::pair<int, int>>{{2, 0}, {3, 0}, {4, 0}, {2, 1}, {3, 2}, {2, 3}, {3, 3}}) {
        on_ranks(size, [&, stage = stage](Communicator& communicator) {
          const std::vector<at::Tensor> weights = weights_after("float64", communicator, deterministic, stage, 1, 1);
          for (size_t i = 0; i < weights.size(); ++i) {
            if (deterministic)
              EXPECT_TRUE(weights[i].equal(expected[i])) << i;
            else
              EXPECT_LE((weights[i] - expected[i]).norm().item<double>(), 1e-12 * expected[i].norm().item<double>());
          }
        });
      }
    }
  }
}

TEST(Ranks, LoadsAreDealtEvenly) {
  const std::vector<int64_t> loads{9, 8, 7, 6, 5, 4, 3, 2, 1};
  for (const bool in_ranges : {false, true}) {
    for (const int size : {1, 2, 3, 4}) {
      const std::vector<int> owners = in_ranges ? deal_in_ranges(loads, size) : deal_by_load(loads, size);
      std::vector<int64_t> sums(static_cast<size_t>(size), 0);
      for (size_t i = 0; i < loads.size(); ++i) sums[static_cast<size_t>(owners[i])] += loads[i];
      const auto [least, most] = std::ranges::minmax(sums);
      EXPECT_LE(most - least, in_ranges ? 9 : 3) << size;
      EXPECT_TRUE(!in_ranges || std::ranges::is_sorted(owners));
    }
  }
  EXPECT_EQ(deal_in_ranges(std::vector<int64_t>{0, 0, 0}, 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(deal_by_load(std::vector<int64_t>{0, 0, 0}, 3), (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace mortise
