// mortise eval: validation alone.
#include "foundation/formats/json.h"
#include "run_command.h"
#include "train/trainer.h"

namespace mortise {

namespace {

Result<int> run_eval(Arguments args, const boost::program_options::options_description& options) {
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kEval));
  const Json metrics = TRY(evaluate(default_env(), command.config));
  if (command.options.count("json") != 0) {
    std::cout << dump_json(metrics) << "\n";
    return 0;
  }
  for (const auto& [name, value] : metrics.items()) std::printf("%-48s %s\n", name.c_str(), dump_json(value).c_str());
  return 0;
}

}  // namespace

int cmd_eval(Arguments args) {
  boost::program_options::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")("json", "one JSON object on standard output");
  if (wants_help(args)) {
    print_run_help(
        "eval",
        "Samples rollout.val_kwargs.n completions for every row of data.val_files, scores them with the rewards,\n"
        "and prints mean, best of k (pass@k for 0/1 rewards) and majority per data source.",
        options);
    return 0;
  }
  return finish_run(run_eval(args, options));
}

}  // namespace mortise
