// Updates over what the sampler's filters leave: log-probs, and gradients for every cut of the rows.
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>

#include "learner_fixture.h"

namespace mortise {
namespace {

void put_sample_mask(StepTable& batch) {
  const auto mask = batch.get<column::ResponseMask>();
  batch.put<column::SampleMask>({mask.begin(), mask.end()});
}

// Top-k of plain torch: log-probs among the eight likeliest tokens, where the sampled one is among them.
TEST(FilteredLearner, LogProbsAreThoseOfTheKeptTokens) {
  TestObjective run({});
  TestPolicy policy("float64");
  RandomRows data(false);
  put_sample_mask(data.batch);
  LearnerOptions options = cut_by({3, 0});
  options.temperature = 0.7;
  ActorLearner learner(policy.model, policy.optimizer, run.objective, options);
  const KeptCount count = learner.keep_tokens(data.batch, {.temperature = 0.7, .top_k = 8}).value();
  const std::vector<float> have = learner.log_probs(policy.model, data.batch).value();
  const PackedForward forward = forward_rows(policy.model, data.batch, all_rows(data.batch)).value();
  const at::Tensor logits = head_logits(forward.hidden_RH, policy.model.head()) / 0.7;
  int64_t num_missing = 0, num_tokens = 0;
  for (int64_t t = 0; t < data.batch.num_tokens(); ++t) {
    if (data.batch.get<column::SampleMask>()[static_cast<size_t>(t)] == 0) continue;
    ++num_tokens;
    const at::Tensor top = std::get<0>(at::topk(logits[t], 8));
    const double target = logits[t][forward.targets_R[t].item<int64_t>()].item<double>();
    const bool is_kept = target >= top[7].item<double>();
    num_missing += is_kept ? 0 : 1;
    const double sum = top.exp().sum().item<double>() + (is_kept ? 0.0 : std::exp(target));
    EXPECT_NEAR(static_cast<double>(have[static_cast<size_t>(t)]), target - std::log(sum), 1e-5) << t;
  }
  EXPECT_GT(num_missing, 0);
  EXPECT_LT(num_missing, num_tokens);
  EXPECT_EQ(count.num_missing, num_missing);
  EXPECT_EQ(count.num_tokens, num_tokens);
  EXPECT_EQ(count.num_kept, 8 * num_tokens + num_missing);
}

TEST(FilteredLearner, GradientsDoNotDependOnTheCut) {
  const Sampling sampling{.temperature = 0.9, .top_p = 0.8, .min_p = 0.01, .repetition_penalty = 1.2};
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {  // local to tokens, to rows, over the update
    TestObjective run({"actor.policy_loss.loss_mode=" + loss, "actor.entropy_coeff=0.01"});
    for (const bool on_policy : {true, false}) {
      TestPolicy policy("float64");
      RandomRows data(on_policy);
      put_sample_mask(data.batch);
      const auto with = [&](const MicroBatchOptions& cut) {
        LearnerOptions options = cut_by(cut);
        options.temperature = 0.9;
        return options;
      };
      ActorLearner learner(policy.model, policy.optimizer, run.objective, with({2, 0}));
      const KeptCount count = learner.keep_tokens(data.batch, sampling).value();
      EXPECT_LT(count.num_kept, 25 * count.num_tokens);
      const auto whole = policy.gradients(run.objective, data.batch, with(kAll));
      for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}}) {
        const auto parts = policy.gradients(run.objective, data.batch, with(cut));
        EXPECT_LE(worst_relative_l2(parts, whole), 1e-6) << loss << " rows " << cut.rows;  // log-probs are float
      }
      data.batch.keep({});
      const auto unfiltered = policy.gradients(run.objective, data.batch, with(kAll));
      EXPECT_GT(worst_relative_l2(unfiltered, whole), 1e-2);
    }
  }
}

}  // namespace
}  // namespace mortise
