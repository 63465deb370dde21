// Gradients are sent while backward runs: which buckets there are, when each is complete, and who may touch them.
#include "learn/update/ready_gradients.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

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

// Sums arrive when they are waited for. Before that nobody may read what is on its way, or write to it.
class LateRank : public test::ThreadRank {
 public:
  using ThreadRank::ThreadRank;
  const Optimizer* optimizer = nullptr;  // null: nothing is noted
  std::vector<int64_t> num_stored;       // gradients that this rank has, by sum that is started

  Result<std::unique_ptr<PendingCollective>> start_all_reduce_sum(const at::Tensor& tensor,
                                                                  std::string_view stage) override {
    if (optimizer != nullptr) {
      num_stored.push_back(std::ranges::count_if(
          optimizer->parameters(), [](const OptimizedParameter& one) { return one.tensor.grad().defined(); }));
    }
    const at::Tensor sum = tensor.clone();
    TRY(all_reduce_sum(sum, stage));
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    return std::unique_ptr<PendingCollective>(std::make_unique<Late>(tensor, sum));
  }

 private:
  class Late : public PendingCollective {
   public:
    Late(at::Tensor to, at::Tensor sum) : to_(std::move(to)), sum_(std::move(sum)) {}
    Result<> wait() override {
      to_.copy_(sum_);
      return {};
    }

   private:
    at::Tensor to_, sum_;
  };
};

void on_late_ranks(int size, const std::function<void(LateRank&)>& work) {
  test::MeetingPoint point(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      LateRank ranks(point, rank, size);
      work(ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BucketSums, AreStartedWhileBackwardRuns) {
  on_late_ranks(2, [](LateRank& ranks) {
    TestPolicy policy("float64", kShape.vocab, 4, /*seed=*/5, {&ranks, 0});
    ranks.optimizer = &policy.optimizer;
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    const RandomRows data(false, kShape);
    LearnerOptions options = cut_by({12, 0});  // three groups, and two: a micro-batch for each rank
    share(options, ranks, false, 1);
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    ASSERT_OK(learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}));
    const auto all = static_cast<int64_t>(policy.optimizer.parameters().size());
    ASSERT_GT(ranks.num_stored.size(), 8U);
    EXPECT_LT(ranks.num_stored.front(), all / 4) << "the last layer's go first";
    EXPECT_GE(std::ranges::count_if(ranks.num_stored, [&](int64_t stored) { return stored < all; }), 8);
    EXPECT_EQ(ranks.num_stored.back(), all);
  });
}

// Seven micro-batches on two and three ranks, some of which have none in the last round; losses that see the whole update.
TEST(BucketSums, NobodyReadsWhatIsOnItsWay) {
  for (const size_t i : {0U, 3U, 7U}) {
    const Case& one = cases()[i];
    const Learnt alone_did = learn(one, "float64", alone(), false);
    for (const int size : {2, 3, 9}) {
      SCOPED_TRACE(std::string(one.name) + " on " + std::to_string(size) + " ranks");
      std::vector<Learnt> by_rank(static_cast<size_t>(size));
      on_late_ranks(size, [&](LateRank& ranks) {
        by_rank[static_cast<size_t>(ranks.rank())] = learn(one, "float64", ranks, false);
      });
      for (const Learnt& rank : by_rank) expect_same(rank, alone_did, 1e-12);
    }
  }
}

}  // namespace
}  // namespace mortise
