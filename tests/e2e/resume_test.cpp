// Runs that are repeated, stopped, and resumed from every place: the same bits; and checkpoints that are not whole.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/reader.h"
#include "foundation/formats/safetensors.h"
#include "process.h"
#include "run_bits.h"
#include "support/long_run.h"

namespace mortise::test {
namespace {

// 14 rows in batches of 4: epochs of three steps, so that steps 3 and 6 end one.
TEST(Resume, FromEveryStepOverTwoEpochBorders) {
  constexpr int64_t kSteps = 8;
  const std::vector<std::string> settings{"trainer.total_training_steps=8", "trainer.max_actor_ckpt_to_keep=null"};
  const TinyTask task;
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  const std::vector<Json> rows = rows_of(task.path() / "straight/metrics.jsonl");
  ASSERT_EQ(rows.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(rows[2]["training/epoch"], 0.0);
  EXPECT_EQ(rows[3]["training/epoch"], 1.0);
  EXPECT_EQ(rows[6]["training/epoch"], 2.0);
  expect_same_bits_from_every_step(task, settings, kSteps);
}

// Rounded copies follow from the masters of a checkpoint, also those of the reference.
TEST(Resume, Bfloat16FromEveryStep) {
  const std::vector<std::string> settings{"trainer.total_training_steps=3", "trainer.max_actor_ckpt_to_keep=null",
                                          "model.dtype=bfloat16"};
  const TinyTask task;
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  expect_same_bits_from_every_step(task, settings, 3);
  const Outcome other = task.mortise("train", "straight", {"trainer.total_training_steps=4"});
  EXPECT_NE(other.code, 0);
  EXPECT_NE(other.output.find("model.dtype"), std::string::npos) << other.output;
}

// Masters, the state of both optimizers and a reference that moves lie in files: the numbers are those of memory, and a
// run may change its mind at every resume.
TEST(Resume, OffloadedNumbersAreTheSame) {
  const std::vector<std::string> settings{
      "trainer.total_training_steps=4", "trainer.save_freq=2",     "model.dtype=bfloat16",
      "actor.use_kl_loss=true",         "actor.kl_loss_coef=0.05", "ref.sync_steps=2",
      "algorithm.adv_estimator=gae",    "~algorithm.adv_params",   "critic.optim.lr=1e-2"};
  const std::vector<std::string> offloads{"actor.optim.offload=file", "critic.optim.offload=file", "ref.offload=file",
                                          "trainer.offload_dir=" + std::string(MORTISE_BINARY_DIR)};
  const TinyTask task;
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    const Outcome done = task.mortise("train", name, more);
    ASSERT_EQ(done.code, 0) << done.output;
  };
  run("straight", {});
  run("files", offloads);
  const auto expected = bits_of_run(task.path() / "straight", 4);
  EXPECT_EQ(bits_of_run(task.path() / "files", 4), expected);
  std::filesystem::remove_all(task.path() / "files/global_step_4");
  run("files", {});
  EXPECT_EQ(bits_of_checkpoint(task.path() / "files/global_step_4"),
            bits_of_checkpoint(task.path() / "straight/global_step_4"));
}

// The critic's adapter shares the memory of the policy's base, or it has a copy of another folder: the same numbers.
TEST(Resume, ACriticsAdapterFromEveryStep) {
  std::vector<std::string> settings{"trainer.total_training_steps=3",
                                    "trainer.max_actor_ckpt_to_keep=null",
                                    "model.lora_rank=2",
                                    "critic.model.lora_rank=3",
                                    "algorithm.adv_estimator=gae",
                                    "~algorithm.adv_params",
                                    "critic.optim.lr=1e-2"};
  const TinyTask task;
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  expect_same_bits_from_every_step(task, settings, 3);
  std::filesystem::copy(task.path() / "model", task.path() / "copy", std::filesystem::copy_options::recursive);
  settings.emplace_back("critic.model.path=copy");
  const Outcome apart = task.mortise("train", "apart", settings);
  ASSERT_EQ(apart.code, 0) << apart.output;
  const auto shared_bits = bits_of_run(task.path() / "straight", 3), apart_bits = bits_of_run(task.path() / "apart", 3);
  for (const char* name : {"metrics.jsonl", "updates.jsonl", "state.safetensors"})
    EXPECT_EQ(shared_bits.at(name), apart_bits.at(name)) << name;
  const auto rows = rows_of(task.path() / "straight/metrics.jsonl");
  EXPECT_GT(rows[0]["critic/grad_norm"].get<double>(), 0.0);
  EXPECT_NE(rows[2]["critic/values/mean"], rows[0]["critic/values/mean"]);
}

void flip_last_byte(const Path& file) {
  std::string bytes = default_env().read_file(file).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_OK(write_file(default_env(), file, bytes));
}

// In bfloat16. No checkpoint holds the base, so that a resume compares it.
TEST(Resume, ACriticsAdapterOnABaseOfItsOwn) {
  const std::vector<std::string> settings{"trainer.total_training_steps=2", "trainer.max_actor_ckpt_to_keep=null",
                                          "model.dtype=bfloat16",           "critic.model.path=base",
                                          "critic.model.lora_rank=3",       "algorithm.adv_estimator=gae",
                                          "~algorithm.adv_params",          "critic.optim.lr=1e-2"};
  const TinyTask task;
  std::filesystem::copy(task.path() / "model", task.path() / "base", std::filesystem::copy_options::recursive);
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  expect_same_bits_from_every_step(task, settings, 2);
  flip_last_byte(task.path() / "base/model.safetensors");
  const Outcome edited = task.mortise("train", "straight", settings);
  EXPECT_EQ(edited.code, 3) << edited.output;
  EXPECT_NE(edited.output.find("checkpoint:\n  critic.model.path: the model under the critic's adapter\nRestore them"),
            std::string::npos)
      << edited.output;
}

// Frozen parameters keep the bits of the model's folder, and a resume compares the groups and their order.
TEST(Resume, GroupsOfParametersFromEveryStep) {
  const std::vector<std::vector<std::string>> cases{
      {"actor.optim.groups.ends.match=embed_tokens|lm_head"},
      {"actor.optim.groups.ends.match=embed_tokens|lm_head", "model.dtype=bfloat16", "actor.optim.master_weights=false",
       "trainer.save_dtype=bfloat16"},
      {"actor.optim.groups.ends.match=lora_A", "model.lora_rank=2"}};
  for (const std::vector<std::string>& one : cases) {
    std::vector<std::string> settings{"trainer.total_training_steps=3", "trainer.max_actor_ckpt_to_keep=null",
                                      "actor.optim.groups.ends.freeze=true", "actor.optim.groups.down.match=down_proj",
                                      "actor.optim.groups.down.lr_scale=0.5"};
    settings.insert(settings.end(), one.begin(), one.end());
    const TinyTask task;
    const Outcome straight = task.mortise("train", "straight", settings);
    ASSERT_EQ(straight.code, 0) << straight.output;
    expect_same_bits_from_every_step(task, settings, 3);
    settings[0] = "trainer.total_training_steps=4";
    settings[4] = "actor.optim.groups.down.lr_scale=0.25";
    const Outcome other = task.mortise("train", "straight", settings);
    EXPECT_NE(other.code, 0);
    EXPECT_NE(other.output.find("actor.optim.groups.down.lr_scale: 0.5 -> 0.25"), std::string::npos) << other.output;
    if (one.size() > 1) continue;
    const auto embedding = [&](const std::string& folder) {
      const SafetensorsFile file =
          SafetensorsFile::open(default_env(), task.path() / folder / "model.safetensors").value();
      const TensorView view = file.get("model.embed_tokens.weight").value();
      return std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    };
    EXPECT_TRUE(embedding("model") == embedding("straight/global_step_3/huggingface"));
  }
}

// The optimizer has no state of a frozen parameter, so no resume can begin to train it, or stop.
TEST(Resume, OtherFrozenParametersAreRefusedByName) {
  const TinyTask task;
  const auto train = [&](const std::string& out, bool freezes, std::vector<std::string> more) {
    if (freezes) {
      more.insert(more.begin(),
                  {"actor.optim.groups.still.match=embed_tokens", "actor.optim.groups.still.freeze=true"});
    }
    return task.mortise("train", out, more);
  };
  const auto refused = [&](const std::string& out, bool freezes, const std::string& text) {
    const Outcome outcome = train(out, freezes, {"trainer.total_training_steps=2", "--allow-change"});
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    const std::string next =
        "set actor.optim.groups back, or start a new run with model.path = \"" + out + "/global_step_1/huggingface\"";
    for (const std::string& part : {text, next})
      EXPECT_NE(outcome.output.find(part), std::string::npos) << part << "\n" << outcome.output;
  };
  const std::string one = "trainer.total_training_steps=1";
  ASSERT_EQ(train("trained", false, {one}).code, 0);
  ASSERT_EQ(train("frozen", true, {one}).code, 0);
  refused("trained", true,
          "'actor.optim.groups' freezes model.embed_tokens.weight, which the run of the checkpoint trained");
  refused("frozen", false,
          "'actor.optim.groups' does not freeze model.embed_tokens.weight, which the run of the checkpoint froze");
}

// Most tests of bits compare two runs of one thread. This one repeats a run of two threads.
TEST(Resume, RepeatedRunsGiveTheSameBits) {
  const TinyTask task;
  const int num_runs = is_long() ? 20 : 8;
  std::map<std::string, std::string> first;
  for (int i = 0; i < num_runs; ++i) {
    const std::string name = i == 0 ? "straight" : "run" + std::to_string(i);
    const Outcome outcome = task.mortise("train", name, {"trainer.total_training_steps=2", "trainer.num_threads=2"});
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const auto bits = bits_of_run(task.path() / name, 2);
    if (i == 0)
      first = bits;
    else
      expect_same_bits(bits, first, name);
    ASSERT_OK(remove_tree(default_env(), task.path() / name));
  }
}

TEST(Resume, DeterministicRunsAreTheSameForAnyNumberOfSlots) {
  const TinyTask task;
  const std::vector<std::string> settings{"trainer.total_training_steps=3", "rollout.deterministic=true"};
  std::map<std::string, std::string> first;
  for (const char* slots : {"256", "3", "1"}) {
    std::vector<std::string> all = settings;
    all.push_back(std::string("rollout.max_num_seqs=") + slots);
    const std::string name = first.empty() ? "straight" : slots;
    const Outcome outcome = task.mortise("train", name, all);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const auto bits = bits_of_run(task.path() / name, 3);
    if (first.empty())
      first = bits;
    else
      expect_same_bits(bits, first, std::string(slots) + " slots");
  }
}

TEST(Resume, ASignalFinishesTheStepSavesAndLeavesWithItsCode) {
  constexpr int64_t kSteps = 60;
  // No checkpoint but the last: the signal's own.
  const std::vector<std::string> settings{"trainer.total_training_steps=60", "trainer.save_freq=-1"};
  const TinyTask task;
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  const auto expected = bits_of_run(task.path() / "straight", kSteps);
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string name = "stopped" + std::to_string(signal);
    const Path out = task.path() / name;
    ASSERT_OK(default_env().create_dirs(out));
    FolderWatch watch(out);
    Process process(task.words("train", name, settings), task.path(), task.path() / "console.txt");
    ASSERT_TRUE(watch.wait_for("updates.jsonl", 1, process));
    while (rows_of(out / "metrics.jsonl").size() < 2 && !process.poll()) usleep(2000);
    process.signal(signal);
    ASSERT_EQ(process.wait(), 8) << default_env().read_file(task.path() / "console.txt").value();
    const auto found = find_newest_valid(default_env(), out);
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ(static_cast<size_t>((*found)->ref.place.step), rows_of(out / "metrics.jsonl").size());
    EXPECT_LT((*found)->ref.place.step, kSteps);
    ASSERT_EQ(task.mortise("train", name, settings).code, 0);
    expect_same_bits(bits_of_run(out, kSteps), expected, name);
  }
}

// A run never overwrites the numbers of another. It moves aside those of a run that was killed before its first
// checkpoint, and leaves the folder of a running one alone.
TEST(Resume, AnEarlierRunIsSetAsideUnlessItIsAtWork) {
  const std::vector<std::string> settings{"trainer.total_training_steps=2000", "trainer.save_freq=-1"};
  const TinyTask task;
  const Path out = task.path() / "out";
  ASSERT_OK(default_env().create_dirs(out));
  std::vector<std::string> words = task.words("train", "out", settings);
  words[0] = program("mortise");
  Process process(words, task.path(), task.path() / "console.txt");
  while (rows_of(out / "metrics.jsonl").size() < 2 && !process.poll()) usleep(2000);
  const std::string begin = program() + " train rl.toml trainer.default_local_dir=out/ trainer.total_training_steps=1";
  process.signal(SIGSTOP);  // it keeps its lock, and cannot end before the second has looked
  const Outcome second = run(begin + " --resume never", task.path());
  process.signal(SIGCONT);
  EXPECT_EQ(second.code, 6) << second.output;
  EXPECT_NE(second.output.find("another run is writing into this folder"), std::string::npos) << second.output;
  EXPECT_FALSE(default_env().exists(task.path() / "out.before_1"));
  ASSERT_FALSE(process.poll()) << "it went on";
  process.kill_and_wait();
  const size_t rows = rows_of(out / "metrics.jsonl").size();
  const Outcome third = run(begin, task.path());
  EXPECT_EQ(third.code, 0) << third.output;
  EXPECT_NE(third.output.find("the earlier run is now in out.before_1"), std::string::npos) << third.output;
  EXPECT_EQ(rows_of(task.path() / "out.before_1/metrics.jsonl").size(), rows);
  EXPECT_EQ(rows_of(out / "metrics.jsonl").size(), 1U);
  const Outcome fourth = run(begin + " --resume never", task.path());
  EXPECT_EQ(fourth.code, 0) << fourth.output;
  EXPECT_TRUE(default_env().exists(task.path() / "out.before_2/global_step_1/manifest.json"));
}

TEST(Resume, WithoutAnyOneEntryItIsRefusedByName) {
  const TinyTask task;
  const std::vector<std::string> two_steps{"trainer.total_training_steps=2", "trainer.save_freq_updates=1"};
  ASSERT_EQ(task.mortise("train", "out", two_steps).code, 0);
  const Path newest = task.path() / "out/global_step_2";
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), newest));
  std::vector<std::string> entries{"manifest.json"};
  for (const ManifestEntry& entry : manifest.entries) entries.push_back(entry.path);
  for (const char* needed : {"state.json", "state.safetensors", "huggingface/model.safetensors", "mortise.lock",
                             "config.resolved.toml", "huggingface/tokenizer.json"})
    EXPECT_NE(std::find(entries.begin(), entries.end(), needed), entries.end()) << needed;
  std::vector<std::string> from_newest = two_steps;
  from_newest.insert(from_newest.end(), {"--resume", "out/global_step_2"});
  for (const std::string& entry : entries) {
    ASSERT_OK(default_env().rename(newest / entry, task.path() / "aside"));
    const Outcome refused = task.mortise("train", "out", from_newest);
    EXPECT_EQ(refused.code, 3) << entry << refused.output;
    EXPECT_NE(refused.output.find("'" + entry + "' is missing"), std::string::npos) << refused.output;
    ASSERT_OK(default_env().rename(task.path() / "aside", newest / entry));
  }
  // By default a run continues the one before, and says so.
  const auto expected = bits_of_run(task.path() / "out", 2);
  ASSERT_OK(default_env().unlink(newest / "state.json"));
  const Outcome resumed = task.mortise("train", "out", two_steps);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("skipped a checkpoint"), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("after step 1\n"), std::string::npos) << resumed.output;
  expect_same_bits(bits_of_run(task.path() / "out", 2), expected, "resumed");
}

