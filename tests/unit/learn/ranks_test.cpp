// Updates of several ranks: the same numbers as of one, to rounding by default, and to the bit with
// trainer.deterministic. Losses of every coupling, the KL over the whole vocabulary, the critic and supervised updates.
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <set>

#include "learn/update/critic_learner.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;

constexpr RowsShape kShape{.vocab = 17, .groups = 5, .samples = 4, .max_length = 12};
const MicroBatchOptions kCut{3, 0};  // 7 micro-batches

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  bool on_policy = false;
  bool mixes = false;  // supervised rows into every update
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"token losses", {"actor.policy_loss.loss_mode=vanilla"}},
      {"on policy", {"actor.policy_loss.loss_mode=vanilla"}, true},
      {"row losses", {"actor.policy_loss.loss_mode=gspo"}},
      {"losses over the update", {"actor.policy_loss.loss_mode=clip_cov", "actor.policy_loss.clip_cov_ratio=0.2"}},
      {"masks over the update", {"actor.top_entropy_quantile=0.4", "actor.entropy_coeff=0.05"}},
      {"an estimated KL", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3"}},
      {"the whole KL", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"}},
      {"supervised rows", {"actor.policy_loss.loss_mode=vanilla"}, false, true},
      {"supervised rows and masks over the update", {"actor.top_entropy_quantile=0.4"}, false, true},
  };
  return all;
}

// What one rank has after two updates.
struct Learnt {
  std::vector<at::Tensor> weights, gradients;
  std::vector<UpdateReport> reports;
  std::vector<float> log_prob, entropy, squared, first_log_prob;
  std::vector<float> trace_log_prob, trace_entropy, trace_clipped;
};

// Packs are opened by one thread at a time.
std::unique_ptr<TestObjective> objective_of(const std::vector<std::string>& overrides) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return std::make_unique<TestObjective>(overrides);
}

Learnt learn(const Case& one, const std::string& dtype, Communicator& communicator, bool deterministic,
             int64_t num_updates = 2, int64_t zero_stage = 0) {
  TestPolicy policy(dtype, kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage}),
      reference(dtype, kShape.vocab, 2, /*seed=*/6, {&communicator, zero_stage});
  const auto objective = objective_of(one.overrides);
  const RandomRows data(one.on_policy, kShape), recorded(false, {.vocab = kShape.vocab, .groups = 8, .samples = 1});
  LearnerOptions options = cut_by(kCut);
  options.reference = &reference.model;
  options.ranks = {&communicator, deterministic};
  ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
  Learnt out;
  out.log_prob = learner.log_probs(policy.model, data.batch, nullptr, &out.entropy).value();
  out.squared = learner.sums_of_squared_probs(policy.model, data.batch).value();
  for (auto* column : {&out.first_log_prob, &out.trace_log_prob, &out.trace_entropy, &out.trace_clipped})
    column->resize(static_cast<size_t>(data.batch.num_tokens()));
  for (int64_t update = 1; update <= num_updates; ++update) {
    UpdatePlace place{.lr = 1e-2, .update_index = update, .log_prob_out = out.first_log_prob};
    if (one.mixes) place.mix = {{&recorded.batch, true, 2}, 0.4};
    place.trace = {out.trace_log_prob, out.trace_entropy, out.trace_clipped};
    out.reports.push_back(learner.update(data.batch, all_rows(data.batch), place).value());
  }
  const auto whole = WholeWeights::gather({&policy.model}).value();
  for (const OptimizedParameter& parameter : policy.optimizer.parameters()) {
    out.weights.push_back(parameter.tensor.detach().clone());
    // With ZeRO no rank has the whole gradient.
    if (zero_stage == 0) out.gradients.push_back(parameter.tensor.grad().clone());
  }
  return out;
}

