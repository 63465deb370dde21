// Where a run of another framework sends its metrics, and the names that trackers show.
#include "import_support.h"

namespace mortise::test {
namespace {

std::string of_verl(const std::string& more) { return "algorithm.adv_estimator=grpo " + more; }

TEST(ImportTrackers, VerlsNamesCountIfATrackerShowsThem) {
  const std::string names = " trainer.project_name=sums trainer.experiment_name=first";
  const std::string shown = of_verl("trainer.logger=[wandb,swanlab]" + names);
  RunConfig config = imported("verl", shown, "run.sh");
  EXPECT_EQ(config.trainer.project_name, "sums");
  EXPECT_EQ(config.trainer.experiment_name, "first");
  EXPECT_THAT(config.trainer.logger, ElementsAre(LogTarget::kWandb));
  ASSERT_OK_AND_ASSIGN(ImportedConfig told, import_text("verl", shown, "run.sh"));
  EXPECT_THAT(told.toml, HasSubstr("metrics.jsonl is always written; not here: swanlab\n"));
  for (const std::string logger : {"", "trainer.logger=[console,tensorboard]"}) {
    config = imported("verl", of_verl(logger + names), "run.sh");
    EXPECT_EQ(config.trainer.project_name, "mortise");
    EXPECT_EQ(config.trainer.experiment_name, std::nullopt);
    ASSERT_OK_AND_ASSIGN(told, import_text("verl", of_verl(logger + names), "run.sh"));
    EXPECT_THAT(told.toml, HasSubstr("trainer.project_name is shown by wandb and mlflow, which are not in use"));
  }
}

TEST(ImportTrackers, ANameThatOnlyTheScriptKnowsIsLeftOut) {
  const std::string script =
      "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.logger=[mlflow] "
      "trainer.project_name=sums trainer.experiment_name=x_$(date)";
  const RunConfig config = imported("verl", script, "run.sh");
  EXPECT_EQ(config.trainer.project_name, "sums");
  EXPECT_EQ(config.trainer.experiment_name, std::nullopt);
}

TEST(ImportTrackers, TrlsRunName) {
  const std::string batches = "per_device_train_batch_size: 8\nnum_generations: 8\nrun_name: first\n";
  RunConfig config = imported("trl", batches + "report_to: [wandb, trackio]\n", "run.yaml");
  EXPECT_EQ(config.trainer.experiment_name, "first");
  EXPECT_THAT(config.trainer.logger, ElementsAre(LogTarget::kConsole, LogTarget::kWandb));
  config = imported("trl", batches + "report_to: all\n", "run.yaml");
  EXPECT_EQ(config.trainer.experiment_name, "first");
  EXPECT_THAT(config.trainer.logger,
              ElementsAre(LogTarget::kConsole, LogTarget::kTensorboard, LogTarget::kWandb, LogTarget::kMlflow));
  config = imported("trl", batches + "report_to: none\n", "run.yaml");
  EXPECT_EQ(config.trainer.experiment_name, std::nullopt);
  EXPECT_THAT(config.trainer.logger, ElementsAre(LogTarget::kConsole));
}

}  // namespace
}  // namespace mortise::test