// Memory may be had differently; the length of a run may not where a schedule of the critic follows from it.
TEST(Resume, SettingsThatChangeNothingLearntAreFree) {
  const TinyTask task;
  const std::vector<std::string> settings{"algorithm.adv_estimator=gae", "~algorithm.adv_params",
                                          "actor.optim.lr_scheduler_type=constant",
                                          "critic.optim.lr_scheduler_type=linear"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), settings.begin(), settings.end());
    return task.mortise("train", "out", more);
  };
  const std::string one = "trainer.total_training_steps=1";
  ASSERT_EQ(with({one}).code, 0);
  const Outcome longer = with({"trainer.total_training_steps=2"});
  EXPECT_EQ(longer.code, 2) << longer.output;
  EXPECT_NE(longer.output.find("trainer.total_training_steps: 1 -> 2"), std::string::npos) << longer.output;
  const Outcome leaner =
      with({one, "model.enable_gradient_checkpointing=true", "critic.ppo_micro_batch_size_per_gpu=1",
            "actor.ppo_micro_batch_size_per_gpu=2", "rollout.max_num_seqs=5", "rollout.top_log_probs=2",
            "reward.0.name=low", "reward.0.timeout=20s", "reward.0.row_timeout=3s", "reward.0.allow=[\"files\"]"});
  EXPECT_EQ(leaner.code, 0) << leaner.output;
  EXPECT_NE(leaner.output.find("this run is finished"), std::string::npos) << leaner.output;
  const Outcome heavier = with({one, "reward.0.timeout=20s", "reward.0.weight=2"});
  EXPECT_EQ(heavier.code, 2) << heavier.output;
  EXPECT_NE(heavier.output.find("reward.0.weight: 1.0 -> 2.0"), std::string::npos) << heavier.output;
  EXPECT_EQ(heavier.output.find("timeout"), std::string::npos) << heavier.output;
}

