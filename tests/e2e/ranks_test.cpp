// Runs of several processes: the same numbers as of one, whatever they use; files, checkpoints and stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "foundation/base/clock.h"
#include "foundation/base/rng.h"
#include "lost_rank.h"
#include "rank_group.h"
#include "support/long_run.h"

namespace mortise::test {
namespace {

// Rows of up to 12 tokens get one token in a round, and some wait for the next step.
std::vector<std::string> over_sampling() {
  return {"rollout.over_sampling=1.5", "rollout.n=2", "data.max_response_length=12",
          "algorithm.rollout_correction.rollout_is=token"};
}

// A thread of each rank samples while the ranks learn: whole completions, or in pieces.
std::vector<std::string> ahead(const std::string& mode, int64_t max_staleness) {
  return {"trainer.mode=" + mode, "trainer.max_staleness=" + std::to_string(max_staleness),
          "algorithm.rollout_correction.rollout_is=token"};
}

std::vector<RunCase> more_cases() {
  std::vector<RunCase> cases = run_table();
  std::erase_if(cases, [](const RunCase& one) { return std::string(one.name) == "code_reward"; });
  cases.push_back({"gspo", "train", {"actor.policy_loss.loss_mode=gspo"}});
  cases.push_back({"clip_cov", "train", {"actor.policy_loss.loss_mode=clip_cov"}});
  // Between two updates too, where each rank may have a part of the policy and of the reference.
  cases.push_back({"moving_reference", "train", {"ref.sync_steps=1", "ref.sync_unit=update", "ref.mixup_alpha=0.5"}});
  cases.push_back({"moving_reference_of_an_adapter",
                   "train",
                   {"model.lora_rank=2", "model.target_modules=[q_proj,v_proj,down_proj]",
                    "model.init_lora_weights=pissa", "model.modules_to_save=[embed_tokens,o_proj]",
                    "model.lora_bias=all", "actor.use_kl_loss=true", "ref.sync_steps=1", "ref.mixup_alpha=0.5",
                    "ref.offload=file", "trainer.offload_dir=" + std::string(MORTISE_BINARY_DIR)}});
  cases.push_back({"bfloat16_dora",
                   "train",
                   {"model.dtype=bfloat16", "model.lora_rank=2", "model.use_dora=true", "actor.use_kl_loss=true",
                    "trainer.save_merged_lora=true", "trainer.test_freq=1", "data.val_files=data/train.jsonl",
                    "data.val_max_samples=4"}});
  cases.push_back({"over_sampling", "train", over_sampling()});
  cases.push_back({"one_step_off", "train", ahead("one_step_off", 1)});
  cases.push_back({"async", "train", ahead("async", 2)});
  return cases;
}

class EqualRanks : public Ranks, public testing::WithParamInterface<RunCase> {
 protected:
  // `expected`: the bits of one process with these settings. The ranks take prompts one by one, from one another if they are
  // done.
  void expect_bits_with_zero(const std::vector<std::string>& settings,
                             const std::map<std::string, std::string>& expected) {
    const bool is_rounded = std::ranges::count(settings, "model.dtype=bfloat16") > 0;
    for (const auto& [size, stage] : std::vector<std::pair<size_t, int>>{{2, 2}, {3, 3}}) {
      if (HasFailure()) return;
      std::vector<std::string> shared = settings;
      shared.push_back("ranks.zero_stage=" + std::to_string(stage));
      if (GetParam().command == std::string("train")) shared.emplace_back("rollout.max_num_seqs=1");
      if (is_rounded) {  // the state and the masters may lie in files
        shared.emplace_back("actor.optim.offload=file");
        shared.emplace_back("trainer.offload_dir=" + std::string(MORTISE_BINARY_DIR));
      }
      const std::string out = "zero_" + std::to_string(stage);
      run_group(size, GetParam().command, out, shared);
      expect_same_bits(bits(out), expected, out);
    }
  }
};

// Also with ZeRO: what a rank has of the optimizers and of the weights differs, the numbers do not, and neither do the files.
TEST_P(EqualRanks, DeterministicRunsHaveTheSameBits) {
  std::vector<std::string> settings = GetParam().settings;
  settings.emplace_back("trainer.deterministic=true");
  run_alone(GetParam().command, "alone", settings);
  const auto expected = bits("alone");
  for (const size_t size : is_long() ? std::vector<size_t>{2, 3} : std::vector<size_t>{3}) {
    if (HasFailure()) return;
    const std::string out = "ranks_" + std::to_string(size);
    run_group(size, GetParam().command, out, settings);
    expect_same_bits(bits(out), expected, out);
  }
  expect_bits_with_zero(settings, expected);
}

TEST_P(EqualRanks, Float64RunsAreEqualToRounding) {
  std::vector<std::string> settings = GetParam().settings;
  settings.emplace_back("model.dtype=float64");
  run_alone(GetParam().command, "alone", settings);
  run_group(is_long() ? 4 : 2, GetParam().command, "ranks", settings);
  const Path alone = task_.path() / "alone", ranks = task_.path() / "ranks";
  expect_near_rows(ranks, alone, "metrics.jsonl", 1e-11);
  expect_near_rows(ranks, alone, "updates.jsonl", 1e-11);
  if (std::string(GetParam().command) == "sft") return;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::string file = "dump/" + std::to_string(step) + ".jsonl";
    const std::vector<Json> a = rows_of(ranks / file), b = rows_of(alone / file);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i]["token_ids"], b[i]["token_ids"]) << file << " " << i;
      EXPECT_EQ(a[i]["rewards"], b[i]["rewards"]) << file << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EqualRanks, testing::ValuesIn(more_cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_F(Ranks, OnlyTheMainRankWritesTheRunAndEachHasALog) {
  run_group(2, "train", "out", {});
  EXPECT_TRUE(default_env().exists(task_.path() / "out/log.txt"));
  EXPECT_TRUE(default_env().exists(task_.path() / "out/rank_1.log"));
  EXPECT_FALSE(default_env().exists(task_.path() / "out/rank_0.log"));
  const std::vector<Json> rows = rows_of(task_.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), static_cast<size_t>(kSteps));
  for (const Json& row : rows) {
    const auto number = [&](const char* name) { return row.at(name).get<double>(); };
    EXPECT_DOUBLE_EQ(number("global_seqlen/min") + number("global_seqlen/max"), number("perf/total_num_tokens"));
    EXPECT_DOUBLE_EQ(number("global_seqlen/mean"), number("perf/total_num_tokens") / 2.0);
    EXPECT_DOUBLE_EQ(number("global_seqlen/balanced_min") + number("global_seqlen/balanced_max"),
                     number("perf/total_num_tokens"));
    EXPECT_DOUBLE_EQ(number("global_seqlen/minmax_diff"), number("global_seqlen/max") - number("global_seqlen/min"));
  }
}

// 1 -> 4 -> 2 ranks, with all of the state on every rank and with other stages of ZeRO.
TEST_F(Ranks, ARunResumesWithAnotherNumberOfRanks) {
  const auto until = [&](int64_t step, int stage) {
    return std::vector<std::string>{"trainer.deterministic=true",
                                    "trainer.total_training_steps=" + std::to_string(step),
                                    "actor.optim.lr_scheduler_type=constant", "actor.optim.lr_warmup_steps=0",
                                    "ranks.zero_stage=" + std::to_string(stage)};
  };
  run_alone("train", "straight", until(3, 0));
  run_alone("train", "first", until(1, 0));
  for (const auto& [stage_of_4, stage_of_2] : std::vector<std::pair<int, int>>{{0, 0}, {3, 1}, {1, 3}}) {
    if (HasFailure()) return;
    const std::string out = "out_" + std::to_string(stage_of_4);
    std::filesystem::copy(task_.path() / "first", task_.path() / out, std::filesystem::copy_options::recursive);
    run_group(4, "train", out, until(2, stage_of_4));
    run_group(2, "train", out, until(3, stage_of_2));
    if (HasFailure()) return;
    expect_same_bits(bits(out), bits("straight"), "resumed");
  }
}

// 3 -> 1 -> 2 ranks. A checkpoint holds the rows that wait, whoever sampled their tokens.
TEST_F(Ranks, AResumeWithAnotherNumberOfRanksContinuesUnfinishedRows) {
  const auto until = [&](int64_t step) {
    std::vector<std::string> settings = over_sampling();
    settings.insert(settings.end(),
                    {"trainer.deterministic=true", "actor.optim.lr_scheduler_type=constant",
                     "actor.optim.lr_warmup_steps=0", "trainer.total_training_steps=" + std::to_string(step)});
    return settings;
  };
  run_alone("train", "straight", until(3));
  run_group(3, "train", "out", until(1));
  run_alone("train", "out", until(2));
  run_group(2, "train", "out", until(3));
  if (HasFailure()) return;
  for (const Json& row : rows_of(task_.path() / "straight/metrics.jsonl"))
    EXPECT_GT(number_of(row, "training/over_sampling/carried_tokens"), 0.0);
  expect_same_bits(bits("out"), bits("straight"), "resumed");
}

// A checkpoint holds the rollouts of the next steps, finished or in pieces. Any number of ranks continues with them.
TEST_F(Ranks, AResumeWithAnotherNumberOfRanksContinuesRolloutsOfNextSteps) {
  constexpr int64_t kMore = 5;
  std::vector<std::string> settings = ahead("async", 2);
  settings.insert(settings.end(),
                  {"trainer.deterministic=true", "trainer.total_training_steps=" + std::to_string(kMore),
                   "trainer.max_actor_ckpt_to_keep=null"});
  const auto bits_of = [&](const std::string& out) { return without_shares(bits_of_run(task_.path() / out, kMore)); };
  run_alone("train", "straight", settings);
  if (HasFailure()) return;
  const auto expected = bits_of("straight");
  EXPECT_GT(number_of(rows_of(task_.path() / "straight/metrics.jsonl").at(4), "training/off_policy/trajectory_spans"),
            1.0);
  run_group(2, "train", "ranks", settings);
  if (HasFailure()) return;
  expect_same_bits(bits_of("ranks"), expected, "straight through");
  for (const auto& [step, size] : std::vector<std::pair<int64_t, size_t>>{{1, 3}, {3, 2}, {4, 1}}) {
    if (HasFailure()) return;
    const std::string out = "from_" + std::to_string(step);
    cut_back(task_.path() / "ranks", task_.path() / out, step, kMore);
    run_group(size, "train", out, settings);
    if (HasFailure()) return;
    expect_same_bits(bits_of(out), expected, out);
  }
}

// The files of all ranks, as users and other programs see them.
TEST_F(Ranks, EachRankWritesItsPartOfACheckpoint) {
  const std::vector<std::string> settings{"trainer.deterministic=true", "trainer.max_shard_size=6KB"};
  std::vector<std::string> spread = settings;
  spread.emplace_back("ranks.zero_stage=3");
  run_alone("train", "alone", settings);
  run_group(3, "train", "out", spread);
  if (HasFailure()) return;
  const Path saved = task_.path() / "out/global_step_3", alone = task_.path() / "alone/global_step_3";
  for (const char* name :
       {"state-00001-of-00003.safetensors", "state.safetensors.index.json", "huggingface/model.safetensors.index.json"})
    EXPECT_TRUE(default_env().exists(saved / name)) << name;
  EXPECT_FALSE(default_env().exists(alone / "state.safetensors.index.json"));
  expect_same_bits(bits("out"), bits("alone"), "saved by three ranks");
  const auto mortise = [&](const std::string& words) { return run(program() + " " + words, task_.path()); };
  EXPECT_EQ(mortise("checkpoint verify out").code, 0);
  const Outcome listed = mortise("checkpoint list out");
  EXPECT_NE(listed.output.find("complete, the latest"), std::string::npos) << listed.output;
  const Outcome differences = mortise("checkpoint diff alone out --json");
  ASSERT_EQ(differences.code, 0) << differences.output;
  const Json found = parse_json(differences.output, "diff").value();
  EXPECT_TRUE(found["tensors"].empty()) << found["tensors"];
  EXPECT_GT(found["num_tensors"].get<int64_t>(), 20);
  const auto tensors = [&](const std::string& out) {
    const Outcome inspected = mortise("checkpoint inspect --json " + out);
    return parse_json(inspected.output, "inspect").value()["state"]["actor.optim"]["tensors"];
  };
  EXPECT_EQ(tensors("out"), tensors("alone"));
  ASSERT_EQ(mortise("checkpoint export out model_out").code, 0);
  ASSERT_EQ(mortise("checkpoint export alone model_alone").code, 0);
  const std::vector<std::string> names = default_env().list_dir(task_.path() / "model_alone").value();
  EXPECT_GT(names.size(), 4U);
  for (const std::string& name : names)
    EXPECT_EQ(hash_of(task_.path() / "model_out" / name), hash_of(task_.path() / "model_alone" / name)) << name;
  // A byte of another rank's file counts too.
  const Path part = saved / "state-00003-of-00003.safetensors";
  std::string bytes = default_env().read_file(part).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_OK(write_file(default_env(), part, bytes));
  const Outcome damaged = mortise("checkpoint verify out/global_step_3");
  EXPECT_EQ(damaged.code, 3);
  EXPECT_NE(damaged.output.find("'state-00003-of-00003.safetensors' was changed"), std::string::npos);
  // Two ranks find it together, and begin again with the checkpoint before.
  Group again(std::vector(size_t{2}, words("train", "out", spread)), task_.path());
  again.expect_all(0);
  const std::string text = again.text_of(0);
  EXPECT_NE(text.find("skipped a checkpoint: out/global_step_3: rank "), std::string::npos) << text;
  EXPECT_NE(text.find("checkpoint entry 'state-00003-of-00003.safetensors' was changed"), std::string::npos) << text;
  expect_same_bits(bits("out"), bits("alone"), "after a damaged file");
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') return;
  const Outcome checked = run("HF_HUB_OFFLINE=1 " + std::string(python) + " " + MORTISE_SOURCE_DIR +
                                  "/tests/e2e/transformers_folder.py " + program() + " model_out .",
                              task_.path());
  EXPECT_EQ(checked.code, 0) << checked.output;
}

// 2 -> 1 -> 3 ranks, each with another stage, with a critic and its optimizer.
TEST_F(Ranks, ARunResumesWithAnotherStageOfZero) {
  const auto until = [&](int64_t step, int stage) {
    return std::vector<std::string>{"trainer.deterministic=true",
                                    "algorithm.adv_estimator=gae",
                                    "~algorithm.adv_params",
                                    "trainer.total_training_steps=" + std::to_string(step),
                                    "actor.optim.lr_scheduler_type=constant",
                                    "actor.optim.lr_warmup_steps=0",
                                    "ranks.zero_stage=" + std::to_string(stage)};
  };
  run_alone("train", "straight", until(3, 0));
  run_group(2, "train", "out", until(1, 3));
  run_alone("train", "out", until(2, 1));
  run_group(3, "train", "out", until(3, 2));
  if (HasFailure()) return;
  expect_same_bits(bits("out"), bits("straight"), "resumed");
}

// 3 -> 1 -> 2 ranks that share the weights: of a bfloat16 model with and without masters, next to a huggingface/ that is
// rounded; and the base of an adapter, with a reference that follows it.
TEST_F(Ranks, SharedWeightsOfEveryKindResumeWithAnotherNumberOfRanks) {
  const std::vector<std::string> rounded{"model.dtype=bfloat16", "trainer.save_dtype=bfloat16",
                                         "actor.use_kl_loss=true"};
  std::vector<std::string> without_masters = rounded;
  without_masters.emplace_back("actor.optim.master_weights=false");
  const std::vector<std::string> adapter{"model.lora_rank=2",
                                         "model.target_modules=[q_proj,down_proj]",
                                         "model.init_lora_weights=pissa",
                                         "model.use_dora=true",
                                         "model.modules_to_save=[v_proj]",
                                         "actor.use_kl_loss=true",
                                         "ref.sync_steps=2",
                                         "ref.mixup_alpha=0.5"};
  int number = 0;
  for (const std::vector<std::string>& kind : {rounded, without_masters, adapter}) {
    const auto until = [&](int64_t step, int stage) {
      std::vector<std::string> settings = kind;
      settings.insert(
          settings.end(),
          {"trainer.deterministic=true", "actor.optim.lr_scheduler_type=constant", "actor.optim.lr_warmup_steps=0",
           "trainer.total_training_steps=" + std::to_string(step), "ranks.zero_stage=" + std::to_string(stage)});
      return settings;
    };
    const std::string straight = "straight_" + std::to_string(number), out = "out_" + std::to_string(number++);
    run_alone("train", straight, until(3, 0));
    run_group(3, "train", out, until(1, 3));
    run_alone("train", out, until(2, 0));
    run_group(2, "train", out, until(3, 3));
    if (HasFailure()) return;
    expect_same_bits(bits(out), bits(straight), out);
  }
}

// The critic's adapter on ranks that share the optimizers, or also its base.
TEST_F(Ranks, ACriticsAdapterHasTheSameBits) {
  for (const auto& [dtype, stages] : {std::pair("bfloat16", std::vector{1, 3}), std::pair("float32", std::vector{3})}) {
    const std::vector<std::string> settings{"trainer.deterministic=true",  std::string("model.dtype=") + dtype,
                                            "model.lora_rank=2",           "critic.model.lora_rank=3",
                                            "algorithm.adv_estimator=gae", "~algorithm.adv_params",
                                            "critic.optim.lr=1e-2"};
    const std::string alone = std::string("alone_") + dtype;
    run_alone("train", alone, settings);
    const auto expected = bits(alone);
    for (const int stage : stages) {
      if (HasFailure()) return;
      std::vector<std::string> shared = settings;
      shared.push_back("ranks.zero_stage=" + std::to_string(stage));
      const std::string out = dtype + ("_zero_" + std::to_string(stage));
      run_group(2, "train", out, shared);
      expect_same_bits(bits(out), expected, out);
    }
  }
}

// The critic's adapter next to a policy without one, and a folder's adapter with DoRA.
TEST_F(Ranks, ACriticsAdapterOnASharedBase) {
  std::vector<std::string> settings{"trainer.deterministic=true", "critic.model.lora_rank=3",
                                    "algorithm.adv_estimator=gae", "~algorithm.adv_params", "critic.optim.lr=1e-2"};
  run_alone("train", "alone", settings);
  settings.emplace_back("ranks.zero_stage=3");
  run_group(3, "train", "shared", settings);
  if (HasFailure()) return;
  expect_same_bits(bits("shared"), bits("alone"), "shared");
  const Path adapter = task_.path() / "adapter";
  std::vector<float> a(size_t{2} * 32, 0.01F), b(size_t{32} * 2, 0.0F), magnitude(32, 1.0F), head(32, 0.0F);
  const std::string prefix = "base_model.model.", module = prefix + "model.layers.0.self_attn.q_proj.";
  const std::vector<TensorView> tensors = {view_of<float>(module + "lora_A.weight", a, {2, 32}),
                                           view_of<float>(module + "lora_B.weight", b, {32, 2}),
                                           view_of<float>(module + "lora_magnitude_vector", magnitude, {32}),
                                           view_of<float>(prefix + "score.weight", head, {1, 32})};
  std::filesystem::create_directories(adapter);
  ASSERT_OK(write_safetensors_file(default_env(), adapter / "adapter_model.safetensors", tensors));
  task_.write("adapter/adapter_config.json", R"({"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4,
      "base_model_name_or_path": "model", "target_modules": ["q_proj"], "modules_to_save": ["score"], "use_dora": true})");
  settings[1] = "critic.model.lora_adapter_path=adapter";
  run_group(2, "train", "dora", settings);
  settings.pop_back();
  run_alone("train", "dora_alone", settings);
  if (HasFailure()) return;
  expect_same_bits(bits("dora"), bits("dora_alone"), "dora");
}

