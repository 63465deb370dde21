// The recipes in configs/ load without a problem and without a warning.
#include "config/check.h"
#include "config/show.h"
#include "config_test_support.h"

namespace mortise::test {
namespace {

const Path kConfigs = Path(MORTISE_SOURCE_DIR) / "configs";

TEST(Recipes, LoadAndPassTheChecks) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, default_env().list_dir(kConfigs));
  int num_recipes = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(".toml")) continue;
    SCOPED_TRACE(name);
    ++num_recipes;
    ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_config(default_env(), kConfigs / name, {}));
    for (const ConfigUse use : {ConfigUse::kTrain, ConfigUse::kSft, ConfigUse::kEval}) {
      if (name.starts_with("sft") != (use == ConfigUse::kSft) && !(use == ConfigUse::kSft && loaded.is_set("sft")))
        continue;
      ASSERT_OK_AND_ASSIGN(const std::vector<Error> warnings, check_config(loaded, use));
      for (const Error& warning : warnings) ADD_FAILURE() << warning.to_string();
    }
  }
  EXPECT_GE(num_recipes, 2);
}

TEST(Recipes, GspoIsTheQuickstartWithOneKeyChanged) {
  ASSERT_OK_AND_ASSIGN(LoadedConfig gspo, load_config(default_env(), kConfigs / "gspo.toml", {}));
  const std::vector<std::string> overrides = {"actor.policy_loss.loss_mode=gspo"};
  ASSERT_OK_AND_ASSIGN(const LoadedConfig quickstart,
                       load_config(default_env(), kConfigs / "quickstart.toml", overrides));
  // It writes to its own folders, so that the two can be compared.
  EXPECT_NE(gspo.config.trainer.default_local_dir, quickstart.config.trainer.default_local_dir);
  gspo.config.trainer.default_local_dir = quickstart.config.trainer.default_local_dir;
  gspo.config.trainer.validation_data_dir = quickstart.config.trainer.validation_data_dir;
  EXPECT_EQ(config_to_toml(gspo.config), config_to_toml(quickstart.config));
}

}  // namespace
}  // namespace mortise::test