// What sft does not read, and what only says how long, how often and where to: the same weights come of it.
TEST(Resume, SftGoesOnWithItsFreeSettingsChanged) {
  const TinyTask task;
  const auto sft = [&](const std::string& out, std::vector<std::string> more) {
    more.emplace_back("actor.optim.lr_scheduler_type=constant");
    return task.mortise("sft", out, more);
  };
  const std::string two = "sft.total_training_steps=2";
  ASSERT_EQ(sft("straight", {two}).code, 0);
  ASSERT_EQ(sft("out", {"sft.total_training_steps=1"}).code, 0);
  const Outcome refused = sft("out", {two, "sft.completion_only_loss=false", "actor.optim.lr=1e-3",
                                      "sft.train_batch_size=2", "trainer.save_freq=1", "algorithm.gamma=0.5"});
  EXPECT_EQ(refused.code, 2) << refused.output;
  for (const char* text :
       {"sft.completion_only_loss: null -> false", "actor.optim.lr: 0.002 -> 0.001", "sft.train_batch_size: 4 -> 2"})
    EXPECT_NE(refused.output.find(text), std::string::npos) << text << refused.output;
  for (const char* text : {"total_training_steps:", "save_freq", "gamma"})
    EXPECT_EQ(refused.output.find(text), std::string::npos) << text << refused.output;
  const Outcome resumed = sft("out", {two,
                                      "algorithm.adv_estimator=grpo",
                                      "~algorithm.adv_params",
                                      "critic.optim.lr=1",
                                      "ref.sync_steps=3",
                                      "actor.policy_loss.loss_mode=gspo",
                                      "trainer.total_training_steps=9",
                                      "trainer.save_freq=-1",
                                      "trainer.max_actor_ckpt_to_keep=1",
                                      "trainer.logger=[]",
                                      "trainer.nonfinite_update_limit=3",
                                      "data.val_files=data/val.jsonl",
                                      "data.val_max_samples=2",
                                      "rollout.val_kwargs.n=2",
                                      "rollout.val_kwargs.do_sample=true",
                                      "trainer.validation_data_dir=checks",
                                      "sft.test_freq=1",
                                      "reward.0.name=low",
                                      "reward.0.timeout=20s",
                                      "plugins.isolation=process",
                                      "trainer.save_dtype=bfloat16"});
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("after update 1\n"), std::string::npos) << resumed.output;
  EXPECT_EQ(default_env().read_file(task.path() / "out/updates.jsonl").value(),
            default_env().read_file(task.path() / "straight/updates.jsonl").value());
  EXPECT_TRUE(default_env().exists(task.path() / "checks/2.jsonl"));
}

