// mortise eval: validation without training.
#include "as_rank.h"
#include "foundation/formats/json.h"
#include "run_command.h"
#include "train/loop/trainer.h"

namespace mortise {

namespace {

Result<int> eval_as_rank(const RunCommand& command, Communicator& ranks) {
  const Json metrics = TRY(evaluate(default_env(), command.config, ranks));
  if (!ranks.is_main()) return 0;
  if (command.options.count("json") != 0) {
    std::cout << dump_json(metrics) << "\n";
    return 0;
  }
  for (const auto& [name, value] : metrics.items()) std::printf("%-48s %s\n", name.c_str(), dump_json(value).c_str());
  return 0;
}

Result<int> run_eval(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kEval));
  return run_as_rank(command.config.config, [&](Communicator& ranks) { return eval_as_rank(command, ranks); });
}

}  // namespace

int cmd_eval(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")("json", "one JSON object on standard output");
  if (wants_help(args)) {
    print_run_help(
        "eval",
        "Samples rollout.val_kwargs.n completions for every row of data.val_files and scores them with the rewards.\n"
        "Prints mean, best of k (pass@k for 0/1 rewards) and majority for each data source.",
        options);
    return 0;
  }
  return finish_run(run_eval(args, options));
}

}  // namespace mortise
