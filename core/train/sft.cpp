#include "train/sft.h"

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/memory.h"
#include "foundation/base/signal.h"
#include "learn/update/sft_learner.h"
#include "train/checkpointing.h"
#include "train/run_log.h"
#include "train/step_metrics.h"
#include "train/validation.h"

namespace mortise {

namespace {

// The response ids of a prompt's row, the end token included.
Result<std::vector<int64_t>> response_ids(const RunParts& parts, const Prompt& prompt) {
  const std::string& key = parts.config.data.response_key;
  const std::string where = parts.train_data->where(prompt.dataset_row);
  const Json* text = json_find(prompt.columns, key);
  if (text == nullptr || !text->is_string()) {
    return Error{ErrorKind::kData, "the row has no text column '" + key + "'", where,
                 "name the completion's column with data.response_key"};
  }
  auto ids = parts.folder->tokenizer.encode(text->get<std::string>(), /*add_special_tokens=*/false);
  if (!ids.ok()) return Error{ErrorKind::kData, ids.error().what, where, ids.error().next};
  const std::vector<int64_t> stop_ids = stop_ids_of(parts.model->config(), parts.folder->tokenizer);
  if (!stop_ids.empty()) ids->push_back(stop_ids.front());
  if (static_cast<int64_t>(ids->size()) > parts.config.data.max_response_length) {
    return Error{ErrorKind::kData,
                 "the response has " + std::to_string(ids->size()) +
                     " tokens with its end, more than data.max_response_length = " +
                     std::to_string(parts.config.data.max_response_length),
                 where, "raise the limit or shorten the row"};
  }
  return ids;
}

// Prompts with their recorded completions, as the learner takes sampled ones.
Result<SampleBatch> recorded_samples(const RunParts& parts, const PromptBatch& prompts) {
  SampleBatch samples;
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    Sample& sample = samples.rows.emplace_back();
    sample.prompt_index = static_cast<int64_t>(i);
    sample.token_ids = TRY(response_ids(parts, prompts.prompts[i]));
  }
  return samples;
}

class SftRun {
 public:
  SftRun(RunParts& parts, RunLog& log) : parts_(parts), log_(log) {}

  Result<SftSummary> run() {
    RunCounters& counters = parts_.counters;
    bool reached = false;
    while (counters.step < parts_.total_steps && !stop_requested() && !reached) reached = TRY(step(counters.step + 1));
    const std::string path = TRY(save_run(parts_)).string();
    TRY(log_.close());
    return SftSummary{{counters.step, path, stop_requested()}, val_accuracy_};
  }

 private:
  // One update; true when the wanted accuracy is reached.
  Result<bool> step(int64_t step) {
    const Stopwatch watch(parts_.env);
    RunCounters& counters = parts_.counters;
    const PromptBatch prompts = parts_.source->next(step);
    const SampleBatch samples = TRY(recorded_samples(parts_, prompts));
    const TrainBatch batch = make_train_batch(prompts, samples, make_layout(samples));
    const double lr = learning_rate(parts_.schedule, counters.num_updates);
    const MicroBatchOptions micro_batch = micro_batch_options(parts_.config);
    const SftReport report =
        TRY(sft_update(*parts_.model, *parts_.optimizer, batch, micro_batch, lr, parts_.config.actor.grad_clip));
    counters.step = step;
    ++counters.num_updates;
    report.skipped ? ++counters.num_skipped : ++counters.weight_version;
    const int64_t tokens = count_tokens(prompts, samples);
    counters.num_tokens += tokens;

    MetricSet metrics;
    metrics.add_mean("loss", report.loss, 1.0);
    metrics.add_mean("grad_norm", report.grad_norm, 1.0);
    metrics.add("learning_rate", lr);
    metrics.add("training/epoch", static_cast<double>(prompts.epoch));
    metrics.add("num_tokens", static_cast<double>(counters.num_tokens));
    metrics.add("step_time", watch.elapsed_s());
    metrics.add_mean("perf/throughput", static_cast<double>(tokens) / watch.elapsed_s(), 1.0);
    metrics.add("perf/cpu_memory_used_gb", resident_memory_gib());
    TRY(log_.write_update(counters.num_updates, step,
                          {{"loss", report.loss}, {"grad_norm", report.grad_norm}, {"lr", lr}}));
    const SftConfig& sft = parts_.config.sft;
    bool reached = false;
    const bool due = step == parts_.total_steps || (sft.test_freq > 0 && step % sft.test_freq == 0);
    if (due && parts_.val_data && parts_.reward) {
      const ValidationReport validation = TRY(validate(parts_, step));
      TRY(metrics.merge(validation.metrics));
      TRY(log_.write_validation(step, validation.prompts, validation.samples, validation.scored));
      val_accuracy_ = validation.mean_reward;
      reached = sft.stop_val_accuracy && val_accuracy_ >= *sft.stop_val_accuracy;
    }
    TRY(log_.write_step(step, metrics));
    const int64_t save_freq = parts_.config.trainer.save_freq;
    if (save_freq > 0 && step % save_freq == 0 && step != parts_.total_steps) TRY(save_run(parts_));
    if (counters.num_skipped > parts_.config.trainer.nonfinite_update_limit) {
      return Error{ErrorKind::kNumerics, "too many updates had gradients that are not finite",
                   "step " + std::to_string(step), "lower actor.optim.lr"};
    }
    return reached;
  }

  RunParts& parts_;
  RunLog& log_;
  double val_accuracy_ = -1.0;
};

}  // namespace

Result<SftSummary> sft(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume) {
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, resume));
  std::optional<Path> weights_from;
  if (checkpoint) weights_from = checkpoint->path() / "huggingface";
  const auto parts = TRY(assemble(env, loaded, RunKind::kSft, weights_from));
  if (checkpoint) TRY(checkpoint->load_into(parts->stateful));
  const RunLogOptions options{parts->counters.step, parts->counters.num_updates, parts->total_steps};
  RunLog log = TRY(RunLog::open(env, loaded, &*parts->registry, options));
  return SftRun(*parts, log).run();
}

}  // namespace mortise
