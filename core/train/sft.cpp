#include "train/sft.h"

#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/memory.h"
#include "foundation/base/signal.h"
#include "learn/update/sft_learner.h"
#include "train/checkpointing.h"
#include "train/run_log.h"
#include "train/stages.h"
#include "train/step_metrics.h"
#include "train/validation.h"

namespace mortise {

namespace {

class SftRun {
 public:
  SftRun(RunParts& parts, RunLog& log) : parts_(parts), log_(log), saver_(parts, log) {}

  Result<SftSummary> run() {
    RunCounters& counters = parts_.counters;
    bool reached = false;
    if (parts_.owed_validation.metrics) reached = TRY(owed_validation());
    take_stop_requests();
    while (counters.step < parts_.total_steps && !stop_requested() && !reached) {
      const int64_t num_updates = counters.num_updates;
      auto done = step(counters.step + 1);
      if (!done.ok()) {
        if (counters.num_updates == num_updates) saver_.keep_finished_steps(done.error());
        return std::move(done).error();
      }
      reached = *done;
    }
    TRY(saver_.finish());
    TRY(log_.close());
    return SftSummary{{counters.step, saver_.last_checkpoint(), stop_requested()}, val_accuracy_};
  }

 private:
  // Prompts with their recorded completions, as the learner takes sampled ones.
  static SampleBatch recorded_samples(const PromptBatch& prompts) {
    SampleBatch samples;
    for (size_t i = 0; i < prompts.prompts.size(); ++i) {
      Sample& sample = samples.rows.emplace_back();
      sample.prompt_index = static_cast<int64_t>(i);
      sample.token_ids = prompts.prompts[i].response_ids;
    }
    return samples;
  }

  static AdvantageBatch layout_of(const PromptBatch& prompts, const SampleBatch& samples) {
    AdvantageBatch layout = make_layout(samples);
    layout.response_mask.clear();
    for (const Prompt& prompt : prompts.prompts)
      layout.response_mask.insert(layout.response_mask.end(), prompt.response_mask.begin(), prompt.response_mask.end());
    return layout;
  }

  // One update; true when the wanted accuracy is reached.
  Result<bool> step(int64_t step) {
    const Stopwatch watch(parts_.env);
    RunCounters& counters = parts_.counters;
    saver_.step_begins();
    const PromptBatch prompts = parts_.source->next(step);
    const SampleBatch samples = recorded_samples(prompts);
    const TrainBatch batch = make_train_batch(prompts, samples, layout_of(prompts, samples));
    const double lr = learning_rate(parts_.schedule, counters.num_updates);
    const LearnerOptions options = learner_options(parts_.config);
    const SftReport report = TRY(sft_update(*parts_.model, *parts_.optimizer, batch, options, lr));
    counters.step = step;
    record_update(parts_, report.skipped);
    const int64_t tokens = count_tokens(prompts, samples);
    counters.num_tokens += tokens;

    MetricSet metrics;
    metrics.add_mean("loss", report.loss, 1.0);
    metrics.add_mean("grad_norm", report.grad_norm, 1.0);
    metrics.add("learning_rate", lr);
    metrics.add("training/global_step", static_cast<double>(step));
    metrics.add("training/num_updates", static_cast<double>(counters.num_updates));
    metrics.add("training/epoch", static_cast<double>(prompts.epoch));
    const int64_t steps_per_epoch = parts_.train_data->size() / parts_.config.sft.train_batch_size;
    metrics.add("epoch", static_cast<double>(step) / static_cast<double>(steps_per_epoch));
    metrics.add("actor/skipped_updates", report.skipped ? 1.0 : 0.0);
    metrics.add("num_tokens", static_cast<double>(counters.num_tokens));
    metrics.add("training/learnt_tokens", static_cast<double>(report.num_tokens));
    metrics.add("step_time", watch.elapsed_s());
    metrics.add_mean("perf/throughput", static_cast<double>(tokens) / watch.elapsed_s(), 1.0);
    metrics.add("perf/cpu_memory_used_gb", resident_memory_gib());
    metrics.add("perf/failed_saves", static_cast<double>(saver_.num_failed()));
    TRY(log_.write_update(counters.num_updates, step,
                          {{"loss", report.loss}, {"grad_norm", report.grad_norm}, {"lr", lr}}));
    Result<bool> reached = validate_and_log(step, metrics);
    if (!reached.ok()) {
      if (parts_.owed_validation.metrics) saver_.keep_last_step(reached.error());
      return reached;
    }
    TRY(saver_.save_if_due());
    TRY(check_skipped_updates(parts_));
    return reached;
  }

