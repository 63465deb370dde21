// Sends the weights to the backend, samples, and lets the backend sleep.
#include "train/sampling/sampler.h"

#include <algorithm>

#include "train/report/stage_timer.h"
#include "train/sampling/sent_adapter.h"
#include "train/sampling/shared_rollout.h"

namespace mortise {

// A backend with a copy of the weights gets the current ones.
Result<> Sampler::send_weights(int64_t version, MetricSet& metrics) {
  RolloutBackend& backend = runner_.backend();
  if (!backend.holds_weights() || sent_version_ == version) return {};
  const StageTimer timer(metrics, "timing_s/update_weights");
  TRY(backend.begin_update(version));
  const bool sends_adapter = config_->rollout.send_adapter && policy_->trains_lora();
  const std::vector<NamedParameter> sent = sends_adapter ? TRY(sent_tensors(*policy_)) : sampled_numbers(*model_);
  for (const NamedParameter& parameter : sent) {
    const at::Tensor values = parameter.tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    const std::vector<int64_t> shape = values.sizes().vec(), offset(shape.size(), 0);
    const std::span<const float> data(values.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
    TRY(backend.update_weight({parameter.name, data, shape, shape, offset}));
  }
  TRY(backend.end_update());
  sent_version_ = version;
  return {};
}

Result<> Sampler::make_ready(int64_t version, MetricSet& metrics) {
  TRY(runner_.wake());
  TRY(send_weights(version, metrics));
  return runner_.set_version(version);
}

// Full weights are sent by the thread that samples, from a copy that nobody changes.
Result<> Sampler::prepare(int64_t version, MetricSet& metrics) {
  return config_->rollout.send_adapter ? make_ready(version, metrics) : Result<>();
}

Result<SampleBatch> Sampler::sample(const PromptBatch& prompts, int64_t batch, int64_t weight_version,
                                    RewardRunner& reward, const ScoreContext& context, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/gen");
  RolloutPlan plan = plan_;
  plan.first_row_id = batch * static_cast<int64_t>(prompts.prompts.size()) * plan.num_samples;
  TRY(make_ready(weight_version, metrics));
  TRY(reward.begin(prompts, plan.num_samples, context));
  SampledForward* const store = sampled_forward();
  if (store != nullptr && batch == 0) store->begin(plan.seed, prompts.step);
  if (store != nullptr && batch > 0) store->go_on();
  // Ranks that sample the same rows together share their rewards.
  const int64_t group_size = config_->rollout.tensor_model_parallel_size;
  const auto feed = [&](const SampleBatch& rows, int64_t prompt) -> Result<> {
    return prompt % group_size == ranks_->rank() % group_size ? reward.feed(prompts, rows, prompt) : Result<>();
  };
  std::function<Result<>(const SampleBatch&, int)> tend;
  if (reward.works_ahead())
    tend = [&](const SampleBatch& rows, int wait_ms) { return reward.tend(prompts, rows, wait_ms); };
  SampleBatch samples =
      TRY(collect_on_ranks(*ranks_, runner_, prompts, plan, config_->rollout, *tokenizer_, &metrics, feed, tend));
  if (store != nullptr) store->end();
  samples.mask_truncated = config_->algorithm.mask_truncated_completions;
  return samples;
}

SampleBatch Sampler::unsampled(const PromptBatch& prompts) const {
  SampleBatch samples = unsampled_rows(prompts, plan_);
  samples.mask_truncated = config_->algorithm.mask_truncated_completions;
  return samples;
}

Result<> Sampler::sample_pieces(std::span<const OpenRows> batches, int64_t weight_version, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/gen");
  TRY(make_ready(weight_version, metrics));
  return collect_segments_on_ranks(*ranks_, runner_, batches, plan_, config_->rollout, *tokenizer_, metrics);
}

Result<SampleBatch> Sampler::greedy(const PromptBatch& prompts, MetricSet& metrics) {
  RolloutPlan plan = plan_;
  plan.num_samples = 1;
  plan.sampling.temperature = 0.0;
  plan.is_filtered = false;
  return collect_on_ranks(*ranks_, runner_, prompts, plan, config_->rollout, *tokenizer_, &metrics);
}

Result<SampleBatch> Sampler::validate(const PromptBatch& prompts, const RolloutPlan& plan, int64_t weight_version) {
  MetricSet unused;  // nothing is learned from these rows
  TRY(make_ready(weight_version, unused));
  return collect_on_ranks(*ranks_, runner_, prompts, plan, config_->rollout, *tokenizer_, nullptr);
}

Result<> Sampler::rest() {
  if (!config_->rollout.sleep_while_training) return {};
  const bool gets_weights = runner_.backend().holds_weights();
  if (gets_weights) sent_version_ = -1;  // it may forget them
  return runner_.sleep(gets_weights ? 2 : 1);
}

}  // namespace mortise