// The rewards of a step fail on every rank: all help to save the steps before it. So do they if the step was sampled while
// the one before it learned.
TEST_F(Ranks, FinishedStepsOfASharedStateAreSavedWhenARewardFails) {
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += std::string(R"({"prompt": "1+1=", "scores": )") + (i < 8 ? "1" : "\"much\"") + "}\n";
  task_.write("mid.jsonl", rows);
  for (const std::string mode : {"sync", "one_step_off"}) {
    const std::vector<std::string> settings{
        "trainer.deterministic=true", "trainer.save_freq=-1", "data.train_files=mid.jsonl", "data.shuffle=false",
        "~data.train_max_samples",    "reward.0.use=column",  "reward.0.key=scores",        "data.columns.scores=json",
        "~reward.0.pattern",          "ranks.zero_stage=1",   "trainer.mode=" + mode};
    Group group(std::vector<std::vector<std::string>>(2, words("train", mode, settings)), task_.path());
    group.expect_all(9);
    EXPECT_NE(group.text_of(0).find("the 2 finished steps are saved in"), std::string::npos) << group.text_of(0);
    EXPECT_TRUE(default_env().exists(task_.path() / mode / "global_step_2"));
  }
}

bool ended_before_joining(const std::string& text) {
  return text.find("did not come") != std::string::npos || text.find("did not reach the store") != std::string::npos;
}

