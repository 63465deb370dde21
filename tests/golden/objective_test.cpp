// TRL's whole losses and verl's value losses the way a user gets them: the settings through `config import`, the
// tensors through `objective eval`, value, gradient and metrics against the published ones. A short run takes one case
// of every set of settings, MORTISE_LONG=1 all.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
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
        std::string(MORTISE_BINARY_DIR) + "/bin/mortise " + arguments + " > " + out.string() + " 2> " + err.string();
    const int code = std::system(command.c_str());
    EXPECT_EQ(code, 0) << arguments << "\n" << default_env().read_file(err).value();
    return code == 0 ? default_env().read_file(out).value() : "";
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
      if (name == "entropy" && golden.find("in.entropy") == nullptr) continue;  // of the model, not of these tensors
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
  const std::vector<fs::path> files = cases("trl");
  EXPECT_GE(files.size(), 15U);
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
    settings["use_bias_correction_kl"] = false;  // these cases are older than it
    std::ofstream(path("grpo.json")) << settings.dump();
    run("config import --from trl " + path("grpo.json") + " --output " + path("run.toml"));
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
  const fs::path file = cases("trl").front();
  const std::string command = std::string(MORTISE_BINARY_DIR) +
                              "/bin/mortise objective eval algorithm.rollout_correction.bypass_mode=true --inputs " +
                              file.string() + " --outputs " + path("out.safetensors") + " 2> " + path("err.txt");
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(default_env().read_file(path("err.txt")).value().find("the input 'rollout_log_prob' is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace mortise::test