  // The step's line, behind its validation where one is due; one that fails is owed. True when the wanted accuracy is
  // reached.
  Result<bool> validate_and_log(int64_t step, const MetricSet& metrics) {
    MetricSet line = metrics;
    Result<bool> reached = validation_if_due(step, line);
    if (!reached.ok() && reached.error().kind == ErrorKind::kDisk) return reached;  // its lines are not whole
    TRY(log_.write_step(step, line));
    if (reached.ok()) return reached;
    tell_failed_validation(step);
    parts_.owed_validation.metrics = metrics;
    return reached;
  }

  // What the process before this one could not make.
  Result<bool> owed_validation() {
    const MetricSet metrics = *std::exchange(parts_.owed_validation.metrics, std::nullopt);
    const bool reached = TRY(validate_and_log(parts_.counters.step, metrics));
    saver_.step_changes();
    return reached;
  }

  // True when the wanted accuracy is reached.
  Result<bool> validation_if_due(int64_t step, MetricSet& metrics) {
    const SftConfig& sft = parts_.config.sft;
    const bool is_due = step == parts_.total_steps || (sft.test_freq > 0 && step % sft.test_freq == 0);
    if (!is_due || !parts_.val_data || !parts_.reward) return false;
    const ValidationReport report = TRY(validate(parts_, step));
    TRY(metrics.merge(report.metrics));
    TRY(log_.write_validation(step, report.prompts, report.samples, report.scored, report.metrics));
    val_accuracy_ = report.mean_reward;
    return sft.stop_val_accuracy && val_accuracy_ >= *sft.stop_val_accuracy;
  }

  RunParts& parts_;
  RunLog& log_;
  RunSaver saver_;
  double val_accuracy_ = -1.0;
};

}  // namespace

Result<SftSummary> sft(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume) {
  PluginRegistry registry = TRY(open_registry(loaded));
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, registry, RunKind::kSft, resume));
  const auto parts = TRY(assemble(env, loaded, std::move(registry), RunKind::kSft, resume_weights(checkpoint)));
  if (checkpoint) TRY(load_run(*checkpoint, resume.allow_change, *parts));
  const RunLogOptions options{parts->owed_validation.last_final(parts->counters.step), parts->counters.num_updates,
                              parts->total_steps, checkpoint.has_value()};
  TRY(check_room(*parts, checkpoint.has_value()));
  if (!checkpoint) TRY(set_earlier_run_aside(env, loaded.config.trainer.default_local_dir));
  RunLog log = TRY(RunLog::open(env, loaded, &*parts->registry, options));
  if (parts->reward) log.keep_failed_batches_of(*parts->reward);
  if (checkpoint) {
    log_info("resumed from " + checkpoint->path().string() + " after update " + std::to_string(parts->counters.step));
    if (parts->counters.step >= parts->total_steps && !parts->owed_validation.metrics) {
      log_info("this run is finished: nothing to do; raise sft.total_training_steps or start over with --resume never");
      TRY(log.close());
      return SftSummary{{parts->counters.step, checkpoint->path().string(), false}, -1.0};
    }
  }
  return SftRun(*parts, log).run();
}

}  // namespace mortise