// Any rank may die at any moment. The others end and name it, and the same command started again gives the same bits.
class KilledRanks : public Ranks, public testing::WithParamInterface<RunCase> {};

TEST_P(KilledRanks, EndTheOthersAndARestartGivesTheSameBits) {
  const int wanted = is_long() ? 100 : 4;
  std::vector<std::string> settings = GetParam().settings;
  settings.emplace_back("trainer.deterministic=true");
  std::vector<std::string> to_be_killed = settings;
  to_be_killed.emplace_back("ranks.join_timeout=10s");  // how long one that is killed before it joins is waited for
  for (std::vector<std::string>* list : {&settings, &to_be_killed}) list->emplace_back("ranks.zero_stage=0");
  const size_t num_ranks = is_long() ? 4 : 3;
  const Stopwatch watch;
  run_group(num_ranks, "train", "straight", settings);
  if (HasFailure()) return;
  const auto expected = bits("straight");
  const auto run_us = static_cast<uint64_t>(watch.elapsed_ns() / 1000);
  RandomStream random({.seed = 19});
  int num_kills = 0;
  double longest_s = 0;  // until the last of the others had ended
  for (int run = 0; num_kills < wanted && !HasFailure(); ++run) {
    const std::string out = "run" + std::to_string(run);
    // Which rank has what of the optimizer changes from run to run, and no bit with it.
    for (std::vector<std::string>* list : {&settings, &to_be_killed})
      list->back() = "ranks.zero_stage=" + std::to_string(run % 4);
    for (int tries = 0; !HasFailure(); ++tries) {
      const bool kills = tries < 2 && num_kills < wanted;
      Group group(std::vector(num_ranks, words("train", out, kills ? to_be_killed : settings)), task_.path());
      const size_t victim = random.next_below(num_ranks);
      if (kills) {
        const uint64_t begin_us = run % 2 == 0 ? 0 : run_us * 3 / 4;  // every second run near its end
        usleep(static_cast<useconds_t>(begin_us + random.next_below(run_us - begin_us)));
        group[victim].signal(SIGKILL);
      }
      const Stopwatch since_kill;
      const std::vector<int> codes = group.wait();
      if (codes[victim] != -SIGKILL) {
        if (kills && ended_before_joining(group.text_of(victim))) continue;  // a machine that slow
        for (size_t rank = 0; rank < num_ranks; ++rank) EXPECT_EQ(codes[rank], 0) << group.text_of(rank);
        break;
      }
      ++num_kills;
      longest_s = std::max(longest_s, since_kill.elapsed_s());
      std::string told;
      for (size_t rank = 0; rank < num_ranks; ++rank) {
        if (rank == victim || codes[rank] == 0) continue;  // it was done before
        EXPECT_EQ(codes[rank], 7) << group.text_of(rank);
        told += group.text_of(rank);
      }
      // Who has just joined may only see that the store is gone, which rank 0 serves.
      const std::string name = std::to_string(victim);
      const bool is_named = told.empty() || told.find("rank " + name) != std::string::npos ||
                            (victim == 0 && told.find("store") != std::string::npos);
      EXPECT_TRUE(is_named) << "rank " << name << " was killed: " << told;
    }
    if (HasFailure()) return;
    expect_same_bits(bits(out), expected, out + " after " + std::to_string(num_kills) + " kills");
    ASSERT_OK(remove_tree(default_env(), task_.path() / out));
  }
  std::printf("%d kills: the last of the other ranks ended at most %.1f s after one\n", num_kills, longest_s);
  if (is_long()) EXPECT_LE(longest_s, kKilledLimit_s);
}

