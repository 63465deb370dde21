// A case of tests/golden/replay as a run of the program: its folder, its run.toml, and what it wrote.
// MORTISE_REPLAY_CASES=DIR takes the cases of another folder of the same form instead, and MORTISE_REPLAY_PROGRAM=PATH another
// program than `mortise`: emulated_engine (tests/support/engine).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
#include "support/engine/shared_engine.h"
#include "support/test_device.h"

namespace mortise::test {

namespace fs = std::filesystem;

inline fs::path cases_folder() {
  const char* other = std::getenv("MORTISE_REPLAY_CASES");
  return other != nullptr ? fs::path(other) : fs::path(MORTISE_SOURCE_DIR) / "tests/golden/replay";
}

// Empty: none was named.
inline std::string named_program() {
  const char* const path = std::getenv("MORTISE_REPLAY_PROGRAM");
  return path == nullptr ? "" : path;
}

// Where a run of a case is. Runs on other devices, and by other programs, may run at the same time.
inline fs::path fresh_run_folder(const std::string& name) {
  const std::string kind = named_device() + fs::path(named_program()).filename().string();
  const fs::path folder = fs::path(MORTISE_BINARY_DIR) / ("tests/replay" + kind) / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

struct ReplayCase {
  std::string name;
  int64_t micro_batch;     // 0 = all rows at once
  bool imported = false;   // TRL's settings by `config import`, else by hand
  bool by_engine = false;  // normalize_then_sum: by the engine for grpo, not by the estimator gdpo

  [[nodiscard]] std::string micro_name() const { return micro_batch == 0 ? "all" : std::to_string(micro_batch); }
  [[nodiscard]] std::string way() const { return imported ? "imported" : by_engine ? "by_engine" : ""; }
};

inline std::string name_of(const ReplayCase& test) {
  return test.name + "_micro_" + test.micro_name() + (test.way().empty() ? "" : "_" + test.way());
}

// The run of a case: TRL's settings by hand (the mapping of tests/golden/replay/README.md) or on top of imported.toml,
// which then needs what TRL gets from Python: model, samples and rewards.
class RunFile {
 public:
  RunFile(const Json& params, fs::path folder, fs::path run_dir, const ReplayCase& test)
      : trl_(params["trl"]),
        derived_(params["derived"]),
        folder_(std::move(folder)),
        run_dir_(std::move(run_dir)),
        micro_batch_(test.micro_batch),
        imported_(test.imported),
        by_engine_(test.by_engine) {}

  void write() const {
    std::ofstream out(run_dir_ / "run.toml");
    out.precision(17);
    if (imported_) out << "base = \"imported.toml\"\n";
    out << "[model]\npath = \"" << (folder_ / "model").string() << "\"\n[data]\ntrain_files = [\"" << prompts()
        << "\"]\nshuffle = false\n";
    if (imported_) {
      if (micro_batch_ > 0) out << "[actor]\nppo_micro_batch_size_per_gpu = " << micro_batch_ << "\n";
      out << "[rollout]\nname = \"replay\"\n";
    } else {
      out << "max_response_length = " << trl_["max_completion_length"]
          << "\ntrain_batch_size = " << derived_["prompts_per_generation_batch"] << "\n";
      write_algorithm(out);
      write_actor(out);
      out << "[rollout]\nname = \"replay\"\nn = " << trl_["num_generations"]
          << "\ntemperature = " << trl_["temperature"].dump() << "\n";
    }
    out << "[rollout.replay]\npath = \"" << samples() << "\"\n";
    write_rewards(out);
    write_trainer(out);
  }

 private:
  [[nodiscard]] std::string samples() const { return (folder_ / "samples.jsonl").string(); }
  // An epoch, if the samples are those of several.
  [[nodiscard]] std::string prompts() const {
    const fs::path file = folder_ / "prompts.jsonl";
    return fs::exists(file) ? file.string() : samples();
  }
  [[nodiscard]] bool carries_rows() const {
    return derived_["rows_per_generation_batch"].get<int64_t>() %
               derived_["completions_per_optimizer_step"].get<int64_t>() !=
           0;
  }
  [[nodiscard]] std::string text(const char* key) const { return trl_[key].get<std::string>(); }
  [[nodiscard]] bool at_sequence_level() const { return text("importance_sampling_level") == "sequence"; }

  void write_algorithm(std::ostream& out) const {
    const std::string scale = text("scale_rewards");
    out << "[algorithm]\n";
    if (by_engine_) {
      out << "adv_estimator = \"grpo\"\nadv_params = {epsilon = 1e-4, single = \"zero\", std = \"batch\"}\n"
          << "multi_objective_aggregation = \"normalize_then_sum\"\n";
    } else if (text("multi_objective_aggregation") == "normalize_then_sum") {
      out << "adv_estimator = \"gdpo\"\nadv_params = {epsilon = 1e-4, whiten = \"rows\", whiten_epsilon = 1e-4, "
             "single = \"zero\"}\n";
    } else {
      out << "adv_estimator = \"grpo\"\nnorm_adv_by_std_in_grpo = " << (scale == "none" ? "false" : "true")
          << "\nadv_params = {epsilon = 1e-4, single = \"zero\", std = \"" << (scale == "batch" ? "batch" : "group")
          << "\"}\n";
    }
    if (trl_["mask_truncated_completions"].get<bool>()) out << "mask_truncated_completions = true\n";
  }

  void write_actor(std::ostream& out) const {
    static const std::map<std::string, std::string> aggregation = {{"grpo", "seq-mean-token-mean"},
                                                                   {"sapo", "seq-mean-token-mean"},
                                                                   {"dapo", "token-mean"},
                                                                   {"bnpo", "token-mean"},
                                                                   {"cispo", "token-mean"},
                                                                   {"vespo", "token-mean"},
                                                                   {"dr_grpo", "seq-mean-token-sum-norm"},
                                                                   {"luspo", "seq-mean-token-sum"}};
    const std::string mode = aggregation.at(text("loss_type"));
    out << "[actor]\nppo_mini_batch_size = " << derived_["prompts_per_optimizer_step"]
        << "\nppo_epochs = " << trl_["num_iterations"] << "\nclip_ratio_c = 0\nloss_agg_mode = \"" << mode
        << "\"\ngrad_clip = " << trl_["max_grad_norm"] << "\n";
    if (carries_rows()) out << "carry_rows = true\n";
    if (mode.starts_with("seq")) out << "loss_agg_rows = \"all\"\n";
    if (micro_batch_ > 0) out << "ppo_micro_batch_size_per_gpu = " << micro_batch_ << "\n";
    if (trl_["beta"].get<double>() > 0) {
      out << "use_kl_loss = true\nkl_loss_coef = " << trl_["beta"] << "\nkl_loss_type = \""
          << (trl_["use_bias_correction_kl"].get<bool>() ? "k3_ratio" : "low_var_kl") << "\"\n";
    }
    if (trl_["top_entropy_quantile"].get<double>() < 1)
      out << "top_entropy_quantile = " << trl_["top_entropy_quantile"] << "\n";
    write_loss(out);
    out << "[actor.optim]\nlr = " << trl_["learning_rate"] << "\nweight_decay = " << trl_["weight_decay"]
        << "\nbetas = [" << trl_["adam_beta1"] << ", " << trl_["adam_beta2"] << "]\neps = " << trl_["adam_epsilon"]
        << "\nlr_scheduler_type = \"" << text("lr_scheduler_type") << "\"\nlr_warmup_steps = " << trl_["warmup_steps"]
        << "\n";
  }

  void write_loss(std::ostream& out) const {
    const std::string type = text("loss_type");
    const Json& low = trl_["epsilon"];
    const Json& high = trl_["epsilon_high"].is_null() ? low : trl_["epsilon_high"];
    out << "[actor.policy_loss]\nloss_mode = \"";
    if (type == "cispo") {
      out << "cispo\"\ncap = " << high << "\n";
    } else if (type == "sapo") {
      out << "sapo\"\ntau_pos = " << trl_["sapo_temperature_pos"] << "\ntau_neg = " << trl_["sapo_temperature_neg"]
          << "\n";
    } else if (type == "vespo") {
      out << "vespo\"\n";
      for (const char* key : {"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"})
        out << key << " = " << trl_[key] << "\n";
    } else {
      out << (type == "luspo"       ? "luspo"
              : at_sequence_level() ? "gspo"
                                    : "vanilla")
          << "\"\nclip_ratio_low = " << low << "\nclip_ratio_high = " << high << "\n";
      if (!trl_["delta"].is_null()) out << "delta = " << trl_["delta"] << "\n";
    }
  }

  void write_trainer(std::ostream& out) const {
    out << "[trainer]\n"
        << (micro_batch_ == 0 ? "" : "num_threads = 1\n") << "default_local_dir = \"" << (run_dir_ / "out").string()
        << "\"\nlogger = []\n";
    if (imported_) return;
    out << "val_before_train = false\n";
    if (!carries_rows())
      out << "total_training_steps = " << derived_["generation_batches"] << "\n";
    else if (trl_.contains("max_steps"))
      out << "total_training_updates = " << trl_["max_steps"] << "\n";
    else
      out << "total_epochs = " << trl_["num_train_epochs"] << "\n";
  }

  void write_rewards(std::ostream& out) const {
    const Json weights = trl_["reward_weights"].is_null() ? Json::array({1.0}) : trl_["reward_weights"];
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string key = i == 0 ? "scores" : "scores_" + std::to_string(i + 1);
      out << "[[reward]]\nuse = \"column\"\nname = \"" << key << "\"\nkey = \"" << key << "\"\nweight = " << weights[i]
          << "\n";
    }
  }

  const Json& trl_;
  const Json& derived_;
  fs::path folder_, run_dir_;
  int64_t micro_batch_;
  bool imported_;
  bool by_engine_;
};

// The program's exit status and, where it is not 0, what it said.
inline std::string run_program(const std::string& arguments, const fs::path& console) {
  const std::string program = named_program().empty() ? program_with_shared_engine() : named_program();
  const std::string command = program + " " + arguments + " > " + console.string() + " 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream said(console);
  return status == 0 ? "" : std::to_string(status) + ": " + std::string(std::istreambuf_iterator<char>(said), {});
}

inline std::vector<Json> read_lines(const fs::path& path) {
  std::vector<Json> rows;
  auto reader = JsonlReader::open(default_env(), path).value();
  while (auto row = reader.next().value()) rows.push_back(row->value);
  return rows;
}

// Writes RUN_DIR/run.toml, and what it is based on. The error of `config import` if that fails.
inline std::string write_run(const ReplayCase& test, const Json& params, const fs::path& folder,
                             const fs::path& run_dir) {
  if (test.imported) {
    const fs::path settings = run_dir / "trl.json";
    std::ofstream(settings) << params["trl"].dump();
    std::string failed = run_program("config import --from trl " + settings.string() + " --overwrite --output " +
                                         (run_dir / "imported.toml").string(),
                                     run_dir / "import.txt");
    if (!failed.empty()) return failed;
  }
  RunFile(params, folder, run_dir, test).write();
  return "";
}

}  // namespace mortise::test
