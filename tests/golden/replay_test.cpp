// Replayed runs against TRL's trajectories: every update's numbers, the numbers of each step's samples and the final
// parameters, for micro-batches of 1, 3 and all rows. Runs the program itself, so the whole path is on trial: config,
// data, replay backend, column reward, advantages, losses, KL, masks, schedule, AdamW, updates.jsonl, checkpoint. TRL's
// settings reach it on two ways: as `config import --from trl` translates them, and written by hand (RunFile).
//
// Prints the deviations. A short run takes 3, imported, for each case, and one of 1 and all rows by hand for every third,
// MORTISE_LONG=1 all.
// MORTISE_TEST_DEVICE=NAME runs them on that model.device. For MORTISE_REPLAY_PROGRAM see replay_run.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "replay_run.h"
#include "support/long_run.h"
#include "support/test_device.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;
using test::cases_folder;
using test::read_lines;
using test::ReplayCase;
using test::run_program;

// Largest deviation of each number of a run, as a share of what it may be.
struct Deviations {
  ReplayCase test;
  std::map<std::string, double> share;
  double parameters = 0.0;  // L2 over the distance moved
};

class DeviationTable : public testing::Environment {
 public:
  std::vector<Deviations> rows;
  void TearDown() override {
    const char* const columns[] = {"loss", "grad_norm", "entropy", "kl", "clip ratios", "samples", "parameters"};
    std::printf("deviation / bound; parameters also as L2 over the distance moved\n%-20s %5s %6s", "case", "micro",
                "by");
    for (const char* column : columns) std::printf(" %11s", column);
    std::printf("\n");
    for (const Deviations& row : rows) {
      std::printf("%-20s %5s %6s", row.test.name.c_str(), row.test.micro_name().c_str(),
                  row.test.imported ? "import" : "hand");
      for (const char* column : columns) {
        const auto found = row.share.find(column);
        if (found == row.share.end())
          std::printf(" %11s", "-");
        else
          std::printf(" %11.4f", found->second);
      }
      std::printf("  %.1e\n", row.parameters);
    }
  }
};

DeviationTable& table() {
  static auto* environment = new DeviationTable;
  return *environment;
}
// gtest owns it and prints it at the end.
[[maybe_unused]] const testing::Environment* const kRegistered = testing::AddGlobalTestEnvironment(&table());

class Replay : public testing::TestWithParam<ReplayCase> {
 protected:
  void SetUp() override {
    folder_ = cases_folder() / GetParam().name;
    run_dir_ = test::fresh_run_folder(test::name_of(GetParam()));
    params_ = read_json_file(default_env(), folder_ / "params.json").value();
    const Json trl = read_json_file(default_env(), folder_ / "expected.json").value();
    tolerance_ = trl["tolerance"];
    // If updates share a generation batch, TRL divides by the mean over them. The window's own count is the right
    // divisor.
    const bool has_window = fs::exists(folder_ / "expected_window.json");
    steps_ =
        has_window ? read_json_file(default_env(), folder_ / "expected_window.json").value()["steps"] : trl["steps"];
    deviations_.test = GetParam();
  }
  void TearDown() override { table().rows.push_back(deviations_); }

  static double value_of(const Json& step, const std::string& name) {
    if (step["window"].contains(name)) return step["window"][name].get<double>();
    return step[name].get<double>();
  }

  // Ten times the observed drift of float32, but not below the floor.
  [[nodiscard]] double bound_of(const std::string& name, double floor_abs) const {
    const std::string key = tolerance_.contains("window." + name) ? "window." + name : name;
    double scale = 0.0;
    for (const Json& step : steps_) {
      if (step["window"].contains(name) || step.contains(name)) scale = std::max(scale, std::abs(value_of(step, name)));
    }
    const double bound = std::max(floor_abs, 1e-5 * scale);
    return tolerance_.contains(key) ? std::max(bound, 10.0 * tolerance_[key]["abs"].get<double>()) : bound;
  }