INSTANTIATE_TEST_SUITE_P(All, KilledRanks,
                         testing::Values(RunCase{"in_turn", "train", {}}, RunCase{"async", "train", ahead("async", 2)}),
                         [](const auto& one) { return std::string(one.param.name); });

// Each rank is killed while it writes its part of the second checkpoint.
TEST_F(Ranks, ARankThatIsKilledWhileItSavesLeavesTheLastGoodCheckpoint) {
  const std::vector<std::string> settings{"trainer.deterministic=true", "ranks.zero_stage=2"};
  run_group(3, "train", "straight", settings);
  if (HasFailure()) return;
  const auto expected = bits("straight");
  for (size_t victim = 0; victim < 3 && !HasFailure(); ++victim) {
    const std::string out = "killed_" + std::to_string(victim);
    std::filesystem::create_directories(task_.path() / out);
    FolderWatch watch(task_.path() / out);
    Group group(std::vector(size_t{3}, words("train", out, settings)), task_.path());
    ASSERT_TRUE(watch.wait_for(".tmp_global_step_2", 1, group[victim])) << group.text_of(victim);
    group[victim].signal(SIGKILL);
    const std::vector<int> codes = group.wait();
    for (size_t rank = 0; rank < codes.size(); ++rank) {
      EXPECT_EQ(codes[rank], rank == victim ? -SIGKILL : 7) << rank << ": " << group.text_of(rank);
    }
    const auto found = find_newest_valid(default_env(), task_.path() / out);
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    EXPECT_GE((*found)->ref.place.step, 1);
    run_group(3, "train", out, settings);
    if (HasFailure()) return;
    expect_same_bits(bits(out), expected, out);
    const std::vector<std::string> left = default_env().list_dir(task_.path() / out).value();
    for (const std::string& name : left) EXPECT_FALSE(name.starts_with(".tmp_")) << name;
  }
}

