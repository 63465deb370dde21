// Shell scripts as people publish them: variables and launchers are read, nothing is run.
#include "import/shell.h"

#include <filesystem>

#include "import/launcher.h"
#include "import_support.h"

namespace mortise::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Not;

// The words of the last command, unknown ones as "?NAME".
std::vector<std::string> words_of(const std::string& text, const ShellVariables& given = {}) {
  const Result<ShellScript> script = read_shell(text, "run.sh", given);
  if (!script) return {script.error().to_string()};
  std::vector<std::string> out;
  if (script->commands.empty()) return out;
  for (const ShellWord& word : script->commands.back().words)
    out.push_back(word.unknown.empty() ? word.text : "?" + word.name);
  return out;
}

TEST(ImportShell, VariablesArePutInAsTheShellDoes) {
  EXPECT_THAT(words_of("A=1\nB=\"$A 2\"\nC='$A'\nrun $A ${A}x \"$B\" $B $C"),
              ElementsAre("run", "1", "1x", "1 2", "1", "2", "$A"));
  EXPECT_THAT(words_of("A=${A:-5} ; B=${N-none}; E=\nrun $A $B ${E:-empty} ${E-kept} ${A:+set} ${N:+set} x"),
              ElementsAre("run", "5", "none", "empty", "set", "x"));
  EXPECT_THAT(words_of(": \"${SIZE:=7}\"\nrun q-${SIZE}b ${1:-first}"), ElementsAre("run", "q-7b", "first"));
  EXPECT_THAT(words_of("HOME_=/data\nP=${P:-\"${HOME_}/verl\"}\nrun ${P}/m \"$P\"/n"),
              ElementsAre("run", "/data/verl/m", "/data/verl/n"));
  EXPECT_THAT(words_of("export A=1 B=2\nA+=0\nrun $A$B \\\n  # not a comment of the command\\\n"),
              ElementsAre("run", "102"));
  EXPECT_THAT(words_of("run \"a\\$b\\n\" a\\ b ''"), ElementsAre("run", "a$b\\n", "a b", ""));
}

TEST(ImportShell, ArithmeticIsOfWholeNumbers) {
  EXPECT_THAT(words_of("p=$((1024 * 2))\nr=$((1024*20))\nrun $((p + r)) $(($p/3%5)) $((-(2+3)*4)) ${x:-$((1+1))}"),
              ElementsAre("run", "22528", "2", "-20", "2"));
  EXPECT_THAT(words_of("run $((1/0)) $((2**3)) $((unset+1)) $((9223372036854775807+1))"),
              ElementsAre("run", "?", "?", "?unset", "?"));
}

TEST(ImportShell, ArraysKeepTheirWords) {
  EXPECT_THAT(
      words_of("A=(\n  one \"two words\"  # a comment\n  $((1+2))\n)\nA+=(last)\nrun \"${A[@]}\" n=${#A[@]} ${A[1]}"),
      ElementsAre("run", "one", "two words", "3", "last", "n=4", "two", "words"));
}

TEST(ImportShell, WhatIsNotKnownIsNeverGuessed) {
  EXPECT_THAT(words_of("run $A $(date) `date` $1 $@ x"), ElementsAre("run", "?A", "?", "?", "?1", "x"));
  EXPECT_THAT(words_of("A=$(pwd)\nrun $A/a \"$PWD/b\" `pwd` $(pwd; date)"), ElementsAre("run", "./a", "./b", ".", "?"));
  EXPECT_THAT(words_of("cd x\nrun $(pwd) $PWD"), ElementsAre("run", "?PWD", "?PWD"));
  EXPECT_THAT(words_of("run $(pwd)", {{"PWD", "/a"}}), ElementsAre("run", "/a"));
  EXPECT_THAT(words_of("A=1\nif [ -n \"$B\" ]; then\n  A=2\nfi\nrun $A"), ElementsAre("run", "?A"));
  EXPECT_THAT(words_of("A=1\n[ -n \"$B\" ] && A=2\nrun $A"), ElementsAre("run", "?A"));
  EXPECT_THAT(words_of("for lr in 1 2; do\n run $lr\ndone"), ElementsAre("run", "?lr"));
  EXPECT_THAT(words_of("A=1\ncd x && B=2\nrun $A $B"), ElementsAre("run", "1", "2"));
  EXPECT_THAT(words_of("if true; then A=2; fi\nrun $A $B", {{"A", "7"}, {"B", "8"}}), ElementsAre("run", "7", "8"));
  EXPECT_THAT(words_of("run ${A##*/} ${A/x/y}"), ElementsAre("run", "?A", "?A"));
  EXPECT_THAT(words_of("run ${trainer.nnodes} '${a.b}'"), ElementsAre("run", "${trainer.nnodes}", "${a.b}"));
}