void expect_same_reports(const UpdateReport& a, const UpdateReport& b, double tolerance) {
  const auto near = [&](double x, double y, const std::string& name) {
    EXPECT_NEAR(x, y, tolerance * (1.0 + std::abs(y))) << name;
  };
  near(a.sums.loss, b.sums.loss, "loss");
  near(a.sums.kl, b.sums.kl, "kl");
  near(a.sums.entropy, b.sums.entropy, "entropy");
  near(a.grad_norm, b.grad_norm, "grad_norm");
  EXPECT_EQ(a.sums.num_tokens, b.sums.num_tokens);
  const auto x = a.metrics.values(), y = b.metrics.values();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) near(x[i].value, y[i].value, y[i].name);
}

void expect_same(const Learnt& a, const Learnt& b, double tolerance) {
  const auto expect_near = [&](const std::vector<float>& x, const std::vector<float>& y, const char* name) {
    ASSERT_EQ(x.size(), y.size()) << name;
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1.0F + std::abs(y[i]))) << name;
  };
  // Before any update the weights are the same, and the passes do not depend on the ranks at all.
  EXPECT_EQ(a.log_prob, b.log_prob);
  EXPECT_EQ(a.entropy, b.entropy);
  EXPECT_EQ(a.squared, b.squared);
  expect_near(a.first_log_prob, b.first_log_prob, "first_log_prob");
  expect_near(a.trace_log_prob, a.first_log_prob, "trace of log-probs");
  expect_near(a.trace_log_prob, b.trace_log_prob, "trace of log-probs");
  expect_near(a.trace_entropy, b.trace_entropy, "trace of entropies");
  EXPECT_EQ(a.trace_clipped, b.trace_clipped);
  for (size_t i = 0; i < a.reports.size(); ++i) expect_same_reports(a.reports[i], b.reports[i], tolerance);
  for (size_t i = 0; i < a.weights.size(); ++i) {
    if (tolerance > 0.0) {
      // The gradient of a key's bias is 0 but for rounding, and Adam makes steps of any gradient.
      const double scale = 1.0 + b.weights[i].norm().item<double>();
      EXPECT_LE((a.weights[i] - b.weights[i]).norm().item<double>(), tolerance * scale) << i;
    } else {
      EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << i;
      const bool are_whole = !a.gradients.empty() && !b.gradients.empty();
      EXPECT_TRUE(!are_whole || a.gradients[i].equal(b.gradients[i])) << i;
    }
  }
}

// Every rank's outcome against that of one rank.
void compare_ranks(const Case& one, const std::string& dtype, bool deterministic, double tolerance) {
  const Learnt alone_did = learn(one, dtype, alone(), deterministic);
  for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{2, 0},
                                                                    {3, 0},
                                                                    {4, 0},
                                                                    {9, 0},
                                                                    {2, 1},
                                                                    {3, 1},
                                                                    {9, 1},
                                                                    {2, 2},
                                                                    {3, 2},
                                                                    {9, 2},
                                                                    {2, 3},
                                                                    {3, 3},
                                                                    {9, 3}}) {  // 9: two have no micro-batch
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
  for (const Case& one : cases()) compare_ranks(one, "float64", false, 1e-12);
}

TEST(Ranks, Float32UpdatesAreEqualTo1e6) {
  for (const Case& one : cases()) {
    // One update: Adam divides by the root of tiny squares, so that noise decides on the sign of its step where a
    // gradient is nearly 0.
    SCOPED_TRACE(one.name);
    const Learnt alone_did = learn(one, "float32", alone(), false, 1);
    std::vector<Learnt> by_rank(3);
    on_ranks(3, [&](Communicator& communicator) {
      by_rank[static_cast<size_t>(communicator.rank())] = learn(one, "float32", communicator, false, 1);
    });
    expect_same_reports(by_rank[0].reports[0], alone_did.reports[0], 1e-6);
    double squared_difference = 0.0, squared_norm = 0.0;
    for (size_t i = 0; i < alone_did.gradients.size(); ++i) {
      const double norm = alone_did.gradients[i].norm().item<double>();
      const double difference = (by_rank[0].gradients[i] - alone_did.gradients[i]).norm().item<double>();
      squared_norm += norm * norm;
      squared_difference += difference * difference;
    }
    EXPECT_GT(squared_norm, 0.0);
    EXPECT_LE(std::sqrt(squared_difference / squared_norm), 1e-6);
  }
}