// The folder that a run is started in can be its own; only setting it aside would take the data from under it.
TEST(Resume, TheWorkingFolderIsNotSetAside) {
  const TinyTask task;
  const std::string one = "trainer.total_training_steps=1";
  ASSERT_EQ(task.mortise("train", ".", {one}).code, 0);
  EXPECT_TRUE(default_env().exists(task.path() / "global_step_1/manifest.json"));
  EXPECT_EQ(task.mortise("train", ".", {one}).code, 0);  // finished
  for (const std::string& out : {std::string("."), task.path().string()}) {
    const Outcome again = task.mortise("train", out, {one, "--resume", "never"});
    EXPECT_EQ(again.code, 2) << again.output;
    EXPECT_NE(again.output.find("cannot be renamed, because this run was started in it; resume that run"),
              std::string::npos)
        << again.output;
  }
  EXPECT_TRUE(default_env().exists(task.path() / "global_step_1/manifest.json"));
  const Outcome nowhere = task.mortise("train", "x", {one, "trainer.default_local_dir=\"\""});
  EXPECT_EQ(nowhere.code, 2) << nowhere.output;
  EXPECT_NE(nowhere.output.find("'trainer.default_local_dir' is empty"), std::string::npos) << nowhere.output;
}

// Files that no checkpoint holds and that every start reads: a resume detects an edit if the run learns from the file.
TEST(Resume, EditedInputsAreSeen) {
  const TinyTask task;
  const Path model = task.path() / "model", scorer = task.path() / "scorer";
  std::filesystem::copy(Path(MORTISE_SOURCE_DIR) / "tests/golden/reward_model/model", scorer);
  const std::vector<std::string> scored{"reward.1.use=reward_model", "reward.1.model=scorer"};
  const std::vector<std::string> refreshed{"ref.sync_steps=1"};
  const std::vector<std::string> adapter{"algorithm.use_kl_in_reward=false", "model.lora_rank=2"};
  const auto train = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), {"trainer.total_training_steps=1", "actor.optim.lr_scheduler_type=constant"});
    return task.mortise("train", out, more);
  };
  const auto refused = [](const Outcome& outcome, const std::vector<std::string>& whats) {
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    std::string all = "inputs of the run have changed since the checkpoint:";
    for (const std::string& what : whats) all += "\n  " + what;
    EXPECT_NE(outcome.output.find(all + "\nRestore them"), std::string::npos) << outcome.output;
  };
  ASSERT_EQ(train("kl", scored).code, 0);
  ASSERT_EQ(train("refreshed", refreshed).code, 0);
  ASSERT_EQ(train("adapter", adapter).code, 0);

  flip_last_byte(model / "model.safetensors");
  const std::string weights = "model.path: the weights of the reference";
  refused(train("kl", scored), {weights});
  refused(train("adapter", adapter), {"model.path: the model under the adapter"});
  EXPECT_EQ(train("refreshed", refreshed).code, 0) << "the checkpoint holds all weights";
  std::vector<std::string> allowed = scored;
  allowed.emplace_back("--allow-change");
  const Outcome goes_on = train("kl", allowed);
  EXPECT_EQ(goes_on.code, 0) << goes_on.output;
  EXPECT_NE(goes_on.output.find("the run continues although these changed"), std::string::npos) << goes_on.output;

  flip_last_byte(scorer / "model.safetensors");
  refused(train("kl", scored), {weights, "reward.1.model: scorer"});
  const std::string config = default_env().read_file(model / "tokenizer_config.json").value();
  ASSERT_OK(write_file(default_env(), model / "tokenizer_config.json", config + " "));
  refused(train("refreshed", refreshed), {"model.path: the tokenizer's files"});
}