TEST(ImportShell, NothingIsRun) {
  const std::filesystem::path mark = std::filesystem::temp_directory_path() / "mortise_import_was_run";
  std::filesystem::remove(mark);
  const std::string touch = "touch " + mark.string();
  (void)words_of("A=$(" + touch + ")\nB=`" + touch + "`\n" + touch + "\nrun \"$A$B\" $((A[$(" + touch + ")]))");
  EXPECT_FALSE(std::filesystem::exists(mark));
}

// HOME comes from the environment, and the script may set it.
TEST(ImportShell, HomeIsKnown) {
  const auto word = [](const std::string& text, const ShellVariables& given) {
    const Result<ShellScript> script = read_shell(text, "run.sh", given, {{"HOME", "/users/ada"}});
    const ShellWord& last = script.value().commands.back().words.back();
    return last.unknown.empty() ? last.text : "?" + last.name;
  };
  EXPECT_EQ(word("run $HOME/data", {}), "/users/ada/data");
  EXPECT_EQ(word("HOME=/x\nrun $HOME/data", {}), "/x/data");
  EXPECT_EQ(word("run $HOME/data", {{"HOME", "/y"}}), "/y/data");
  EXPECT_EQ(word("run $OTHER", {}), "?OTHER");
}

TEST(ImportShell, ScriptsThatNeverEndAreErrors) {
  std::string doubling = "A=xxxxxxxxxx\n";
  for (int i = 0; i < 60; ++i) doubling += "A=\"$A$A\"\n";
  EXPECT_THAT(words_of(doubling + "run $A"), ElementsAre(HasSubstr("more than 4 MiB")));
  std::string nested = "1";
  for (int i = 0; i < 2000; ++i) nested = "${A:-" + nested + "}";
  EXPECT_EQ(words_of("run " + nested).size(), 2U);
  EXPECT_THAT(words_of("run 'x"), ElementsAre("run.sh:1: a quote is not closed; close it"));
  EXPECT_THAT(words_of("\nrun ${x"), ElementsAre(HasSubstr("run.sh:2: a bracket is not closed")));
}

TEST(ImportShell, OtherCommandsOperatorsAndDocumentsAreLeftOut) {
  EXPECT_THAT(words_of("cat > hosts <<EOF\nrun wrong\nEOF\nrun a 2>&1 >log | tee x.log\n").front(), "tee");
  const Result<ShellScript> script = read_shell("X=1 run a 2>&1 | tee x.log\n(cd y; other b) &\n", "run.sh", {});
  ASSERT_TRUE(script);
  ASSERT_EQ(script->commands.size(), 4U);
  EXPECT_EQ(script->commands[0].words.size(), 2U);
  EXPECT_EQ(script->commands[0].environment.at("X").text, "1");
}

Launch launch_of(const std::string& text) {
  const Result<ShellScript> script = read_shell(text, "run.sh", {});
  return script ? find_training(*script, false).launch : Launch{{}, script.error().to_string(), ""};
}

TEST(ImportLauncher, ProcessesAreCounted) {
  const std::pair<const char*, int64_t> cases[] = {
      {"accelerate launch --num_processes 8 --mixed_precision bf16 train.py --beta 0", 8},
      {"accelerate launch --num-processes=4 --config_file a.yaml -m trl.scripts.grpo --beta 0", 4},
      {"N=3\naccelerate launch --multi_gpu --num_processes $N train.py --beta 0", 3},
      {"CUDA_VISIBLE_DEVICES=0,2,4 accelerate launch train.py --beta 0", 3},
      {"torchrun --nproc-per-node 4 train.py --beta 0", 4},
      {"torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend c10d train.py --beta 0", 16},
      {"torchrun train.py --beta 0", 1},
      {"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node gpu train.py --beta 0", 2},
      {"python -m torch.distributed.run --nproc_per_node 2 train.py --beta 0", 2},
      {"deepspeed --num_gpus 4 --num_nodes 2 train.py --beta 0", 8},
      {"deepspeed --include localhost:0,1,5 train.py --beta 0", 3},
      {"CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py --beta 0", 2},
      {"NPROC_PER_NODE=4 swift rlhf --beta 0", 4},
      {"export NPROC_PER_NODE=4\nexport NNODES=2\nswift rlhf --beta 0", 8},
  };
  for (const auto& [text, processes] : cases) {
    const Launch launch = launch_of(text);
    EXPECT_EQ(launch.processes.value_or(-1), processes) << text << ": " << launch.unknown;
    EXPECT_NE(launch.how, "") << text;
  }
  EXPECT_FALSE(launch_of("NPROC_PER_NODE=4\nswift rlhf --beta 0").processes) << "not exported";
  EXPECT_FALSE(launch_of("CUDA_VISIBLE_DEVICES=0,1 python train.py --beta 0").processes);
}