TEST(Ranks, DeterministicUpdatesAreEqualToTheBit) {
  for (const Case& one : cases()) {
    compare_ranks(one, "float64", true, 0.0);
    compare_ranks(one, "float32", true, 0.0);
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
  int64_t zero_stage = 0;
  const auto run = [&](Communicator& communicator) {
    TestPolicy policy("float32", kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage});
    {
      const c10::NoGradGuard no_grad;
      const auto whole = WholeWeights::gather({&policy.model}).value();
      for (NamedParameter& parameter : policy.model.parameters()) {
        if (parameter.name == "model.embed_tokens.weight")
          parameter.tensor[token].fill_(std::numeric_limits<float>::quiet_NaN());
      }
      if (WeightShards* const shards = shards_of(policy.model)) shards->take_changes();
    }
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
  };
  run(alone());
  for (; zero_stage <= 3; ++zero_stage) on_ranks(4, run);
}

std::vector<at::Tensor> weights_after_critic(const std::string& dtype, Communicator& communicator, bool deterministic,
                                             int64_t zero_stage) {
  TestPolicy base(dtype, kShape.vocab);
  ModelConfig config = as_classifier(base.model.config(), 1).value();
  Model model = Model::random(std::move(config), 3, dtype).value();
  AdamW optimizer(TestPolicy::parameters(model), {}, "critic.optim",
                  TestPolicy::spread_model(model, {&communicator, zero_stage}));
  RandomRows data(false, kShape);
  std::vector<float> returns;
  RandomStream stream({13, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t t = 0; t < data.batch.num_tokens(); ++t) returns.push_back(static_cast<float>(stream.next_normal()));
  data.batch.put<column::Returns>(std::move(returns));
  CriticOptions options;
  options.learner = cut_by(kCut);
  options.learner.ranks = {&communicator, deterministic};
  CriticLearner learner(model, optimizer, options);
  for (int i = 0; i < 2; ++i) {
    data.batch.put<column::Values>(learner.values(data.batch).value());
    EXPECT_FALSE(learner.update(data.batch, all_rows(data.batch), 1e-2).value().skipped);
  }
  std::vector<at::Tensor> weights;
  const auto whole = WholeWeights::gather({&model}).value();
  for (const OptimizedParameter& parameter : optimizer.parameters())
    weights.push_back(parameter.tensor.detach().clone());
  return weights;
}

std::vector<at::Tensor> weights_after_sft(const std::string& dtype, Communicator& communicator, bool deterministic,
                                          int64_t zero_stage) {
  TestPolicy policy(dtype, kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage});
  const RandomRows data(false, kShape);
  LearnerOptions options = cut_by(kCut);
  options.ranks = {&communicator, deterministic};
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(sft_update(policy.model, policy.optimizer, data.batch, options, {1e-2, i + 1}).value().skipped);
  std::vector<at::Tensor> weights;
  const auto whole = WholeWeights::gather({&policy.model}).value();
  for (const OptimizedParameter& parameter : policy.optimizer.parameters())
    weights.push_back(parameter.tensor.detach().clone());
  return weights;
}

TEST(Ranks, CriticAndSupervisedUpdatesAreEqualToo) {
  for (const auto& weights_after : {&weights_after_critic, &weights_after_sft}) {
    for (const bool deterministic : {false, true}) {
      const std::vector<at::Tensor> expected = weights_after("float64", alone(), deterministic, 0);
      for (const auto& [size, stage] :
           std::vector<std::pair<int, int>>{{2, 0}, {3, 0}, {4, 0}, {2, 1}, {3, 2}, {2, 3}, {3, 3}}) {
        on_ranks(size, [&, stage = stage](Communicator& communicator) {
          const std::vector<at::Tensor> weights = weights_after("float64", communicator, deterministic, stage);
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
