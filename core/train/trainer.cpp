// The loop, read top to bottom: one step is sample, score, log-probs, advantages, updates; then it is counted, logged,
// saved and validated. What each stage does is in stages.cpp; what exists, in run_parts.h.
#include "train/trainer.h"

#include <algorithm>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/memory.h"
#include "foundation/base/signal.h"
#include "learn/objective/loss_settings.h"
#include "train/checkpointing.h"
#include "train/critic.h"
#include "train/reference_refresh.h"
#include "train/run_log.h"
#include "train/stages.h"
#include "train/step_metrics.h"
#include "train/validation.h"

namespace mortise {

namespace {

class Trainer {
 public:
  Trainer(RunParts& parts, RunLog& log) : parts_(parts), log_(log), config_(parts.config), saver_(parts, log) {}

  Result<TrainSummary> run() {
    const bool fresh = parts_.counters.step == 0 && parts_.step.work.step == 0;
    if (config_.trainer.val_before_train && parts_.val_data && fresh) TRY(first_validation());
    if (parts_.owed_validation.metrics) TRY(owed_validation());
    take_stop_requests();
    while (parts_.counters.step < parts_.total_steps && !stop_requested()) {
      const int64_t num_updates = parts_.counters.num_updates;
      auto done = step(parts_.counters.step + 1);
      if (done.ok()) continue;
      if (parts_.counters.num_updates == num_updates) saver_.keep_finished_steps(done.error());
      return std::move(done).error();
    }
    TRY(saver_.finish());
    TRY(log_.close());
    return TrainSummary{parts_.counters.step, saver_.last_checkpoint(), stop_requested()};
  }

 private:
  // The step with this number, or what a resume has left of it.
  Result<> step(int64_t step) {
    const Stopwatch watch(parts_.env);
    StepWork& work = parts_.step.work;
    if (work.step == 0) TRY(prepare(step));
    const double seconds_before = work.seconds;
    const auto before_update = [&] {
      work.seconds = seconds_before + watch.elapsed_s();
      return saver_.save_inside_if_due();
    };
    TRY(update_stage(parts_, work, before_update));
    parts_.counters.step = step;
    if (parts_.reference_state && step % *config_.ref.sync_steps == 0)
      refresh_reference(*parts_.model, *parts_.reference, config_.ref.mixup_alpha);
    Result<> validated;
    TRY(conclude(work, seconds_before + watch.elapsed_s(), validated));
    Result<> good = parts_.limits.check(step, work.metrics, has_learnt(work));
    if (!validated.ok()) parts_.owed_validation.metrics = std::move(work.metrics);
    if (!good.ok() && !validated.ok()) log_warn("the validation failed too: " + validated.error().to_string());
    if (good.ok()) good = std::move(validated);
    work = {};
    if (!good.ok()) {
      saver_.keep_last_step(good.error());
      return good;
    }
    TRY(saver_.save_if_due());
    return check_skipped_updates(parts_);
  }

  static bool has_learnt(const StepWork& work) {
    return !work.updates.empty() && std::all_of(work.updates.begin(), work.updates.end(),
                                                [](const auto& u) { return !u.skipped && u.sums.num_tokens > 0; });
  }

  // All that comes after a step's updates and before its save, so that a resume from it finds the step's lines.
  // `validated` is how the validation went; an error is of a disk that did not take the lines: the step is not kept.
  Result<> conclude(StepWork& work, double seconds, Result<>& validated) {
    TRY(report(work, seconds));
    parts_.counters.train_seconds += seconds;
    if (const double saving = saver_.take_seconds(); saving > 0) work.metrics.add("timing_s/save_checkpoint", saving);
    return validate_and_log(work.step, work.metrics, validated);
  }

  // The step's line, behind its validation where one is due.
  Result<> validate_and_log(int64_t step, MetricSet& metrics, Result<>& validated) {
    const int64_t test_freq = config_.trainer.test_freq;
    const bool is_due = step == parts_.total_steps || (test_freq > 0 && step % test_freq == 0);
    if (is_due && parts_.val_data) {
      const MetricSet learnt = metrics;
      validated = validation(step, metrics);
      if (!validated.ok()) metrics = learnt;
    }
    if (!validated.ok() && validated.error().kind == ErrorKind::kDisk) return validated;
    if (!validated.ok()) tell_failed_validation(step);
    return log_.write_step(step, metrics);
  }

  // What the process before this one could not make.
  Result<> owed_validation() {
    MetricSet metrics = *parts_.owed_validation.metrics;
    Result<> validated;
    TRY(validate_and_log(parts_.counters.step, metrics, validated));
    TRY(std::move(validated));
    parts_.owed_validation.metrics.reset();
    saver_.step_changes();
    return {};
  }

