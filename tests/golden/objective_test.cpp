// TRL's whole losses and verl's value losses the way a user gets them: the settings through `config import`, the
// tensors through `objective eval`, value, gradient and metrics against the published ones; and what the command does
// not take. A short run takes one case of every set of settings, MORTISE_LONG=1 all.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "support/engine/shared_engine.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

namespace fs = std::filesystem;

class ObjectiveCommand : public testing::Test {
 protected:
  // What it prints; "" and a failure where it ends badly.
  std::string run(const std::string& arguments) const {
    const Path out = dir_.path() / "out.txt", err = dir_.path() / "err.txt";
    const std::string command =
        program_with_shared_engine() + " " + arguments + " > " + out.string() + " 2> " + err.string();
    const int code = std::system(command.c_str());
    EXPECT_EQ(code, 0) << arguments << "\n" << default_env().read_file(err).value();
    return code == 0 ? default_env().read_file(out).value() : "";
  }
  // What `objective eval` says where it refuses.
  std::string refusal(const std::string& arguments) const {
    const std::string command = program_with_shared_engine() + " objective eval " + arguments + " --outputs " +
                                path("out.safetensors") + " 2> " + path("err.txt");
    EXPECT_NE(std::system(command.c_str()), 0) << arguments;
    return default_env().read_file(path("err.txt")).value();
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  // Runs `objective eval` with `arguments` on the case and compares all that it publishes.
  void expect_published(const fs::path& file, const SafetensorsFile& golden, const std::string& arguments) const {
    const std::string printed =
        run("objective eval " + arguments + " --inputs " + file.string() + " --outputs " + path("out.safetensors"));
    if (printed.empty()) return;
    ASSERT_OK_AND_ASSIGN(const SafetensorsFile got, SafetensorsFile::open(default_env(), path("out.safetensors")));
    for (const TensorView& tensor : golden.tensors()) {
      if (!tensor.name.starts_with("expected.")) continue;
      const TensorView* mine = got.find(tensor.name.substr(9));
      ASSERT_NE(mine, nullptr) << tensor.name;
      ASSERT_EQ(mine->as<float>().size(), tensor.as<float>().size()) << tensor.name;
      float largest = 1e-9F;
      for (const float x : tensor.as<float>()) largest = std::max(largest, std::abs(x));
      for (size_t i = 0; i < tensor.as<float>().size(); ++i)
        EXPECT_NEAR(mine->as<float>()[i], tensor.as<float>()[i], 1e-5F * largest) << tensor.name << " " << i;
    }
    const Json metrics = parse_json(printed, "metrics").value()["metrics"];
    const Json published = parse_json(golden.metadata().at("metrics"), "published").value();
    for (const auto& [name, value] : published.items()) {
      if (name == "entropy" && golden.find("in.entropy") == nullptr) continue;  // the model has it
      ASSERT_TRUE(metrics.contains(name)) << name;
      EXPECT_NEAR(metrics[name].get<double>(), value.get<double>(), 1e-5) << name;
    }
  }

  // One file of every set of parameters, or all.
  static std::vector<fs::path> cases(const char* folder, const char* prefix = "") {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(fs::path(MORTISE_SOURCE_DIR) / "tests/golden" / folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix) && name.ends_with(".safetensors")) files.insert(entry.path());
    }
    std::vector<fs::path> out;
    std::set<std::string> seen;
    for (const fs::path& file : files) {
      const SafetensorsFile golden = SafetensorsFile::open(default_env(), file).value();
      if (seen.insert(golden.metadata().at("params")).second || std::getenv("MORTISE_LONG") != nullptr)
        out.push_back(file);
    }
    return out;
  }

 private:
  TempDir dir_;
};

TEST_F(ObjectiveCommand, IsTrlsLossAsImported) {
  std::vector<fs::path> files = cases("trl");
  EXPECT_GE(files.size(), 15U);
  const std::vector<fs::path> with_kl = cases("trl_kl");
  EXPECT_EQ(with_kl.size(), 22U);
  files.insert(files.end(), with_kl.begin(), with_kl.end());
  const std::vector<fs::path> with_bonus = cases("trl_entropy");
  EXPECT_EQ(with_bonus.size(), 22U);
  files.insert(files.end(), with_bonus.begin(), with_bonus.end());
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.filename().string());
    ASSERT_OK_AND_ASSIGN(const SafetensorsFile golden, SafetensorsFile::open(default_env(), file));
    Json settings = parse_json(golden.metadata().at("params"), "params").value();
    constexpr std::pair<const char*, const char*> kNames[] = {{"trl_loss_type", "loss_type"},
                                                              {"epsilon_low", "epsilon"}};
    for (const auto& [name, theirs] : kNames) {
      if (!settings.contains(name)) continue;
      settings[theirs] = settings[name];
      settings.erase(name);
    }
    if (!settings.contains("use_bias_correction_kl")) settings["use_bias_correction_kl"] = false;  // older than it
    std::ofstream(path("grpo.json")) << settings.dump();
    run("config import --from trl " + path("grpo.json") + " --overwrite --output " + path("run.toml"));
    expect_published(file, golden, "--config " + path("run.toml"));
  }
}