// A reward that counts its rows, and a backend that reads a file line by line: rank 0 runs them.
TEST_F(Ranks, PluginsWithStateSeeAllRows) {
  const std::string packs = "plugins.paths=[\"" + std::string(MORTISE_BINARY_DIR) + "/tests/packs/faulty\"]";
  run_alone("train", "recorded", {});
  std::string lines;
  for (int64_t step = 1; step <= kSteps; ++step) {
    Json line;
    for (const Json& row : rows_of(task_.path() / ("recorded/dump/" + std::to_string(step) + ".jsonl"))) {
      if (row["sample_index"] == 0) line = Json{{"prompt_token_ids", row["prompt_token_ids"]}};
      line["completions"].push_back(row["token_ids"]);
      line["finish_reasons"].push_back(row["finish_reason"]);
      if (row["sample_index"] == 3) lines += dump_json(line) + "\n";
    }
  }
  task_.write("replay.jsonl", lines);
  const std::vector<std::string> settings{
      "trainer.deterministic=true", "rollout.name=replay", "rollout.replay.path=replay.jsonl", packs,
      "reward.0.use=counter",       "~reward.0.pattern"};
  run_alone("train", "alone", settings);
  run_group(3, "train", "ranks", settings);
  if (HasFailure()) return;
  expect_same_bits(bits("ranks"), bits("alone"), "ranks");
}

