// Replayed runs against TRL's trajectories: every update's numbers and the final parameters, for micro-batches of 1, 3
// and all rows. Runs the program itself, so the whole path is on trial: config, data, replay backend, column reward,
// grpo advantages, losses, KL, AdamW, updates.jsonl, checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/safetensors.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

struct ReplayCase {
  std::string name;
  int64_t micro_batch;  // 0 = all rows at once
};

class Replay : public testing::TestWithParam<ReplayCase> {
 protected:
  void SetUp() override {
    folder_ = fs::path(MORTISE_SOURCE_DIR) / "tests/golden/replay" / GetParam().name;
    run_dir_ = fs::path(MORTISE_BINARY_DIR) / "tests/replay" /
               (GetParam().name + "." + std::to_string(GetParam().micro_batch));
    fs::remove_all(run_dir_);
    fs::create_directories(run_dir_);
    params_ = read_json_file(default_env(), folder_ / "params.json").value();
    expected_ = read_json_file(default_env(), folder_ / "expected.json").value();
  }

  // The case's settings under our names (the mapping is tests/golden/replay/README.md's source).
  void write_config() const {
    const Json& trl = params_["trl"];
    const Json& derived = params_["derived"];
    const bool sequence_level = trl["importance_sampling_level"] == "sequence";
    const double epsilon = trl["epsilon"].get<double>();
    const double epsilon_high = trl["epsilon_high"].is_null() ? epsilon : trl["epsilon_high"].get<double>();
    const double beta = trl["beta"].get<double>();
    std::ofstream out(run_dir_ / "run.toml");
    out.precision(17);
    out << "[model]\npath = \"" << (folder_ / "model").string() << "\"\n"
        << "[data]\ntrain_files = [\"" << (folder_ / "samples.jsonl").string()
        << "\"]\nshuffle = false\nmax_response_length = " << trl["max_completion_length"]
        << "\ntrain_batch_size = " << derived["prompts_per_generation_batch"] << "\n"
        << "[algorithm]\nadv_estimator = \"grpo\"\nadv_params = {epsilon = 1e-4}\n"
        << "[actor]\nppo_mini_batch_size = " << derived["prompts_per_optimizer_step"]
        << "\nppo_epochs = " << trl["num_iterations"] << "\nclip_ratio_low = " << epsilon
        << "\nclip_ratio_high = " << epsilon_high << "\nclip_ratio_c = 0\nloss_agg_mode = \""
        << (trl["loss_type"] == "dapo" ? "token-mean" : "seq-mean-token-mean")
        << "\"\ngrad_clip = " << trl["max_grad_norm"] << "\n";
    if (GetParam().micro_batch > 0) out << "ppo_micro_batch_size_per_gpu = " << GetParam().micro_batch << "\n";
    if (beta > 0) out << "use_kl_loss = true\nkl_loss_coef = " << beta << "\nkl_loss_type = \"low_var_kl\"\n";
    out << "[actor.policy_loss]\nloss_mode = \"" << (sequence_level ? "gspo" : "vanilla") << "\"\n"
        << "[actor.optim]\nlr = " << trl["learning_rate"] << "\nweight_decay = " << trl["weight_decay"] << "\nbetas = ["
        << trl["adam_beta1"] << ", " << trl["adam_beta2"] << "]\neps = " << trl["adam_epsilon"] << "\n"
        << "[rollout]\nname = \"replay\"\nn = " << trl["num_generations"]
        << "\ntemperature = " << trl["temperature"].dump() << "\n[rollout.replay]\npath = \""
        << (folder_ / "samples.jsonl").string() << "\"\n"
        << "[[reward]]\nuse = \"column\"\nkey = \"scores\"\n"
        << "[trainer]\ntotal_training_steps = " << derived["generation_batches"]
        << "\nval_before_train = false\ndefault_local_dir = \"" << (run_dir_ / "out").string() << "\"\nlogger = []\n";
  }

