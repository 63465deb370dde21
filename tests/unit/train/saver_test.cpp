// The saver of a run: which step a checkpoint is of, where a step fails whose work has begun.
#include <gmock/gmock.h>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "support/golden_models.h"
#include "support/temp_dir.h"
#include "train/report/run_log.h"
#include "train/resume/checkpointing.h"

namespace mortise {
namespace {

// A run of a tiny model after two steps, whose only state is its counters.
class SaverTest : public testing::Test {
 protected:
  void SetUp() override {
    const Path folder = Path(MORTISE_SOURCE_DIR) / "tests/golden/reward_model/model";  // for its tokenizer
    const std::vector<std::string> settings{"trainer.default_local_dir=" + (dir_.path() / "out").string(),
                                            "trainer.logger=[]", "trainer.save_freq=-1",
                                            "model.path=" + folder.string()};
    ASSERT_OK_AND_ASSIGN(loaded_, load_config(default_env(), "", settings));
    auto log = RunLog::open(default_env(), *loaded_, nullptr, {});
    ASSERT_OK(log);
    log_.emplace(*std::move(log));
    run_.emplace(default_env(), *loaded_, alone());
    run_->total_steps = 10;
    RegistryOptions no_packs;
    no_packs.use_environment = no_packs.use_user_packs = false;
    no_packs.builtin_dir = dir_.path();
    ASSERT_OK_AND_ASSIGN(registry_, PluginRegistry::open(no_packs));
    ASSERT_OK_AND_ASSIGN(policy_.folder, PolicyFolder::load(default_env(), loaded_->config));
    ASSERT_OK_AND_ASSIGN(policy_.model, Model::load(default_env(), test::golden_model("qwen2_tied"), "float32"));
    progress_.emplace(loaded_->config);
    ASSERT_OK(stateful_.add(progress_->counters));
    progress_->counters.step = 2;
  }

  RunSaver saver() { return {{*run_, *registry_, policy_, *progress_, stateful_}, *log_}; }

  // The step that the state of a checkpoint was saved after; -1 if there is none of that name.
  int64_t step_of(const std::string& name) {
    const Path path = dir_.path() / "out" / name;
    if (!default_env().exists(path)) return -1;
    const auto checkpoint = Checkpoint::open(default_env(), path);
    EXPECT_OK(checkpoint);
    RunCounters counters;
    StateReader reader(counters.state_name(), &checkpoint->state(), path.string());
    EXPECT_OK(counters.load_state(reader));
    return counters.step;
  }

  const test::TempDir dir_;
  std::optional<LoadedConfig> loaded_;
  std::optional<RunLog> log_;
  std::optional<RunSettings> run_;
  std::optional<PluginRegistry> registry_;
  PolicyParts policy_;
  std::optional<RunProgress> progress_;
  StatefulRegistry stateful_;
};

const Error kFailed{ErrorKind::kReward, "the reward failed", "", ""};

// The step that fails may already be counted: what is kept is the state before it, under the name of its step.
TEST_F(SaverTest, WhatIsKeptOfAFailedStepIsTheStepBefore) {
  RunSaver saver = this->saver();
  progress_->counters.step = 3;
  saver.step_begins();
  progress_->counters.step = 4;
  saver.keep_finished_steps(kFailed);
  EXPECT_EQ(step_of("global_step_3"), 3);
  EXPECT_EQ(step_of("global_step_4"), -1);
  EXPECT_THAT(saver.last_checkpoint(), testing::EndsWith("out/global_step_3"));
}

TEST_F(SaverTest, NothingIsKeptTwiceOrFromBeforeWhatWasLearnt) {
  RunSaver saver = this->saver();
  saver.step_begins();
  saver.keep_finished_steps(kFailed);  // the checkpoint that the run resumed from is of step 2
  EXPECT_EQ(step_of("global_step_2"), -1);
  progress_->counters.step = 3;
  saver.step_begins();
  saver.learning_begins();  // the critic: the weights of step 3 are gone
  saver.keep_finished_steps(kFailed);
  EXPECT_EQ(step_of("global_step_3"), -1);
  saver.step_begins();
  saver.keep_finished_steps(Error{ErrorKind::kNumerics, "the loss is NaN", "", ""});
  EXPECT_EQ(step_of("global_step_3"), -1) << "diverged weights";
  saver.keep_last_step(kFailed);
  EXPECT_EQ(step_of("global_step_3"), 3) << "a finished step whose validation failed";
}

}  // namespace
}  // namespace mortise