TEST_F(Ranks, ASignalToOneRankStopsAllAfterTheSameStep) {
  std::vector<std::string> long_run{"trainer.total_training_steps=100000", "trainer.save_freq=-1"};
  Group group(std::vector<std::vector<std::string>>(3, words("train", "out", long_run)), task_.path());
  const Path rows = task_.path() / "out/metrics.jsonl";
  while (rows_of(rows).size() < 2 && !group[1].poll()) usleep(20'000);
  group[1].signal(SIGTERM);
  group.expect_all(8);
  const size_t num_steps = rows_of(rows).size();
  EXPECT_GE(num_steps, 2U);
  EXPECT_TRUE(default_env().exists(task_.path() / ("out/global_step_" + std::to_string(num_steps))));
}

TEST_F(Ranks, RanksWithOtherSettingsAreRefused) {
  std::vector<std::vector<std::string>> all(3, words("train", "out", {}));
  all[2].emplace_back("actor.optim.lr=1e-3");
  Group group(all, task_.path());
  group.expect_refused(2, "the settings of rank 2 differ");
  EXPECT_FALSE(default_env().exists(task_.path() / "out"));
}

// The same settings, and another model behind the same relative path.
TEST_F(Ranks, ARankWithOtherWeightsIsNamed) {
  const TempDir other;
  const Outcome made = run(program("make_task") + " . --seed 4 --tiny", other.path());
  ASSERT_EQ(made.code, 0) << made.output;
  other.write("rl.toml", default_env().read_file(task_.path() / "rl.toml").value());
  const std::string out = (task_.path() / "out").string();
  const std::vector<std::string> word = words("train", "out", {"trainer.default_local_dir=" + out});
  Group group({word, word, word}, task_.path(), other.path());
  group.expect_refused(7, "the weights of rank 2 differ");
}

TEST_F(Ranks, DeterministicRanksNeedTheSameNumberOfThreads) {
  std::vector<std::string> word = words("train", "out", {"trainer.deterministic=true", "~trainer.num_threads"});
  std::vector<std::string> two = word, one = word;
  two.insert(two.begin(), {"/usr/bin/env", "OMP_NUM_THREADS=2"});
  one.insert(one.begin(), {"/usr/bin/env", "OMP_NUM_THREADS=1"});
  Group group({one, one, two}, task_.path());
  group.expect_refused(2, "the numbers of threads of rank 2 differ");
}

}  // namespace
}  // namespace mortise::test