// The checkpoint itself holds its settings. The folder has those of the newest process.
TEST(Resume, TheSettingsAreComparedWithThoseOfTheCheckpoint) {
  const TinyTask task;
  ASSERT_EQ(task.mortise("train", "out", {"trainer.total_training_steps=1"}).code, 0);
  const Outcome longer = task.mortise("train", "out", {"trainer.total_training_steps=2"});
  EXPECT_EQ(longer.code, 2) << longer.output;  // the cosine would be another one
  EXPECT_NE(longer.output.find("trainer.total_training_steps: 1 -> 2"), std::string::npos) << longer.output;
  ASSERT_EQ(
      task.mortise("train", "out", {"trainer.total_training_steps=2", "actor.clip_ratio=0.3", "--allow-change"}).code,
      0);
  const Outcome back = task.mortise(
      "train", "out", {"trainer.total_training_steps=2", "actor.clip_ratio=0.3", "--resume", "out/global_step_1"});
  EXPECT_EQ(back.code, 2) << back.output;
  EXPECT_NE(back.output.find("actor.clip_ratio: null -> 0.3"), std::string::npos) << back.output;
  // From a plugin with state to one without.
  const Outcome other = task.mortise("train", "out",
                                     {"trainer.total_training_steps=3", "actor.clip_ratio=0.3",
                                      "algorithm.adv_estimator=grpo", "~algorithm.adv_params", "--allow-change"});
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_NE(other.output.find("does not use the plugin advantage:bnpo, so its state"), std::string::npos)
      << other.output;
}

