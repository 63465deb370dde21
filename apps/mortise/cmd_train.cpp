// mortise train: reinforcement learning.
#include "foundation/base/log.h"
#include "run_command.h"
#include "train/trainer.h"

namespace mortise {

namespace {

Result<int> run_train(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kTrain));
  const bool json = command.options.count("json") != 0;
  if (command.options.count("dry-run") != 0) {
    std::cout << TRY(dry_run(default_env(), command.config, json));
    return 0;
  }
  if (json) {
    return Error{ErrorKind::kConfig, "--json belongs to --dry-run", "mortise train",
                 "a run writes its numbers as JSON to metrics.jsonl and updates.jsonl"};
  }
  const TrainSummary summary = TRY(train(default_env(), command.config, resume_request(command)));
  const std::string& dir = command.config.config.trainer.default_local_dir;
  const std::string model =
      summary.last_checkpoint.empty() ? "" : ", model in " + summary.last_checkpoint + "/huggingface";
  log_info((summary.stopped_by_signal ? "stopped by a signal, the same command resumes it: " : "done: ") +
           std::to_string(summary.steps) + " steps; metrics in " + dir + "/metrics.jsonl" + model);
  return summary.stopped_by_signal ? static_cast<int>(ErrorKind::kSignal) : 0;
}

}  // namespace

int cmd_train(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")(
      "dry-run", "print the resolved config, the batch arithmetic and a memory estimate; run nothing")(
      "json", "with --dry-run: the same as one JSON object");
  add_resume_options(options);
  if (wants_help(args)) {
    print_run_help("train",
                   "Samples completions, scores them with reward plugins and trains the policy on them.\n"
                   "Writes metrics.jsonl, updates.jsonl, TensorBoard events, log.txt and global_step_N/ into\n"
                   "trainer.default_local_dir. SIGINT or SIGTERM: finishes the step, saves, exits with code 8.",
                   options);
    return 0;
  }
  return finish_run(run_train(args, options));
}

}  // namespace mortise