  void compare(double ours, double theirs, double bound, const std::string& column, const std::string& what) {
    EXPECT_NEAR(ours, theirs, bound) << what;
    const double deviation = std::abs(ours - theirs);
    double& worst = deviations_.share[column];
    worst = std::max(worst, deviation == 0.0 ? 0.0 : deviation / bound);
  }

  void compare_updates(const std::vector<Json>& updates, const std::string& ours, const std::string& theirs,
                       const std::string& column, double floor_abs = 0.0) {
    if (!steps_[0]["window"].contains(theirs) && !steps_[0].contains(theirs)) return;
    const double bound = bound_of(theirs, floor_abs);
    for (size_t i = 0; i < steps_.size(); ++i) {
      ASSERT_TRUE(updates[i].contains(ours)) << "update " << i + 1 << " has no " << ours;
      compare(updates[i][ours].get<double>(), value_of(steps_[i], theirs), bound, column,
              ours + " of update " + std::to_string(i + 1));
    }
  }

  // Metrics of the samples. TRL logs them with the first update after a generation.
  void compare_samples(const std::vector<Json>& metrics) {
    const std::pair<const char*, const char*> names[] = {
        {"reward", "reward"},
        {"reward_std", "reward_std"},
        {"frac_reward_zero_std", "frac_reward_zero_std"},
        {"rewards/scores/mean", "score_mean"},
        {"rewards/scores/std", "score_std"},
        {"rewards/scores_2/mean", "score_2_mean"},
        {"rewards/scores_2/std", "score_2_std"},
        {"completions/mean_length", "completions_mean_length"},
        {"completions/min_length", "completions_min_length"},
        {"completions/max_length", "completions_max_length"},
        {"completions/clipped_ratio", "completions_clipped_ratio"},
        {"completions/mean_terminated_length", "completions_mean_terminated_length"},
        {"completions/min_terminated_length", "completions_min_terminated_length"},
        {"completions/max_terminated_length", "completions_max_terminated_length"}};
    if (!params_["derived"].contains("optimizer_steps_per_generation_batch")) return;  // they differ
    const auto per_step = params_["derived"]["optimizer_steps_per_generation_batch"].get<size_t>();
    ASSERT_EQ(metrics.size() * per_step, steps_.size());
    for (size_t i = 0; i < metrics.size(); ++i) {
      const Json& step = steps_[i * per_step];
      for (const auto& [ours, theirs] : names) {
        // TRL logs the share of rows whose divisor is 0. If the batch divides, no group has such a divisor.
        const bool other = std::string_view(theirs) == "frac_reward_zero_std" && divides_by_batch();
        if (other || !step.contains(theirs)) continue;
        ASSERT_TRUE(metrics[i].contains(ours)) << ours;
        compare(metrics[i][ours].get<double>(), step[theirs].get<double>(), bound_of(theirs, 1e-6), "samples",
                std::string(ours) + " of step " + std::to_string(i + 1));
      }
    }
  }

  [[nodiscard]] bool divides_by_batch() {
    return params_["trl"]["scale_rewards"] == "batch" ||
           params_["trl"]["multi_objective_aggregation"] == "normalize_then_sum";
  }