// A resume from an earlier step leaves the branch of the later ones. Their checkpoints must not be continued when one of
// the new branch is damaged: the rows of the new steps would go.
TEST(Resume, FromAnEarlierStepSetsTheLaterOnesAside) {
  const TinyTask task;
  const auto train = [&](const std::string& steps, std::vector<std::string> more) {
    more.insert(more.end(), {"trainer.total_training_steps=" + steps, "trainer.max_actor_ckpt_to_keep=null",
                             "actor.optim.lr_scheduler_type=constant"});
    return task.mortise("train", "out", more);
  };
  const Path out = task.path() / "out";
  ASSERT_EQ(train("4", {}).code, 0);
  const std::vector<std::string> changed{"actor.optim.lr=5e-3", "--allow-change"};
  std::vector<std::string> back = changed;
  back.insert(back.end(), {"--resume", "out/global_step_1"});
  const Outcome left = train("2", back);
  ASSERT_EQ(left.code, 0) << left.output;
  EXPECT_NE(left.output.find("3 further checkpoints of this folder"), std::string::npos) << left.output;
  EXPECT_EQ(rows_of(out / "abandoned_1/metrics.jsonl").size(), 4U);
  for (const char* name : {"global_step_2", "global_step_3", "global_step_4"})
    EXPECT_OK(verify_checkpoint(default_env(), out / "abandoned_1" / name));
  EXPECT_FALSE(default_env().exists(out / "global_step_4"));
  flip_last_byte(out / "global_step_2/state.safetensors");
  const Outcome again = train("2", changed);
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("after step 1\n"), std::string::npos) << again.output;
  EXPECT_FALSE(default_env().exists(out / "abandoned_2"));
  // They can still be named. The run's folder then holds their branch alone, and continues it by itself.
  const std::vector<Json> of_first = rows_of(out / "abandoned_1/metrics.jsonl");
  const Outcome first = train("4", {"--resume", "out/abandoned_1/global_step_3"});
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_NE(first.output.find("the run returns to the branch of out/global_step_3"), std::string::npos) << first.output;
  EXPECT_NE(first.output.find("resumed from out/global_step_3 after step 3"), std::string::npos) << first.output;
  for (const char* name : {"global_step_1", "global_step_2"}) {
    EXPECT_OK(verify_checkpoint(default_env(), out / "abandoned_2" / name));
    EXPECT_FALSE(default_env().exists(out / name)) << name;
  }
  EXPECT_EQ(rows_of(out / "abandoned_2/metrics.jsonl").size(), 2U);
  const std::vector<Json> rows = rows_of(out / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 4U);
  for (const size_t row : {0U, 1U, 2U}) EXPECT_EQ(rows[row], of_first[row]) << row;
  EXPECT_EQ(rows[3]["reward"], of_first[3]["reward"]);
  const Outcome on = train("5", {});
  EXPECT_EQ(on.code, 0) << on.output;
  EXPECT_NE(on.output.find("resumed from out/global_step_4"), std::string::npos) << on.output;
}