TEST(ImportLauncher, WhatIsNotSaidIsAsked) {
  for (const char* text : {"accelerate launch --config_file zero3.yaml train.py --beta 0",
                           "accelerate launch train.py --beta 0", "torchrun --nproc_per_node auto train.py --beta 0",
                           "torchrun --nproc_per_node $N train.py --beta 0", "deepspeed train.py --beta 0"}) {
    const Launch launch = launch_of(text);
    EXPECT_FALSE(launch.processes) << text;
    EXPECT_NE(launch.unknown, "") << text;
  }
  const std::string script = "accelerate launch train.py --per_device_train_batch_size 4 --num_generations 8";
  EXPECT_THAT(import_error("trl", script, "run.sh"),
              HasSubstr("accelerate launch starts a process for every GPU, and the script does not say how many there "
                        "are; give the number of processes with --processes N"));
  EXPECT_EQ(imported("trl", script, "run.sh", 8).data.train_batch_size, 4);
}

TEST(ImportLauncher, TheBatchIsThatOfAllProcesses) {
  const std::string settings = " --per_device_train_batch_size 4 --num_generations 8 --gradient_accumulation_steps 2";
  EXPECT_EQ(imported("trl", "accelerate launch --num_processes 8 grpo.py" + settings, "run.sh").data.train_batch_size,
            8);
  EXPECT_EQ(imported("trl", "trl grpo --num_processes 8" + settings, "run.sh").data.train_batch_size, 8);
  EXPECT_EQ(
      imported("swift", "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model m --train_type full" + settings, "run.sh")
          .data.train_batch_size,
      4);
  EXPECT_EQ(
      imported("trl", "accelerate launch --num_processes 8 grpo.py" + settings, "run.sh", 2).data.train_batch_size, 2)
      << "--processes wins";
  EXPECT_THAT(imported_toml("trl", "accelerate launch --num_processes 8 grpo.py" + settings, "run.sh", 2),
              HasSubstr("# To train on 2 processes: mortise launch --nproc 2 train FILE"));
  EXPECT_THAT(
      imported_toml("trl", "torchrun --nproc-per-node 4 grpo.py" + settings, "run.sh"),
      AllOf(HasSubstr("# Launcher: torchrun --nproc_per_node 4. The batch sizes are those of 4 processes together, "
                      "with any number of ranks.\n# To train on 4 processes: mortise launch --nproc 4 train FILE"),
            HasSubstr("train_batch_size = 4")));
  // A file that does not say how many processes run.
  EXPECT_THAT(import_error("trl", "per_device_train_batch_size: 4\nnum_generations: 8"),
              HasSubstr("of 1 process does not hold whole groups of 8 (num_generations); if several processes run, "
                        "give --processes N"));
}

