// The saver of a run: which step a checkpoint is of, where a step fails whose work has begun.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "learn/optim/split_state.h"
#include "learn/update/tensor_group.h"
#include "support/fault_env.h"
#include "support/golden_models.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "train/report/run_log.h"
#include "train/resume/checkpointing.h"
#include "train/resume/model_state.h"
#include "train/resume/run_inputs.h"

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

// What an optimizer has of a model whose layers ranks share: a number for each of the weights.
struct SplitMoments : Stateful {
  explicit SplitMoments(const Model& model) : part(*model.model_part()) {
    for (const NamedParameter& parameter : part.parameters())
      numbers.push_back(at::zeros(parameter.tensor.sizes(), at::kFloat));
  }
  [[nodiscard]] std::string state_name() const override { return "actor.optim"; }
  Result<> save_state(StateWriter& writer) const override {
    for (size_t i = 0; i < numbers.size(); ++i)
      put_part(writer, part.parameters()[i].name, part, i, numbers[i], /*is_in_file=*/false);
    return {};
  }
  Result<> load_state(StateReader&) override { return {}; }

  const ModelPart& part;
  std::vector<at::Tensor> numbers;
};

// Ranks as threads that save one run together: a model in several files, and a counter. If `tensor_size` of them share the
// layers, the state has no weights, but moments.
class RanksThatSave {
 public:
  static constexpr int kSize = 3;

  explicit RanksThatSave(const Path& dir, int size = kSize, int tensor_size = 1)
      : dir_(dir), size_(size), tensor_size_(tensor_size), moments_(static_cast<size_t>(size)) {
    const std::vector<std::string> settings{
        "trainer.default_local_dir=" + out().string(),
        "trainer.logger=[]",
        "trainer.save_freq=1",
        "trainer.max_shard_size=20KB",
        "trainer.max_actor_ckpt_to_keep=1",
        "model.path=" + (Path(MORTISE_SOURCE_DIR) / "tests/golden/reward_model/model").string()};
    auto loaded = load_config(default_env(), "", settings);
    EXPECT_OK(loaded);
    loaded_ = *std::move(loaded);
  }
  [[nodiscard]] Path out() const { return dir_ / "out"; }

  // `steps` says what a rank does with its saver.
  using Steps = std::function<void(Communicator&, RunSaver&, RunCounters&, test::FaultEnv&, const Model&)>;
  void run(const Steps& steps) {
    test::on_ranks(size_, [&](Communicator& ranks) { run_rank(ranks, steps); });
  }
  // Those of a rank whose steps run now.
  [[nodiscard]] SplitMoments& moments(const Communicator& ranks) {
    return *moments_[static_cast<size_t>(ranks.rank())];
  }

 private:
  void run_rank(Communicator& ranks, const Steps& steps) {
    test::FaultEnv env(default_env());
    RunSettings settings(env, *loaded_, ranks);
    settings.total_steps = 100;
    auto log = ranks.is_main() ? RunLog::open(default_env(), *loaded_, nullptr, {})
                               : RunLog::open_silent(default_env(), loaded_->config.trainer, ranks.rank());
    ASSERT_OK(log);
    RegistryOptions no_packs;
    no_packs.use_environment = no_packs.use_user_packs = false;
    no_packs.builtin_dir = dir_;
    auto registry = PluginRegistry::open(no_packs);
    ASSERT_OK(registry);
    PolicyParts policy;
    ASSERT_OK_AND_ASSIGN(policy.folder, PolicyFolder::load(default_env(), loaded_->config));
    ASSERT_OK_AND_ASSIGN(policy.model, Model::load(default_env(), test::golden_model("qwen2_tied"), "float32"));
    RunProgress progress(loaded_->config);
    ModelState model("actor.model", *policy.model);
    StatefulRegistry stateful;
    ASSERT_OK(stateful.add(progress.counters));
    std::unique_ptr<SplitMoments>& moments = moments_[static_cast<size_t>(ranks.rank())];
    if (tensor_size_ > 1) {
      policy.model->split_layers(std::make_shared<TensorGroup>(ranks, tensor_size_));
      moments = std::make_unique<SplitMoments>(*policy.model);
      ASSERT_OK(stateful.add(*moments));
    } else {
      ASSERT_OK(stateful.add(model));
    }
    RunSaver saver({settings, *registry, policy, progress, stateful, tensor_size_ > 1}, *log);
    steps(ranks, saver, progress.counters, env, *policy.model);
  }

  Path dir_;
  int size_, tensor_size_;
  std::vector<std::unique_ptr<SplitMoments>> moments_;  // by rank
  std::optional<LoadedConfig> loaded_;
};

