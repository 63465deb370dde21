// mortise train: reinforcement learning.
#include "foundation/base/log.h"
#include "run_command.h"
#include "train/trainer.h"

namespace mortise {

namespace {

Result<int> run_train(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kTrain));
  if (command.options.count("dry-run") != 0) {
    std::cout << TRY(dry_run(default_env(), command.config));
    return 0;
  }
  const TrainSummary summary = TRY(train(default_env(), command.config, command.options["resume"].as<std::string>()));
  const std::string& dir = command.config.config.trainer.default_local_dir;
  log_info("done: " + std::to_string(summary.steps) + " steps; metrics in " + dir + "/metrics.jsonl, model in " +
           (summary.last_checkpoint.empty() ? dir : summary.last_checkpoint + "/huggingface"));
  return summary.stopped_by_signal ? static_cast<int>(ErrorKind::kSignal) : 0;
}

}  // namespace

int cmd_train(Arguments args) {
  boost::program_options::options_description options("options");
  options.add_options()("help,h", "this text")(
      "dry-run", "print the resolved config, the batch arithmetic and a memory estimate; run nothing")(
      "resume", boost::program_options::value<std::string>()->default_value(""),
      "auto (the newest valid checkpoint of the run's folder), never, or a global_step_N folder; default: "
      "trainer.resume_mode");
  if (wants_help(args)) {
    print_run_help("train",
                   "Samples completions, scores them with reward plugins and trains the policy on them.\n"
                   "Writes metrics.jsonl, updates.jsonl, TensorBoard events, log.txt and global_step_N/ into\n"
                   "trainer.default_local_dir. SIGINT or SIGTERM: finishes the step, saves, exits with code 8.",
                   options);
    return 0;
  }
  auto code = run_train(args, options);
  return code.ok() ? *code : fail(code.error());
}

}  // namespace mortise