TEST(ImportScript, UnknownVariablesAreToldAllAtOnceWhereTheyCount) {
  const std::string script =
      "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$DATA/a.jsonl "
      "trainer.experiment_name=x_$(date) data.train_batch_size=$SIZE actor_rollout_ref.model.path=$MODEL bad.key=1 "
      "actor_rollout_ref.actor.ppo_mini_batch_size=8";
  EXPECT_THAT(import_error("verl", script, "run.sh"),
              AllOf(HasSubstr("4 problems"),
                    HasSubstr("'data.train_files' is not known: nothing sets the variable DATA; give "
                              "its value with --set DATA=VALUE"),
                    HasSubstr("--set SIZE=VALUE"), HasSubstr("--set MODEL=VALUE"), HasSubstr("unknown setting 'bad'"),
                    Not(HasSubstr("experiment_name"))));
  const Result<ImportedConfig> result =
      import_config_text(default_env(), {"verl", "run.sh", {}, {{"DATA", "d"}, {"SIZE", "8"}, {"MODEL", "m"}}},
                         script.substr(0, script.find(" bad.key")) + " actor_rollout_ref.actor.ppo_mini_batch_size=8");
  ASSERT_TRUE(result) << result.error().to_string();
  const RunConfig config = config_of(result->toml);
  EXPECT_EQ(config.data.train_files, std::vector<std::string>{"d/a.jsonl"});
  EXPECT_EQ(config.data.train_batch_size, 8);
}

// As the example scripts of verl are written: variables, arithmetic, an array, a job of Ray.
TEST(ImportScript, AVerlRecipeWithVariablesIsRead) {
  const std::string script = R"(#!/usr/bin/env bash
set -euxo pipefail
exp_name='run'-$(date +%d)
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
enable_overlong_buffer=True
overlong_buffer_len=$((1024 * 4))
overlong_penalty_factor=0.5
batch=64
DATA_HOME=${DATA_HOME:-"${HOME}/data"}
MODEL_PATH=${MODEL_PATH:-"${DATA_HOME}/models/q"}

# the job
ray job submit --no-wait --runtime-env="${RUNTIME_ENV:-env.yaml}" \
    --working-dir "${PWD}" \
    -- python3 -m recipe.dapo.main_dapo \
    data.train_files="${DATA_HOME}/train.jsonl" \
    data.truncation='left' \
    data.max_prompt_length=${max_prompt_length} \
    data.max_response_length=${max_response_length} \
    data.gen_batch_size=$((batch * 3)) \
    data.train_batch_size=${batch} \
    algorithm.adv_estimator=grpo \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path="${MODEL_PATH}" \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.n=16 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=${enable_overlong_buffer} \
    reward_model.overlong_buffer.len=${overlong_buffer_len} \
    reward_model.overlong_buffer.penalty_factor=${overlong_penalty_factor} \
    trainer.experiment_name="${exp_name}" \
    trainer.logger='["console","wandb"]' 2>&1 | tee log.txt
)";
  EXPECT_THAT(import_error("verl", script, "run.sh"), HasSubstr("--set HOME=VALUE"));
  const Result<ImportedConfig> result =
      import_config_text(default_env(), {"verl", "run.sh", {}, {{"HOME", "/home/me"}}}, script);
  ASSERT_TRUE(result) << result.error().to_string();
  const RunConfig config = config_of(result->toml);
  EXPECT_EQ(config.model.path, "/home/me/data/models/q");
  EXPECT_EQ(config.data.max_prompt_length, 2048);
  EXPECT_EQ(config.data.gen_batch_size, 192);
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[0].name, "overlong");
  EXPECT_EQ(config.reward[0].params, Json({{"limit", 8192}, {"buffer", 4096}, {"penalty", -0.5}}));
}

TEST(ImportScript, SwiftSettingsThatChangeTheNumbersAreRefusedByName) {
  const std::string script =
      "swift rlhf --rlhf_type grpo --model m --train_type full --num_generations 8 "
      "--per_device_train_batch_size 8 --max_length 512 --dataset a.jsonl --reward_funcs format ";
  EXPECT_EQ(import_error("swift", script, "run.sh"), "ok");
  for (const char* setting :
       {"--template qwen", "--response_prefix '<think>'", "--loss_scale hermes", "--use_chat_template false"})
    EXPECT_THAT(import_error("swift", script + setting, "run.sh"), HasSubstr("is not supported")) << setting;
  EXPECT_EQ(import_error("swift", script + "--loss_scale last_round", "run.sh"), "ok");
}

TEST(ImportScript, TwoPythonRewardsAreNamedByTheirFunctions) {
  const RunConfig config = imported("trl", "reward_funcs: [pkg.rewards.right, pkg.rewards.short, other.right]");
  ASSERT_EQ(config.reward.size(), 3U);
  EXPECT_EQ(config.reward[0].name, "right");
  EXPECT_EQ(config.reward[1].name, "short");
  EXPECT_EQ(config.reward[2].name, "other.right");
}

}  // namespace
}  // namespace mortise::test