TEST(RankSaver, RanksSaveOneCheckpointTogether) {
  const test::TempDir dir;
  RanksThatSave ranks(dir.path());
  ranks.run([&](Communicator&, RunSaver& saver, RunCounters& counters, test::FaultEnv&, const Model&) {
    counters.step = 5;
    ASSERT_OK(saver.save_if_due());
    EXPECT_THAT(saver.last_checkpoint(), testing::EndsWith("out/global_step_5"));
  });
  const Path saved = ranks.out() / "global_step_5";
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(default_env(), saved));
  for (const char* name : {"state-00001-of-00003.safetensors", "state-00002-of-00003.safetensors",
                           "state-00003-of-00003.safetensors", "huggingface/model.safetensors.index.json"})
    EXPECT_OK(checkpoint.entry(name));
  // Both forms of the weights are those of the model that was read.
  ASSERT_OK_AND_ASSIGN(Model model, Model::load(default_env(), test::golden_model("qwen2_tied"), "float32"));
  ASSERT_OK_AND_ASSIGN(Model written, Model::load(default_env(), saved / "huggingface", "float32"));
  ASSERT_EQ(written.numbers().size(), model.numbers().size());
  for (size_t i = 0; i < model.numbers().size(); ++i)
    EXPECT_TRUE(written.numbers()[i].tensor.equal(model.numbers()[i].tensor)) << model.numbers()[i].name;
  for (const NamedParameter& parameter : written.numbers()) parameter.tensor.detach().zero_();
  ModelState state("actor.model", written);
  StateReader reader("actor.model", &checkpoint.state(), saved.string());
  ASSERT_OK(state.load_state(reader));
  for (size_t i = 0; i < model.numbers().size(); ++i)
    EXPECT_TRUE(written.numbers()[i].tensor.equal(model.numbers()[i].tensor)) << model.numbers()[i].name;
}

// The disk of one rank is full: all count the failure, keep the last good checkpoint, and stop in the same step.
TEST(RankSaver, AFullDiskOfOneRankCountsOnAll) {
  const test::TempDir dir;
  RanksThatSave ranks(dir.path());
  ranks.run([&](Communicator& group, RunSaver& saver, RunCounters& counters, test::FaultEnv& env, const Model&) {
    const auto save = [&](int64_t step) {
      counters.step = step;
      return saver.save_if_due();
    };
    ASSERT_OK(save(1));
    if (group.rank() == 2) env.disk_full_after(1000);
    ASSERT_OK(save(2));
    EXPECT_EQ(saver.num_failed(), 1);
    EXPECT_THAT(saver.last_checkpoint(), testing::EndsWith("global_step_1"));
    if (group.rank() == 2) env.heal();
    ASSERT_OK(save(3));
    EXPECT_EQ(saver.num_failed(), 0);
    EXPECT_THAT(saver.last_checkpoint(), testing::EndsWith("global_step_3"));
    if (group.rank() == 2) env.disk_full_after(1000);
    ASSERT_OK(save(4));
    ASSERT_OK(save(5));
    const Result<> third = save(6);
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().kind, ErrorKind::kDisk);
    EXPECT_THAT(third.error().to_string(),
                testing::AllOf(testing::HasSubstr("3 saves in a row failed"), testing::HasSubstr("rank 2: "),
                               testing::HasSubstr("the disk is full"), testing::HasSubstr("out/global_step_3")));
  });
  const std::vector<std::string> names = default_env().list_dir(ranks.out()).value();
  EXPECT_THAT(names,
              testing::AllOf(testing::Contains("global_step_3"), testing::Not(testing::Contains("global_step_1")),
                             testing::Each(testing::Not(testing::StartsWith(".tmp_")))));
}

// One number of one rank differs. Nothing is saved, and the good checkpoint stays although only one is kept.
TEST(RankSaver, ARankWithOtherWeightsSavesNothing) {
  const test::TempDir dir;
  RanksThatSave ranks(dir.path());
  ranks.run([&](Communicator& group, RunSaver& saver, RunCounters& counters, test::FaultEnv&, const Model& model) {
    counters.step = 1;
    ASSERT_OK(saver.save_if_due());
    if (group.rank() == 1) model.numbers().back().tensor.detach().view({-1})[0] += 1;
    counters.step = 2;
    const Result<> saved = saver.save_if_due();
    ASSERT_FALSE(saved.ok());
    EXPECT_EQ(saved.error().kind, ErrorKind::kRankFailure);
    EXPECT_THAT(saved.error().to_string(), testing::HasSubstr("of rank 1 differ from those of the other ranks"));
  });
  const std::vector<std::string> names = default_env().list_dir(ranks.out()).value();
  EXPECT_THAT(names, testing::AllOf(testing::Contains("global_step_1"), testing::Contains("latest"),
                                    testing::Not(testing::Contains("global_step_2")),
                                    testing::Each(testing::Not(testing::StartsWith(".tmp_")))));
}