  // Everything that comes before the first update.
  Result<> prepare(int64_t step) {
    saver_.step_begins();
    StepWork work;
    MetricSet& metrics = work.metrics;
    work.experience = TRY(experience_stage(parts_, step, metrics));
    const auto& [prompts, samples, scored] = work.experience;
    add_staleness_metrics(samples, parts_.counters.weight_version, metrics);
    const BaselineBatch baselines = TRY(baseline_stage(parts_, work.experience, metrics));
    work.log_probs = TRY(log_prob_stage(parts_, prompts, samples, metrics));
    work.corrected = TRY(correction_stage(parts_, samples, work.log_probs, metrics));
    work.advantages =
        TRY(advantage_stage(parts_, work.experience, work.log_probs, work.corrected, baselines, step, metrics));
    add_variance_proxies(work.advantages,
                         {work.log_probs.old_log_prob, baselines.sum_pi_squared, work.corrected.weights}, metrics);
    if (parts_.critic) saver_.learning_begins();
    TRY(critic_stage(parts_, work.experience, work.advantages, baselines.values, step, metrics));
    if (parts_.filter) parts_.filter->commit();
    work.step = step;
    parts_.step.work = std::move(work);
    return {};
  }

  // The numbers of a step whose updates are done, to the logs but for the step's own line.
  Result<> report(StepWork& work, double seconds) {
    MetricSet& metrics = work.metrics;
    const auto& [prompts, samples, scored] = work.experience;
    const int64_t tokens = count_tokens(prompts, samples);
    parts_.counters.num_tokens += tokens;
    int64_t update = parts_.counters.num_updates - static_cast<int64_t>(work.updates.size());
    for (const UpdateReport& done : work.updates) {
      TRY(log_.write_update(++update, work.step, update_row(done, parts_.objective->uses_kl_loss())));
      TRY(metrics.merge(done.metrics));
    }
    const Stopwatch dump(parts_.env);
    TRY(log_.write_samples(work.step, prompts, samples, scored, &work.advantages));
    if (config_.trainer.rollout_data_dir) metrics.add("timing_s/dump_rollout_generations", dump.elapsed_s());
    add_length_metrics(prompts, samples, config_.data.max_prompt_length, metrics);
    add_reward_metrics(samples, scored, metrics);
    add_advantage_metrics(scored, work.advantages, metrics);
    add_update_metrics(work.updates, *parts_.objective, metrics);
    finish_variance_proxies(work.advantages.num_rows(), metrics);
    add_run_metrics(prompts, samples, tokens, seconds, metrics);
    return {};
  }

  void add_run_metrics(const PromptBatch& prompts, const SampleBatch& samples, int64_t tokens, double seconds,
                       MetricSet& metrics) const {
    double new_tokens = 0;
    for (const Sample& sample : samples.rows) new_tokens += static_cast<double>(sample.token_ids.size());
    const auto all_tokens = static_cast<double>(tokens);
    metrics.add("training/global_step", static_cast<double>(prompts.step));
    metrics.add("training/epoch", static_cast<double>(prompts.epoch));
    const int64_t steps_per_epoch = parts_.train_data->size() / parts_.plan.prompts_per_step;
    metrics.add("epoch", static_cast<double>(prompts.step) / static_cast<double>(steps_per_epoch));
    for (const char* of_rank : {"mean", "max", "min", "balanced_max", "balanced_min"})  // there is one rank
      metrics.add(std::string("global_seqlen/") + of_rank, all_tokens);
    metrics.add("global_seqlen/minmax_diff", 0.0);
    metrics.add("training/num_updates", static_cast<double>(parts_.counters.num_updates));
    metrics.add("num_tokens", static_cast<double>(parts_.counters.num_tokens));
    metrics.add("timing_s/step", seconds);
    metrics.add("step_time", seconds);
    metrics.add("perf/total_num_tokens", all_tokens);
    metrics.add("perf/time_per_step", seconds);
    metrics.add_mean("perf/throughput", all_tokens / seconds, 1.0);
    metrics.add("perf/cpu_memory_used_gb", resident_memory_gib());
    metrics.add("perf/failed_saves", static_cast<double>(saver_.num_failed()));
    for (const char* part : {"gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"}) {
      const double base = std::string_view(part) == "gen" ? new_tokens : all_tokens;
      if (const auto value = metrics.value(std::string("timing_s/") + part); value && base > 0)
        metrics.add_mean(std::string("timing_per_token_ms/") + part, *value * 1e3 / base, 1.0);
    }
  }