// A checkpoint of another run: what the run's folder held is set aside, as before a fresh start, and the new run reads
// as if nothing but the folder had changed.
TEST(Resume, FromAnotherRunBeginsItsFolderAnew) {
  const TinyTask task;
  const auto train = [&](const std::string& out, const std::string& steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"trainer.total_training_steps=" + steps, "trainer.max_actor_ckpt_to_keep=null",
                             "actor.optim.lr_scheduler_type=constant"});
    return task.mortise("train", out, more);
  };
  ASSERT_EQ(train("first", "4").code, 0);
  ASSERT_EQ(train("out", "3", {"trainer.seed=7"}).code, 0);
  const Outcome resumed = train("out", "4", {"--resume", "first/global_step_2"});
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("the earlier run is now in out.before_1"), std::string::npos) << resumed.output;
  EXPECT_OK(verify_checkpoint(default_env(), task.path() / "out.before_1/global_step_3"));
  EXPECT_EQ(rows_of(task.path() / "out.before_1/metrics.jsonl").size(), 3U);
  EXPECT_FALSE(default_env().exists(task.path() / "out/global_step_1"));
  auto bits = bits_of_run(task.path() / "out", 4), expected = bits_of_run(task.path() / "first", 4);
  for (const char* step : {"dump/1.jsonl", "dump/2.jsonl"}) {  // completions stay where they were written
    EXPECT_EQ(expected.erase(step), 1U);
    EXPECT_FALSE(bits.contains(step));
  }
  expect_same_bits(bits, expected, "from the other folder");
  // The other run is as it was.
  EXPECT_EQ(rows_of(task.path() / "first/metrics.jsonl").size(), 4U);
  EXPECT_OK(verify_checkpoint(default_env(), task.path() / "first/global_step_4"));
  // A folder that does not exist yet.
  const Outcome fresh = train("runs/new", "3", {"--resume", "first/global_step_2/"});
  ASSERT_EQ(fresh.code, 0) << fresh.output;
  EXPECT_EQ(rows_of(task.path() / "runs/new/metrics.jsonl").size(), 3U);
  EXPECT_FALSE(default_env().exists(task.path() / "runs/new.before_1"));
}