// Two ranks share the layers, and three have each part. One number of one rank differs: of weights that all have, of its part
// of the layers, or of its part of a moment that another rank writes.
TEST(RankSaver, ARankWithAnotherPartSavesNothing) {
  struct Fault {
    int rank;
    bool is_moment, is_split;
  };
  for (const Fault& fault : {Fault{5, false, false}, Fault{2, false, true}, Fault{0, false, true}, Fault{1, true, true},
                             Fault{4, true, true}, Fault{3, true, false}}) {
    SCOPED_TRACE(fault.rank);
    const test::TempDir dir;
    RanksThatSave ranks(dir.path(), 6, 2);
    ranks.run([&](Communicator& group, RunSaver& saver, RunCounters& counters, test::FaultEnv&, const Model& model) {
      counters.step = 1;
      ASSERT_OK(saver.save_if_due());
      const ModelPart& part = *model.model_part();
      size_t place = 0;  // a parameter that the rank's group does not write
      const auto is_meant = [&] {
        return part.split(place).is_split() == fault.is_split && static_cast<int>(place) % 3 != fault.rank / 2;
      };
      while (!is_meant()) ++place;
      const at::Tensor numbers =
          fault.is_moment ? ranks.moments(group).numbers[place] : part.parameters()[place].tensor.detach();
      if (group.rank() == fault.rank) numbers.view({-1})[0] += 1;
      counters.step = 2;
      const Result<> saved = saver.save_if_due();
      ASSERT_FALSE(saved.ok());
      EXPECT_EQ(saved.error().kind, ErrorKind::kRankFailure);
      EXPECT_THAT(saved.error().to_string(), testing::HasSubstr("of rank " + std::to_string(fault.rank) +
                                                                " differ from those of the other ranks"));
    });
    EXPECT_THAT(default_env().list_dir(ranks.out()).value(),
                testing::AllOf(testing::Contains("global_step_1"), testing::Not(testing::Contains("global_step_2"))));
  }
}

// The digest of a model whose layers ranks share is that of the whole model. The ranks do not gather it for that.
TEST(RankSaver, TheDigestOfAModelDoesNotDependOnTheRanks) {
  ASSERT_OK_AND_ASSIGN(const Model whole, Model::load(default_env(), test::golden_model("qwen2_tied"), "float32"));
  ASSERT_OK_AND_ASSIGN(const std::string digest, digest_of_model(whole));
  test::on_ranks(4, [&](Communicator& ranks) {  // the model has two key-value heads
    ASSERT_OK_AND_ASSIGN(Model model, Model::load(default_env(), test::golden_model("qwen2_tied"), "float32"));
    model.split_layers(std::make_shared<TensorGroup>(ranks, 4));
    EXPECT_EQ(digest_of_model(model).value(), digest);
    EXPECT_FALSE(model.is_whole());
    const ModelPart& part = *model.model_part();
    if (ranks.rank() == 2) part.parameters()[part.find("model.norm.weight")].tensor.detach().view({-1})[0] += 1;
    EXPECT_EQ(digest_of_model(model).value() == digest, ranks.rank() != 2);
  });
}

TEST(RankSaver, RanksMustSeeOneFolder) {
  const test::TempDir dir;
  for (const bool is_shared : {true, false}) {
    test::on_ranks(2, [&](Communicator& ranks) {
      const Path out = dir.path() / (is_shared || ranks.is_main() ? "out" : "elsewhere");
      const std::vector<std::string> options{"trainer.default_local_dir=" + out.string()};
      ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_config(default_env(), "", options));
      const RunSettings settings(default_env(), loaded, ranks);
      const Result<> checked = check_shared_folder(settings);
      ASSERT_EQ(checked.ok(), is_shared);
      if (is_shared) return;
      EXPECT_EQ(checked.error().kind, ErrorKind::kConfig);
      EXPECT_THAT(checked.error().to_string(), testing::HasSubstr("rank 1: this rank does not see the run's folder"));
    });
    EXPECT_THAT(default_env().list_dir(dir.path() / "out").value(), testing::IsEmpty());
  }
}

TEST(RankSaver, LargeModelsAreCutForTheRanks) {
  EXPECT_EQ(rank_file_bytes(100 * (int64_t{1} << 20), 4), 0) << "too small to be worth several files";
  EXPECT_EQ(rank_file_bytes(300 * (int64_t{1} << 20), 4), 75 * (int64_t{1} << 20));
  EXPECT_EQ(rank_file_bytes(130 * (int64_t{1} << 20), 4), 65 * (int64_t{1} << 20));
  EXPECT_EQ(rank_file_bytes(int64_t{1} << 40, 1), 0);
}

}  // namespace
}  // namespace mortise