  // L2 distance of the final parameters, relative to the L2 distance that they moved. Some cases keep every 4th row of
  // a matrix (metadata row_stride).
  void compare_parameters() {
    const int64_t steps = params_["derived"]["generation_batches"].get<int64_t>();
    const fs::path saved =
        run_dir_ / "out" / ("global_step_" + std::to_string(steps)) / "huggingface/model.safetensors";
    const auto ours = SafetensorsFile::open(default_env(), saved).value();
    const bool own_window = fs::exists(folder_ / "final_window.safetensors");
    const auto theirs =
        SafetensorsFile::open(default_env(), folder_ / (own_window ? "final_window.safetensors" : "final.safetensors"))
            .value();
    const auto initial = SafetensorsFile::open(default_env(), folder_ / "model/model.safetensors").value();
    const auto stride_text = theirs.metadata().find("row_stride");
    const size_t stride = stride_text == theirs.metadata().end() ? 1 : std::stoul(stride_text->second);
    double distance = 0.0, moved = 0.0;
    for (const TensorView& tensor : theirs.tensors()) {
      const TensorView a = ours.get(tensor.name).value();
      const TensorView start = initial.get(tensor.name).value();
      const bool thinned = a.shape != tensor.shape;
      ASSERT_EQ(a.shape.size(), tensor.shape.size()) << tensor.name;
      ASSERT_EQ(a.shape.back(), tensor.shape.back()) << tensor.name;
      ASSERT_TRUE(!thinned || stride > 1) << tensor.name;
      const auto width = static_cast<size_t>(tensor.shape.back());
      for (size_t i = 0; i < tensor.as<float>().size(); ++i) {
        const size_t at = thinned ? i / width * stride * width + i % width : i;
        const double expected = tensor.as<float>()[i];
        distance += std::pow(static_cast<double>(a.as<float>()[at]) - expected, 2);
        moved += std::pow(static_cast<double>(start.as<float>()[at]) - expected, 2);
      }
    }
    ASSERT_GT(moved, 0.0);
    const double bound = std::max(1e-3, 10.0 * tolerance_["final_parameters"]["rel_to_move"].get<double>());
    deviations_.parameters = std::sqrt(distance / moved);
    compare(deviations_.parameters, 0.0, bound, "parameters", "final parameters");
  }

  fs::path folder_, run_dir_;
  Json params_, steps_, tolerance_;
  Deviations deviations_;
};

TEST_P(Replay, FollowsTrl) {
  ASSERT_EQ(test::write_run(GetParam(), params_, folder_, run_dir_), "");
  const std::string device = test::named_device().empty() ? "" : " model.device=" + test::named_device();
  ASSERT_EQ(run_program("train " + (run_dir_ / "run.toml").string() + device, run_dir_ / "console.txt"), "");
  if (test::named_program().ends_with("emulated_engine")) {
    const std::string said = default_env().read_file(run_dir_ / "console.txt").value();
    ASSERT_NE(said.find("emulated kernels step"), std::string::npos) << "the kernels were not used: " << said;
  }
  const std::vector<Json> updates = read_lines(run_dir_ / "out/updates.jsonl");
  ASSERT_EQ(updates.size(), steps_.size());

  compare_updates(updates, "loss", "loss", "loss", 2e-6);
  compare_updates(updates, "grad_norm", "grad_norm", "grad_norm");
  compare_updates(updates, "lr", "learning_rate", "learning rate");
  compare_updates(updates, "entropy", "entropy", "entropy");
  compare_updates(updates, "kl", "kl", "kl");
  for (const char* name : {"clip_ratio_low", "clip_ratio_high", "clip_ratio_region", "cispo_clip_ratio"})
    compare_updates(updates, name, name, "clip ratios");
  compare_updates(updates, "vespo_phi_mean", "vespo_phi_mean", "clip ratios");
  compare_samples(read_lines(run_dir_ / "out/metrics.jsonl"));
  compare_parameters();
}

std::vector<ReplayCase> all_cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(cases_folder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  // A short run takes one of the six for each case, and a second one for every third.
  const bool all = test::is_long();
  std::vector<ReplayCase> cases;
  for (size_t i = 0; i < names.size(); ++i) {
    for (const int64_t micro : {1, 3, 0}) {
      const bool by_hand = micro != 3 && i % 3 == 0 && (micro == 1) == (i % 2 == 0);
      if (all || by_hand) cases.push_back({names[i], micro, false});
      if (all || micro == 3) cases.push_back({names[i], micro, true});
    }
  }
  if (std::ranges::count(names, "two_rewards_gdpo") > 0)
    cases.push_back({"two_rewards_gdpo", 3, false, /*by_engine=*/true});
  return cases;
}

std::string case_name(const testing::TestParamInfo<ReplayCase>& test) { return test::name_of(test.param); }

INSTANTIATE_TEST_SUITE_P(Cases, Replay, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace mortise
