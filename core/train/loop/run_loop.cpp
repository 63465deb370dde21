// Opens or resumes a run, and runs its steps until the end or a stop request.
#include "train/loop/run_loop.h"

#include <fmt/core.h>

#include "config/batch_plan.h"
#include "config/show.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live.h"
#include "foundation/metrics/op_timer.h"
#include "model/device/kernel_table.h"
#include "train/loop/decision.h"
#include "train/resume/resume.h"
#include "train/resume/set_aside.h"
#include "train/run/ahead_rules.h"
#include "train/run/memory_estimate.h"
#include "train/run/policy_parts.h"
#include "train/run/run_attention.h"
#include "train/run/run_device.h"
#include "train/run/run_options.h"
#include "train/run/sequence_rules.h"
#include "train/run/threads.h"

namespace mortise {

namespace {

void tell_resumed(RunKind kind, const RunProgress& progress, const Path& checkpoint, int64_t num_unfinished) {
  const std::string unit = kind == RunKind::kSft ? "update" : "step";
  const std::string inside =
      progress.step.work.step > 0 ? fmt::format(" and {} of the next", counted(num_unfinished, "update")) : "";
  log_info(fmt::format("resumed from {} after {} {}{}", checkpoint.string(), unit, progress.counters.step, inside));
}

void tell_finished(const RunConfig& config, RunKind kind) {
  const std::string key = kind == RunKind::kSft                   ? "sft.total_training_steps"
                          : config.trainer.total_training_updates ? "trainer.total_training_updates"
                                                                  : "trainer.total_training_steps";
  const std::vector<std::string> plan = keys_that_plan_ahead(config, kind);
  std::string more = "raise " + key;
  if (!plan.empty()) {
    more += fmt::format(" and give --allow-change (then the learning rate follows another schedule, because of {})",
                        join(plan, " and "));
  }
  log_info(
      fmt::format("this run is finished: nothing to do; {}, start over with --resume never, or choose another "
                  "trainer.default_local_dir",
                  more));
}

bool is_check_due(const RunSettings& settings, int64_t step) {
  const int64_t frequency = settings.config.trainer.rank_check_freq;
  return frequency > 0 && (step % frequency == 0 || step == settings.total_steps);
}

// All ranks hold the same weights of everything that learns. They are the same by construction; a rank whose memory or
// processor fails differs.
Result<> compare_weights(const RunSettings& settings, const Model& policy, const Critic* critic, int64_t step) {
  if (settings.config.trainer.rank_check_freq <= 0 || settings.ranks.size() == 1) return {};
  constexpr std::string_view kStage = "comparing the weights";
  const ModelPart* const part = policy.model_part();
  // Weights that are spread are compared as each rank receives them, and split layers as each rank has its part.
  const auto whole = TRY(WholeWeights::gather({part != nullptr ? &policy : nullptr}, GatheredLayers::kOwnPart));
  const PartDigests own = part == nullptr ? PartDigests() : digests_of_part(policy);
  std::string digests = part == nullptr ? TRY(digest_of_model(policy)) : own.common;
  if (critic != nullptr) digests += TRY(digest_of_model(critic->model));
  const Error unless{ErrorKind::kRankFailure, "the weights", "step " + std::to_string(step), kLeaveRankOut};
  TRY(check_same_on_ranks(settings.ranks, kStage, digests, unless));
  if (part == nullptr) return {};
  return check_same(TRY(settings.ranks.exchange(own.own, kStage)), unless, static_cast<size_t>(part->ranks()->size()));
}

// Moves out of the way what the run's folder holds of another branch or run, and looks whether checkpoints fit.
// `resumed` is where the checkpoint is, which may move.
// `next_bytes`: what the next checkpoint takes.
Result<> make_room_for(const CheckpointSource& source, uint64_t next_bytes, const std::optional<Checkpoint>& checkpoint,
                       Path& resumed) {
  Env& env = source.run.env;
  const Path run_dir = source.run.config.trainer.default_local_dir;
  const CheckpointHome home = checkpoint ? home_of(resumed, run_dir) : CheckpointHome::kElsewhere;
  if (home == CheckpointHome::kRunFolder)
    TRY(set_later_checkpoints_aside(env, run_dir, checkpoint->manifest().place));
  else if (home == CheckpointHome::kBelow)
    resumed = TRY(return_to_branch(env, run_dir, resumed, checkpoint->manifest().place));
  const bool continues = home != CheckpointHome::kElsewhere;  // what is in the folder
  TRY(check_room(source, next_bytes, continues));
  if (continues) return {};
  return checkpoint ? begin_from_other_run(env, run_dir, resumed) : set_earlier_run_aside(env, run_dir);
}

// After a resume: RUN/best names what the checkpoint says was the best until then. If that one is gone (deleted, moved
// aside, or of the run that this one began from), the next validation is the best.
Result<> restore_best(const RunSettings& run, BestValidation& best) {
  if (!run.config.trainer.metric_for_best_model) return {};
  const Path run_dir = run.config.trainer.default_local_dir;
  const std::string name = checkpoint_name({best.step(), {}});
  const auto restore = [&]() -> Result<std::string> {
    if (best.step() > 0 && run.env.exists(run_dir / name / kManifestFile)) {
      TRY(write_file_atomic(run.env, run_dir / kBestFile, name + "\n"));
      return std::string("found");
    }
    if (run.env.exists(run_dir / kBestFile)) TRY(run.env.unlink(run_dir / kBestFile));
    return std::string();
  };
  const std::string found = TRY(on_main_rank(run.ranks, "looking for the best checkpoint", restore));
  if (!found.empty() || best.step() == 0) return {};
  log_warn(fmt::format("{}, but {} is not in {}: the next validation counts as the best", best.text(), name,
                       run_dir.string()));
  best.forget();
  return {};
}

void tell_best(const RunSettings& run, const BestValidation& best) {
  if (best.step() == 0) return;
  log_info(fmt::format("{}: {}", best.text(), best_checkpoint(run.env, run.config.trainer.default_local_dir).string()));
}

// For the models that learn, the reference and the teacher.
Result<> choose_run_attention(const RunSettings& run, const PolicyParts& policy, const Critic* critic,
                              SavedParts& saved) {
  if (!saved.attention) return {};
  const ModelConfig& config = policy.model->config();
  std::vector<AttendingModel> models{{config, run.config.actor.ulysses_sequence_parallel_size}};
  if (policy.reference) models.push_back({config, reference_sequence_size(run.config)});
  if (policy.teacher) models.push_back({policy.teacher->config(), run.config.actor.ulysses_sequence_parallel_size});
  if (critic != nullptr) models.push_back({critic->model.config(), run.config.critic.ulysses_sequence_parallel_size});
  return choose_attention(run.loaded, run.ranks, models, recorded_length(run.config), attention_tools(run.device),
                          *saved.attention);
}

}  // namespace

Result<> meet_ranks(Communicator& ranks, const LoadedConfig& loaded, RunKind kind) {
  const ComputeDevice device = TRY(open_run_device(loaded, ranks, kind, nullptr));
  if (!ranks.is_main()) {
    LogOptions options;
    options.console_level = LogLevel::kError;
    TRY(log_init(options));
  }
  use_threads(loaded.config.trainer);
  TRY(check_same_on_ranks(
      ranks, "comparing the settings", config_to_toml(loaded),
      {ErrorKind::kConfig, "the settings", loaded.file, "start all ranks with the same file and settings"}));
  TRY(check_same_on_ranks(ranks, "comparing the settings",
                          device_kernels(device.device) != nullptr ? "kernels" : "none",
                          {ErrorKind::kConfig, "the kernels for GPUs", loaded.where("model.device"),
                           "install lib/mortise/libmortise_cuda.so for all ranks, or for none"}));
  // What the ranks of a group compute alike has to stay the same.
  const bool learns = kind != RunKind::kEval && !loaded.config.trainer.val_only;
  const bool shares_layers = loaded.config.actor.tensor_model_parallel_size > 1 && learns;
  if (!loaded.config.trainer.deterministic && !shares_layers) return {};
  const char* const key = shares_layers ? "actor.tensor_model_parallel_size" : "trainer.deterministic";
  return check_same_on_ranks(ranks, "comparing the settings", std::to_string(at::get_num_threads()),
                             {ErrorKind::kConfig, "the numbers of threads", loaded.where(key),
                              "set trainer.num_threads, or OMP_NUM_THREADS to the same number for all ranks"});
}

Result<RunLog> open_log_on_ranks(const RunSettings& run, const PluginRegistry* registry, const RunLogOptions& options) {
  std::optional<RunLog> log;
  const auto open = [&]() -> Result<> {
    log.emplace(TRY(RunLog::open(run.env, run.loaded, registry, options)));
    return {};
  };
  TRY(do_on_main_rank(run.ranks, "opening the log", open));
  if (log) return *std::move(log);
  return RunLog::open_silent(run.env, run.config.trainer, run.ranks.rank());
}

Result<OpenRun> open_run(Env& env, const LoadedConfig& loaded, Communicator& ranks, PluginRegistry registry,
                         RunKind kind, const std::optional<Checkpoint>& checkpoint, bool allow_change) {
  OpenRun out;
  out.parts = TRY(assemble(env, loaded, ranks, std::move(registry), kind, resume_weights(checkpoint)));
  RunParts& parts = *out.parts;
  const RunProgress& progress = parts.progress;
  if (checkpoint) {
    TRY(load_run(*checkpoint, allow_change, parts.progress.counters, parts.policy, parts.data, parts.saved));
    if (kind == RunKind::kTrain) {
      const LogProbNeeds needs = log_prob_needs(parts.run, parts.policy, parts.advantage, parts.learning);
      TRY(check_unfinished_step(progress.step.work, parts.run.plan, {needs.reference, parts.critic != nullptr},
                                checkpoint->path()));
      keep_ahead_if_it_fits(parts.progress.ahead, loaded.config, parts.run.plan.rows_per_step);
    }
  }
  const RunCounters& counters = progress.counters;
  // The updates of an unfinished step are written when it ends.
  const auto num_unfinished = static_cast<int64_t>(progress.step.work.updates.size());
  if (checkpoint && kind == RunKind::kTrain) {
    const RunPlace done{counters.step, counters.num_updates - num_unfinished, progress.carried.size()};
    parts.run.total_steps = plan_total_steps(loaded.config, parts.data.source->rows_per_epoch(), done);
  }
  RunLogOptions options{progress.owed_validation.last_final(counters.step), counters.num_updates - num_unfinished,
                        parts.run.total_steps, checkpoint.has_value()};
  if (parts.data.train) options.rejects.push_back(&parts.data.train->rejects());
  if (parts.data.sft_mix_rows) options.rejects.push_back(&parts.data.sft_mix_rows->rejects());
  for (const ValRows& val : parts.data.val) options.rejects.push_back(&val.rows.rejects());
  Path resumed = checkpoint ? checkpoint->path() : Path();
  // If nothing more is learnt, nothing more is saved.
  const bool learns = counters.step < parts.run.total_steps;
  const uint64_t next_bytes = learns ? TRY(measure_next_checkpoint(parts.checkpoint_source())) : 0;
  const auto make_room = [&]() -> Result<> {
    return make_room_for(parts.checkpoint_source(), next_bytes, checkpoint, resumed);
  };
  TRY(do_on_main_rank(ranks, "looking for room on the disk", make_room));
  if (learns) TRY(check_shared_folder(parts.run));
  if (checkpoint) TRY(restore_best(parts.run, parts.progress.best));
  out.log = std::make_unique<RunLog>(TRY(open_log_on_ranks(parts.run, &*parts.registry, options)));
  if (parts.reward) out.log->keep_failed_batches_of(*parts.reward);
  if (kind == RunKind::kTrain)
    out.log->show_tokens(parts.policy.folder->tokenizer, loaded.config.trainer.rollout_data_tokens);
  if (learns) TRY(choose_run_attention(parts.run, parts.policy, parts.critic.get(), parts.saved));
  if (!checkpoint) return out;
  tell_resumed(kind, progress, resumed, num_unfinished);
  if (counters.step >= parts.run.total_steps && !progress.owed_validation.metrics) {
    tell_finished(loaded.config, kind);
    out.finished_in = resumed;
  }
  return out;
}

Result<TrainSummary> close_finished(const OpenRun& run) {
  TRY(run.log->close());
  return TrainSummary{run.parts->progress.counters.step, run.finished_in->string(), false};
}

std::function<Result<ValidationReport>(int64_t step)> validation_of(const RunConfig& config, PolicyParts& policy,
                                                                    std::optional<Validator>& validator,
                                                                    const RunCounters& counters) {
  if (!validator) return {};
  return [&](int64_t step) -> Result<ValidationReport> {
    TRY(refresh_sampled(config, policy));
    const auto weights = TRY(weights_to_sample(config, sampled_model(policy)));
    return validator->validate(step, counters.weight_version);
  };
}

Result<TrainSummary> run_steps(OpenRun& run, RunSaver& saver, bool is_done,
                               const std::function<Result<bool>(int64_t)>& step) {
  const RunSettings& settings = run.parts->run;
  const RunCounters& counters = run.parts->progress.counters;
  const auto compare = [&] {
    return compare_weights(settings, *run.parts->policy.model, run.parts->critic.get(), counters.step);
  };
  take_stop_requests();
  TRY(compare());
  bool stops = false;
  while (counters.step < settings.total_steps && !is_done) {
    stops = TRY(on_any_rank(settings.ranks, "asking for stop requests", stop_requested()));
    if (stops) break;
    const int64_t num_updates = counters.num_updates;
    settings.ranks.enter("step", counters.step + 1);
    live_step(counters.step + 1);
    auto done = [&] {
      const OpTimer timer("step");
      return step(counters.step + 1);
    }();
    if (!done.ok()) {
      if (counters.num_updates == num_updates) saver.keep_finished_steps(done.error());
      return std::move(done).error();
    }
    is_done = *done;
    if (is_check_due(settings, counters.step)) TRY(compare());
  }
  TRY(saver.finish());
  tell_best(settings, run.parts->progress.best);
  TRY(run.log->close());
  if (!stops) stops = TRY(on_any_rank(settings.ranks, "asking for stop requests", stop_requested()));
  return TrainSummary{counters.step, saver.last_checkpoint(), stops};
}

}  // namespace mortise
