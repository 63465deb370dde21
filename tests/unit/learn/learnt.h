// What ranks have after updates of the policy, the critic or supervised ones, for tests that compare layouts of ranks.
#pragma once

#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "learn/update/critic_learner.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"
#include "support/thread_ranks.h"

namespace mortise {

inline constexpr RowsShape kShape{.vocab = 17, .groups = 5, .samples = 4, .max_length = 12};
inline const MicroBatchOptions kCut{3, 0};  // 7 micro-batches

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  bool on_policy = false;
  bool mixes = false;  // supervised rows into every update
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"token losses", {"actor.policy_loss.loss_mode=vanilla"}},
      {"on policy", {"actor.policy_loss.loss_mode=vanilla"}, true},
      {"row losses", {"actor.policy_loss.loss_mode=gspo"}},
      {"losses over the update", {"actor.policy_loss.loss_mode=clip_cov", "actor.policy_loss.clip_cov_ratio=0.2"}},
      {"masks over the update", {"actor.top_entropy_quantile=0.4", "actor.entropy_coeff=0.05"}},
      {"an estimated KL", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3"}},
      {"the whole KL", {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"}},
      {"supervised rows", {"actor.policy_loss.loss_mode=vanilla"}, false, true},
      {"supervised rows and the whole KL",
       {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"},
       false,
       true},
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

// Null: a rank has whole micro-batches.
inline std::shared_ptr<SequenceGroup> sequence_group_of(Communicator& communicator, int size, int tensor_size = 1) {
  return size == 1 ? nullptr : std::make_shared<SequenceGroup>(communicator, size, tensor_size);
}

inline void share(LearnerOptions& options, Communicator& communicator, bool deterministic, int sequence_size,
                  int tensor_size = 1) {
  options.ranks = {&communicator, deterministic};
  options.ranks.tensor_size = tensor_size;
  options.ranks.bucket_bytes = 4096;  // several buckets a layer
  options.ranks.round_bytes = 1000;   // several messages a bucket
  const auto group = sequence_group_of(communicator, sequence_size, tensor_size);
  options.share_tokens(group);
  options.reference_sequence = group;
}

// Packs are opened by one thread at a time.
inline std::unique_ptr<TestObjective> objective_of(const std::vector<std::string>& overrides) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return std::make_unique<TestObjective>(overrides);
}

// Copies of all weights, which have memory now.
inline std::vector<at::Tensor> weights_of(const Model& model) {
  std::vector<at::Tensor> weights;
  for (const NamedParameter& parameter : model.parameters()) weights.push_back(parameter.tensor.detach().clone());
  return weights;
}

// The same of gradients; of split layers those of the whole parameters.
inline std::vector<at::Tensor> gradients_of(const Model& model, const Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const at::Tensor own = optimizer.parameters()[i].tensor.grad();
    const bool is_split = model.model_part() != nullptr && !model.trains_lora();
    gradients.push_back(is_split ? model.model_part()->gathered(i, own).clone() : own.clone());
  }
  return gradients;
}

// `sequence_size`: ranks that share the tokens of each pass. `tensor_size`: ranks that share the layers.
inline Learnt learn(const Case& one, const std::string& dtype, Communicator& communicator, bool deterministic,
                    int64_t num_updates = 2, int64_t zero_stage = 0, int sequence_size = 1, int tensor_size = 1,
                    int64_t window_bytes = 0) {
  TestPolicy policy(dtype, kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage}, tensor_size, window_bytes),
      reference(dtype, kShape.vocab, 2, /*seed=*/6, {&communicator, zero_stage}, tensor_size, window_bytes);
  const auto objective = objective_of(one.overrides);
  const RandomRows data(one.on_policy, kShape), recorded(false, {.vocab = kShape.vocab, .groups = 8, .samples = 1});
  LearnerOptions options = cut_by(kCut);
  options.reference = &reference.model;
  if (deterministic) options.head.window_bytes = window_bytes;
  share(options, communicator, deterministic, sequence_size, tensor_size);
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
  out.weights = weights_of(policy.model);
  // With ZeRO no rank has the whole gradient.
  if (zero_stage == 0) out.gradients = gradients_of(policy.model, policy.optimizer);
  return out;
}

inline void expect_same_reports(const UpdateReport& a, const UpdateReport& b, double tolerance) {
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

// `same_passes`: before any update the weights are the same, and passes whose tokens lie on one rank do not depend on the
// ranks at all.
inline void expect_same(const Learnt& a, const Learnt& b, double tolerance, bool same_passes = true) {
  const auto expect_near = [&](const std::vector<float>& x, const std::vector<float>& y, const char* name) {
    ASSERT_EQ(x.size(), y.size()) << name;
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1.0F + std::abs(y[i]))) << name;
  };
  if (same_passes) {
    EXPECT_EQ(a.log_prob, b.log_prob);
    EXPECT_EQ(a.entropy, b.entropy);
    EXPECT_EQ(a.squared, b.squared);
  }
  expect_near(a.log_prob, b.log_prob, "log_prob");
  expect_near(a.entropy, b.entropy, "entropy");
  expect_near(a.squared, b.squared, "squared");
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

inline std::vector<at::Tensor> weights_after_critic(const std::string& dtype, Communicator& communicator,
                                                    bool deterministic, int64_t zero_stage, int sequence_size = 1,
                                                    int64_t window_bytes = 0) {
  TestPolicy base(dtype, kShape.vocab);
  ModelConfig config = as_classifier(base.model.config(), 1).value();
  Model model = Model::random(std::move(config), 3, dtype).value();
  AdamW optimizer(TestPolicy::parameters(model), {}, "critic.optim",
                  TestPolicy::spread_model(model, {&communicator, zero_stage}, false, window_bytes));
  RandomRows data(false, kShape);
  std::vector<float> returns;
  RandomStream stream({13, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t t = 0; t < data.batch.num_tokens(); ++t) returns.push_back(static_cast<float>(stream.next_normal()));
  data.batch.put<column::Returns>(std::move(returns));
  CriticOptions options;
  options.learner = cut_by(kCut);
  if (deterministic) options.learner.head.window_bytes = window_bytes;
  share(options.learner, communicator, deterministic, sequence_size);
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

inline std::vector<at::Tensor> weights_after_sft_of(TestPolicy& policy, Communicator& communicator, bool deterministic,
                                                    int sequence_size, int tensor_size, int64_t window_bytes = 0) {
  const RandomRows data(false, kShape);
  LearnerOptions options = cut_by(kCut);
  if (deterministic) options.head.window_bytes = window_bytes;
  share(options, communicator, deterministic, sequence_size, tensor_size);
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(sft_update(policy.model, policy.optimizer, data.batch, options, {1e-2, i + 1}).value().skipped);
  const auto whole = WholeWeights::gather({&policy.model}).value();
  return weights_of(policy.model);
}

inline std::vector<at::Tensor> weights_after_sft(const std::string& dtype, Communicator& communicator,
                                                 bool deterministic, int64_t zero_stage, int sequence_size = 1,
                                                 int64_t window_bytes = 0) {
  TestPolicy policy(dtype, kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage}, 1, window_bytes);
  return weights_after_sft_of(policy, communicator, deterministic, sequence_size, 1, window_bytes);
}

}  // namespace mortise
