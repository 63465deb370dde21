// mortise train: reinforcement learning.
#include "foundation/base/log.h"

#include <fmt/core.h>
#include "as_rank.h"
#include "foundation/base/shown_text.h"
#include "run_command.h"
#include "train/loop/trainer.h"

namespace mortise {

namespace {

Result<int> train_as_rank(const RunCommand& command, Communicator& ranks) {
  const std::string& dir = command.config.config.trainer.default_local_dir;
  auto trained = train(default_env(), command.config, resume_request(command), ranks);
  if (!trained.ok()) {
    const ErrorKind kind = trained.error().kind;  // the steps' numbers say why these two happen
    if (ranks.is_main() && (kind == ErrorKind::kNumerics || kind == ErrorKind::kReward)) log_findings(dir);
    return std::move(trained).error();
  }
  const TrainSummary summary = *std::move(trained);
  const std::string model =
      summary.last_checkpoint.empty() ? "" : fmt::format(", model in {}/huggingface", summary.last_checkpoint);
  log_info(fmt::format("{}{}; metrics in {}/metrics.jsonl{}",
                       summary.stopped_by_signal ? "stopped by a signal, the same command resumes it: " : "done: ",
                       counted(summary.steps, "step"), dir, model));
  if (ranks.is_main()) log_findings(dir);
  return summary.stopped_by_signal ? static_cast<int>(ErrorKind::kSignal) : 0;
}

Result<int> run_train(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kTrain));
  if (TRY(print_dry_run(command, ConfigUse::kTrain))) return 0;
  return run_as_rank(command.config.config, [&](Communicator& ranks) { return train_as_rank(command, ranks); });
}

}  // namespace

int cmd_train(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text");
  add_dry_run_options(options);
  add_resume_options(options);
  if (wants_help(args)) {
    print_run_help("train",
                   "Samples completions, scores them with reward plugins and trains the policy on them.\n"
                   "Writes metrics.jsonl, updates.jsonl, TensorBoard events, log.txt and global_step_N/ into\n"
                   "trainer.default_local_dir. On SIGINT or SIGTERM it finishes the step, saves and exits with code 8.",
                   options);
    return 0;
  }
  return finish_run(run_train(args, options));
}

}  // namespace mortise
