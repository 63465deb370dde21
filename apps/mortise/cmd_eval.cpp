// mortise eval: validation without training, of a TOML file or of a run's folder.
#include <fmt/core.h>

#include "as_rank.h"
#include "checkpoint/reader.h"
#include "config/val_sets.h"
#include "foundation/base/shown_text.h"
#include "foundation/formats/json.h"
#include "run_command.h"
#include "train/loop/trainer.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

// The checkpoint of a run's folder: the newest, "best", or one by its name.
Result<Path> checkpoint_of(const Path& run, const std::string& wanted) {
  Env& env = default_env();
  if (wanted == "best") {
    const Path best = best_checkpoint(env, run);
    if (!best.empty()) return best;
    return Error{ErrorKind::kConfig, "the run names no best checkpoint", run.string(),
                 "set trainer.metric_for_best_model in a run, or leave --checkpoint out"};
  }
  if (!wanted.empty()) {
    if (env.exists(run / wanted / "huggingface")) return run / wanted;
    return Error{ErrorKind::kConfig, fmt::format("the run has no checkpoint {}", wanted), run.string(),
                 "`mortise checkpoint list` shows those that it has"};
  }
  const std::optional<FoundCheckpoint> newest = TRY(find_newest_valid(env, run));
  if (newest) return newest->ref.path;
  return Error{ErrorKind::kConfig, "the run has no checkpoint", run.string(), "give a TOML file instead"};
}

// A folder gives its settings with the weights of a checkpoint.
Result<> locate_run(const po::variables_map& options, std::string& file, std::vector<std::string>& overrides) {
  const std::string wanted = options["checkpoint"].as<std::string>();
  const auto info = default_env().info(file);
  if (!info.ok() || !info->is_directory) {  // load_config says what is wrong with a file
    if (wanted.empty()) return {};
    return Error{ErrorKind::kConfig, fmt::format("--checkpoint needs the folder of a run, but {} is a file", file),
                 "mortise eval", "give the folder, or set model.path"};
  }
  const Path run = file;
  const Path settings = run / "config.resolved.toml";
  if (!default_env().exists(settings)) {
    return Error{ErrorKind::kConfig, "the folder has no config.resolved.toml", run.string(),
                 "give the folder of a run (trainer.default_local_dir), or a TOML file"};
  }
  const Path checkpoint = TRY(checkpoint_of(run, wanted));
  // An adapter's folder names its base.
  std::vector<std::string> own = {"model.path=" + dump_json(Json((checkpoint / "huggingface").string())),
                                  "model.lora_rank=0", "model.lora_adapter_path=null"};
  own.insert(own.end(), overrides.begin(), overrides.end());
  overrides = std::move(own);
  file = settings.string();
  return {};
}

// n completions of each prompt in every set. Greedy ones would all be the same.
Result<> set_num_completions(const po::variables_map& options, LoadedConfig& loaded) {
  const int64_t n = options["n"].as<int64_t>();
  if (n == 0) return {};
  if (n < 1) return Error{ErrorKind::kConfig, fmt::format("--n is {}", n), "mortise eval", "give 1 or more"};
  RunConfig& config = loaded.config;
  loaded.positions["rollout.val_kwargs.n"] = "--n";
  for (const ValSet& set : TRY(val_sets(loaded))) {
    ValKwargs kwargs = set.kwargs;
    kwargs.n = n;
    if (n > 1 && !(kwargs.do_sample && kwargs.temperature > 0)) {
      kwargs.do_sample = true;
      kwargs.temperature = kwargs.temperature > 0 ? kwargs.temperature : 1.0;
    }
    if (set.name.empty()) {
      config.rollout.val_kwargs = kwargs;
      continue;
    }
    Json& table = config.data.val_sets[set.name];
    table["n"] = kwargs.n;
    table["do_sample"] = kwargs.do_sample;
    table["temperature"] = kwargs.temperature;
  }
  return {};
}

Result<int> eval_as_rank(const RunCommand& command, Communicator& ranks) {
  const Json metrics = TRY(evaluate(default_env(), command.config, ranks));
  if (!ranks.is_main()) return 0;
  if (command.options.count("json") != 0) {
    std::cout << dump_json(metrics) << "\n";
    return 0;
  }
  for (const auto& [name, value] : metrics.items())
    std::cout << fmt::format("{:<48} {}\n", one_line(name), dump_json(value));
  return 0;
}

Result<int> run_eval(Arguments args, const po::options_description& options) {
  RunCommandHooks hooks;
  hooks.locate = locate_run;
  hooks.adjust = set_num_completions;
  const RunCommand command = TRY(parse_run_command(args, options, ConfigUse::kEval, hooks));
  return run_as_rank(command.config.config, [&](Communicator& ranks) { return eval_as_rank(command, ranks); });
}

}  // namespace

int cmd_eval(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")("json", "one JSON object on standard output")(
      "n", po::value<int64_t>()->default_value(0, "as set"),
      "completions of each prompt, in every validation set; sampled with temperature 1 if the settings are greedy")(
      "checkpoint", po::value<std::string>()->default_value("", "newest"),
      "of a run's folder: best, or a global_step_N");
  if (wants_help(args)) {
    print_run_help(
        "eval",
        "Samples completions for every row of data.val_files and data.val_sets, and scores them with the rewards.\n"
        "Prints mean, pass@k, best of k and majority for each data source (docs/validation.md). The folder of a run\n"
        "gives its settings with the weights of its newest checkpoint.",
        options, "RUN.toml|RUN_FOLDER");
    return 0;
  }
  return finish_run(run_eval(args, options));
}

}  // namespace mortise