  // Largest |ours - theirs| over the updates must stay within ten times the drift of float32, or the floor.
  void compare(const std::vector<Json>& updates, const std::string& ours, const std::string& theirs,
               double floor_abs) const {
    const Json& steps = expected_["steps"];
    ASSERT_EQ(updates.size(), steps.size());
    const std::string drift_key = expected_["tolerance"].contains("window." + theirs) ? "window." + theirs : theirs;
    double scale = 0.0;
    for (const Json& step : steps) scale = std::max(scale, std::abs(value_of(step, theirs)));
    double bound = std::max(floor_abs, 1e-5 * scale);
    if (expected_["tolerance"].contains(drift_key))
      bound = std::max(bound, 10.0 * expected_["tolerance"][drift_key]["abs"].get<double>());
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSERT_TRUE(updates[i].contains(ours)) << "update " << i + 1 << " has no " << ours;
      EXPECT_NEAR(updates[i][ours].get<double>(), value_of(steps[i], theirs), bound) << ours << " of update " << i + 1;
    }
  }

  static double value_of(const Json& step, const std::string& name) {
    if (step["window"].contains(name)) return step["window"][name].get<double>();
    return step[name].get<double>();
  }

  // L2 distance of the final parameters over the L2 distance they moved.
  void compare_parameters() const {
    const int64_t steps = params_["derived"]["generation_batches"].get<int64_t>();
    const fs::path saved =
        run_dir_ / "out" / ("global_step_" + std::to_string(steps)) / "huggingface/model.safetensors";
    const auto ours = SafetensorsFile::open(default_env(), saved).value();
    const auto theirs = SafetensorsFile::open(default_env(), folder_ / "final.safetensors").value();
    const auto initial = SafetensorsFile::open(default_env(), folder_ / "model/model.safetensors").value();
    double distance = 0.0, moved = 0.0;
    for (const TensorView& tensor : theirs.tensors()) {
      const TensorView a = ours.get(tensor.name).value();
      const TensorView start = initial.get(tensor.name).value();
      ASSERT_EQ(a.shape, tensor.shape) << tensor.name;
      for (size_t i = 0; i < tensor.as<float>().size(); ++i) {
        const double expected = tensor.as<float>()[i];
        distance += std::pow(static_cast<double>(a.as<float>()[i]) - expected, 2);
        moved += std::pow(static_cast<double>(start.as<float>()[i]) - expected, 2);
      }
    }
    const double bound = std::max(1e-3, 10.0 * expected_["tolerance"]["final_parameters"]["rel_to_move"].get<double>());
    EXPECT_LE(std::sqrt(distance), bound * std::sqrt(moved));
    EXPECT_GT(moved, 0.0);
    RecordProperty("parameter_deviation", std::to_string(std::sqrt(distance / moved)));
  }

  fs::path folder_, run_dir_;
  Json params_, expected_;
};

TEST_P(Replay, FollowsTrl) {
  write_config();
  const std::string command = std::string(MORTISE_BINARY_DIR) + "/bin/mortise train " +
                              (run_dir_ / "run.toml").string() + " > " + (run_dir_ / "console.txt").string() + " 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream console(run_dir_ / "console.txt");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(console), {});
  std::vector<Json> updates;
  auto reader = JsonlReader::open(default_env(), run_dir_ / "out/updates.jsonl").value();
  while (auto row = reader.next().value()) updates.push_back(row->value);

  compare(updates, "loss", "loss", 2e-6);
  compare(updates, "grad_norm", "grad_norm", 0.0);
  compare(updates, "lr", "learning_rate", 0.0);
  compare(updates, "entropy", "entropy", 0.0);
  if (params_["trl"]["beta"].get<double>() > 0) compare(updates, "kl", "kl", 0.0);
  for (const char* name : {"clip_ratio_low", "clip_ratio_high", "clip_ratio_region"}) compare(updates, name, name, 0.0);
  compare_parameters();
}

std::vector<ReplayCase> all_cases() {
  std::vector<ReplayCase> cases;
  for (const char* name : {"grpo", "grpo_kl", "dapo_accumulation", "gspo"}) {
    for (const int64_t micro : {1, 3, 0}) cases.push_back({name, micro});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<ReplayCase>& test) {
  const ReplayCase& replay = test.param;
  return replay.name + "_micro_" + (replay.micro_batch == 0 ? "all" : std::to_string(replay.micro_batch));
}

INSTANTIATE_TEST_SUITE_P(Cases, Replay, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace mortise