  Result<> validation(int64_t step, MetricSet& metrics) {
    const Stopwatch watch(parts_.env);
    const ValidationReport report = TRY(validate(parts_, step));
    TRY(metrics.merge(report.metrics));
    TRY(log_.write_validation(step, report.prompts, report.samples, report.scored, report.metrics));
    metrics.add("timing_s/testing", watch.elapsed_s());
    return {};
  }

  Result<> first_validation() {
    MetricSet metrics;
    TRY(validation(0, metrics));
    return log_.write_step(0, metrics);
  }

  RunParts& parts_;
  RunLog& log_;
  const RunConfig& config_;
  RunSaver saver_;
};

// trainer.val_only: the parts of `eval` on the run's latest weights. What the run has written is added to, never cut.
Result<TrainSummary> validate_only(Env& env, const LoadedConfig& loaded, PluginRegistry registry,
                                   const std::optional<Checkpoint>& checkpoint,
                                   const std::optional<Path>& weights_from) {
  const auto parts = TRY(assemble(env, loaded, std::move(registry), RunKind::kEval, weights_from));
  RunCounters& counters = parts->counters;
  if (checkpoint) {
    const std::string where = checkpoint->path().string();
    StateReader run(counters.state_name(), &checkpoint->state(), where);
    StateReader plugins(parts->plugin_states.state_name(), &checkpoint->state(), where);
    TRY(counters.load(run, "train"));
    TRY(parts->plugin_states.load_own(plugins));
    TRY(load_policy_state(*checkpoint, *parts));
  }
  RunLogOptions options;
  options.first_step = counters.step;
  options.only_validates = true;
  RunLog log = TRY(RunLog::open(env, loaded, &*parts->registry, options));
  log.keep_failed_batches_of(*parts->reward);
  const ValidationReport report = TRY(validate(*parts, counters.step));
  TRY(log.write_validation(counters.step, report.prompts, report.samples, report.scored, report.metrics));
  TRY(log.write_step(counters.step, report.metrics));
  TRY(log.close());
  return TrainSummary{counters.step, "", false};
}

}  // namespace

Result<TrainSummary> train(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume) {
  PluginRegistry registry = TRY(open_registry(loaded));
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, registry, RunKind::kTrain, resume));
  const std::optional<Path> weights_from = resume_weights(checkpoint);
  if (loaded.config.trainer.val_only) return validate_only(env, loaded, std::move(registry), checkpoint, weights_from);
  const auto parts = TRY(assemble(env, loaded, std::move(registry), RunKind::kTrain, weights_from));
  if (checkpoint) TRY(load_run(*checkpoint, resume.allow_change, *parts));
  // The updates of an unfinished step are written when it ends.
  const auto unfinished = static_cast<int64_t>(parts->step.work.updates.size());
  const RunLogOptions options{parts->owed_validation.last_final(parts->counters.step),
                              parts->counters.num_updates - unfinished, parts->total_steps, checkpoint.has_value()};
  TRY(check_room(*parts, checkpoint.has_value()));
  if (!checkpoint) TRY(set_earlier_run_aside(env, loaded.config.trainer.default_local_dir));
  RunLog log = TRY(RunLog::open(env, loaded, &*parts->registry, options));
  log.keep_failed_batches_of(*parts->reward);
  if (checkpoint) {
    log_info("resumed from " + checkpoint->path().string() + " after step " + std::to_string(parts->counters.step) +
             (parts->step.work.step > 0 ? " and " + std::to_string(unfinished) + " updates of the next" : ""));
  }
  if (checkpoint && parts->counters.step >= parts->total_steps && !parts->owed_validation.metrics) {
    log_info(
        "this run is finished: nothing to do; raise trainer.total_training_steps, start over with --resume never, "
        "or choose another trainer.default_local_dir");
    TRY(log.close());
    return TrainSummary{parts->counters.step, checkpoint->path().string(), false};
  }
  log_info(describe_loss(parts->objective->policy_loss().info(), loaded));
  return Trainer(*parts, log).run();
}

Result<Json> evaluate(Env& env, const LoadedConfig& loaded) {
  PluginRegistry registry = TRY(open_registry(loaded));
  const auto parts = TRY(assemble(env, loaded, std::move(registry), RunKind::kEval, std::nullopt));
  parts->reward->keep_failed_batches([&](const auto& prompts, const auto& samples, const auto& scored, const auto&) {
    return write_eval_completions(env, loaded.config.trainer, prompts, samples, scored);
  });
  const ValidationReport report = TRY(validate(*parts, 0));
  TRY(write_eval_completions(env, loaded.config.trainer, report.prompts, report.samples, report.scored));
  Json out = Json::object();
  for (const MetricValue& metric : report.metrics.values()) out[metric.name] = metric.value;
  out["num_rows"] = report.num_rows;
  return out;
}

}  // namespace mortise
