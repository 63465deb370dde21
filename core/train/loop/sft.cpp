// The loop of `mortise sft`: updates, validation, metrics and checkpoints.
#include "train/loop/sft.h"

#include <optional>
#include <utility>

#include "foundation/base/clock.h"
#include "learn/update/sft_learner.h"
#include "train/loop/recorded_rows.h"
#include "train/loop/run_loop.h"
#include "train/loop/stages.h"
#include "train/report/journal.h"
#include "train/report/step_metrics.h"
#include "train/resume/checkpointing.h"
#include "train/run/run_options.h"

namespace mortise {

namespace {

class SftRun {
 public:
  explicit SftRun(OpenRun& open)
      : open_(open),
        parts_(*open.parts),
        counters_(parts_.progress.counters),
        saver_(parts_.checkpoint_source(), *open.log),
        journal_(parts_.run.env, parts_.progress, *open.log, journal_plan()) {}

  Result<SftSummary> run() {
    if (TRY(journal_.write_owed())) TRY(saver_.save_changed_step());
    const BestValidation& best = parts_.progress.best;
    const TrainSummary done =
        TRY(run_steps(open_, saver_, is_reached_ || best.is_over(), [this](int64_t number) { return step(number); }));
    return SftSummary{done, val_accuracy_};
  }

 private:
  RunJournal::Plan journal_plan() {
    RunJournal::Plan plan;
    plan.total_steps = parts_.run.total_steps;
    plan.test_freq = parts_.run.config.sft.test_freq;
    plan.validate = validation_of(parts_.run.config, parts_.policy, parts_.validator, counters_);
    plan.on_validation = [this](const ValidationReport& report, double, MetricSet&) {
      const std::optional<double>& wanted = parts_.run.config.sft.stop_val_accuracy;
      val_accuracy_ = report.mean_reward;
      is_reached_ = wanted && val_accuracy_ >= *wanted;
    };
    return plan;
  }

  // One update; true when the wanted accuracy is reached.
  Result<bool> step(int64_t number) {
    const RunSettings& run = parts_.run;
    const Stopwatch watch(run.env);
    const RunConfig& config = run.config;
    saver_.step_begins();
    const RecordedRows rows = recorded_rows(TRY(parts_.data.source->next(number)));
    const double lr = parts_.progress.policy_rate.rate(parts_.learning.schedule, counters_.num_updates);
    const SftReport report =
        TRY(sft_update(*parts_.policy.model, *parts_.learning.optimizer, rows.table,
                       learner_options(config, run.device.by_operators, run.ranks), {lr, counters_.num_updates + 1}));
    counters_.step = number;
    record_outcome(counters_, ++counters_.num_updates, report.skipped);
    StepTally tally{number, rows.prompts.epoch, parts_.data.source->rows_per_epoch() / config.sft.train_batch_size};
    tally.num_tokens = count_tokens(rows.prompts, rows.samples);
    counters_.num_tokens += tally.num_tokens;

    MetricSet metrics;
    metrics.add_mean("loss", report.loss, 1.0);
    metrics.add_mean("grad_norm", report.grad_norm, 1.0);
    metrics.add("learning_rate", lr);
    metrics.add("actor/skipped_updates", report.skipped ? 1.0 : 0.0);
    TRY(metrics.merge(report.metrics));
    metrics.add("training/learnt_tokens", static_cast<double>(report.num_tokens));
    tally.seconds = watch.elapsed_s();
    tally.num_failed_saves = saver_.num_failed();
    TRY(add_run_metrics(counters_, tally, parts_.run.ranks, metrics));
    TRY(open_.log->write_update(counters_.num_updates, number,
                                {{"loss", report.loss}, {"grad_norm", report.grad_norm}, {"lr", lr}}));
    Result<> validated;
    TRY(journal_.write_step(number, metrics, validated));
    if (!validated.ok()) {
      saver_.keep_last_step(validated.error());
      return std::move(validated).error();
    }
    TRY(saver_.save_if_due());
    TRY(check_skipped_updates(config, counters_));
    return is_reached_ || parts_.progress.best.is_over();
  }

  OpenRun& open_;
  RunParts& parts_;
  RunCounters& counters_;
  double val_accuracy_ = -1.0;
  bool is_reached_ = false;  // the wanted accuracy
  RunSaver saver_;
  RunJournal journal_;
};

}  // namespace

Result<SftSummary> sft(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume, Communicator& ranks) {
  TRY(meet_ranks(ranks, loaded, RunKind::kSft));
  PluginRegistry registry = TRY(open_registry(loaded));
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, ranks, registry, RunKind::kSft, resume));
  OpenRun run = TRY(open_run(env, loaded, ranks, std::move(registry), RunKind::kSft, checkpoint, resume.allow_change));
  if (run.finished_in) return SftSummary{TRY(close_finished(run)), -1.0};
  return SftRun(run).run();
}

}  // namespace mortise