// What people name instead of a checkpoint.
TEST(Resume, AFolderThatIsNoCheckpointIsExplained) {
  const TinyTask task;
  const std::string one = "trainer.total_training_steps=1";
  ASSERT_EQ(task.mortise("train", "out", {one}).code, 0);
  const auto refused = [&](const std::string& folder, const std::string& text, int code = 2) {
    const Outcome outcome = task.mortise("train", "out", {one, "--resume", folder});
    EXPECT_EQ(outcome.code, code) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  };
  refused("out", "this is the folder of a run, and --resume takes one checkpoint; name out/global_step_1");
  refused("out/global_step_1/huggingface", "name out/global_step_1");
  refused("global_step_1", "did you mean out/global_step_1?", 3);
  refused("elsewhere", "there is no such checkpoint", 3);
}

// --dry-run refuses what the run would refuse, and the advice of a finished run is complete.
TEST(Resume, ADryRunLooksAtTheRunFolder) {
  const TinyTask task;
  ASSERT_EQ(task.mortise("train", "out", {"trainer.total_training_steps=1"}).code, 0);
  const Outcome same = task.mortise("train", "out", {"trainer.total_training_steps=1", "--dry-run"});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_NE(same.output.find("# resume: the run continues from out/global_step_1"), std::string::npos) << same.output;
  const Outcome longer = task.mortise("train", "out", {"trainer.total_training_steps=2", "--dry-run"});
  EXPECT_EQ(longer.code, 2) << longer.output;
  EXPECT_NE(longer.output.find("trainer.total_training_steps: 1 -> 2 (the length of the run counts because of "
                               "actor.optim.lr_scheduler_type = \"cosine\""),
            std::string::npos)
      << longer.output;
  const Outcome done = task.mortise("train", "out", {"trainer.total_training_steps=1"});
  EXPECT_NE(done.output.find("raise trainer.total_training_steps and give --allow-change"), std::string::npos)
      << done.output;
}

}  // namespace
}  // namespace mortise::test