TEST_F(ObjectiveCommand, IsVerlsValueLoss) {
  const std::vector<fs::path> files = cases("tensors", "value_loss.");
  EXPECT_GE(files.size(), 2U);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.filename().string());
    ASSERT_OK_AND_ASSIGN(const SafetensorsFile golden, SafetensorsFile::open(default_env(), file));
    const Json params = parse_json(golden.metadata().at("params"), "params").value();
    expect_published(file, golden,
                     "--critic critic.loss_agg_mode=" + params["loss_agg_mode"].get<std::string>() +
                         " critic.cliprange_value=" + params["cliprange_value"].dump());
  }
}

TEST_F(ObjectiveCommand, BypassModeWantsTheSamplersLogProbs) {
  EXPECT_NE(refusal("algorithm.rollout_correction.bypass_mode=true --inputs " + cases("trl").front().string())
                .find("the input 'rollout_log_prob' is missing"),
            std::string::npos);
}

// Two rows of two tokens, all inputs -1 but the last number of one of them.
class ObjectiveInputs : public ObjectiveCommand {
 protected:
  std::string file(const std::vector<std::string>& names, const std::string& other = "", float value = 0,
                   bool with_groups = false) const {
    const std::vector<float> plain(4, -1.0F), ones(4, 1.0F), changed = {-1, -1, -1, value};
    const std::vector<int64_t> groups = {3, 3};
    std::vector<TensorView> tensors = {view_of<float>("in.response_mask", ones, {2, 2})};
    for (const std::string& name : names)
      tensors.push_back(view_of<float>("in." + name, name == other ? changed : plain, {2, 2}));
    if (with_groups) tensors.push_back(view_of<int64_t>("in.group_index", groups, {2}));
    EXPECT_OK(write_safetensors_file(default_env(), path("in.safetensors"), tensors));
    return " --inputs " + path("in.safetensors");
  }
  const std::vector<std::string> actor_ = {"log_prob", "advantages", "entropy", "rollout_log_prob"};
  const std::vector<std::string> critic_ = {"vpreds", "values", "returns"};
};

// Masks would hide them, or the loss be no number either.
TEST_F(ObjectiveInputs, MustBeNumbers) {
  const auto expect_refused = [&](const std::string& settings, const std::vector<std::string>& names,
                                  const std::string& other, float value, const std::string& says) {
    const std::string error = refusal(settings + file(names, other, value));
    EXPECT_NE(error.find("in.safetensors: tensor 'in." + other + "' holds " + says), std::string::npos) << error;
  };
  const std::string masked = "actor.off_policy_mask_threshold=0.1", number = "nan in row 1, token 1, must be a number";
  expect_refused(masked, actor_, "rollout_log_prob", NAN, number);
  expect_refused(masked, actor_, "log_prob", NAN, number);
  expect_refused("actor.top_entropy_quantile=0.5", actor_, "entropy", NAN, "nan in row 1, token 1, must be finite");
  expect_refused("", actor_, "advantages", -INFINITY, "-inf in row 1, token 1, must be finite");
  expect_refused("--critic", critic_, "returns", INFINITY, "inf in row 1, token 1, must be finite");
  EXPECT_NE(refusal("--critic" + file(critic_, "returns", 1e30F)).find("e+59, too large for float32"),
            std::string::npos);
  std::vector<std::string> with_old = actor_;
  with_old.emplace_back("old_log_prob");
  run("objective eval --outputs " + path("out.safetensors") + file(with_old, "log_prob", -INFINITY));  // a ratio of 0
}

TEST_F(ObjectiveInputs, GroupsMustBeThereWhereTheyMatter) {
  for (const std::string settings : {"actor.loss_agg_mode=prompt-mean", "actor.policy_loss.loss_mode=real"}) {
    const std::string error = refusal(settings + file(actor_));
    EXPECT_NE(error.find("needs the tensor 'in.group_index'"), std::string::npos) << error;
    run("objective eval --outputs " + path("out.safetensors") + " " + settings + file(actor_, "", 0, true));
  }
}

}  // namespace
}  // namespace mortise::test
