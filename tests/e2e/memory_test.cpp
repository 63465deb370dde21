// The peak memory of whole runs against what --dry-run says of it, on a model of 25 M parameters, or half as many for
// ranks: large enough that the run's own numbers are most of the memory. Memory does not depend on how busy the machine
// is. ./dev bench memory shows more cases.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "model/model.h"
#include "program.h"

namespace mortise::test {
namespace {

constexpr double kTolerance = 0.15;

void write_larger_model(const TaskFolder& task, int64_t num_layers = 6) {
  const ModelConfig small = *read_model_config(default_env(), task.path() / "model");
  ModelConfig config = *make_qwen2_config({.vocab_size = small.vocab_size,
                                           .hidden_size = 512,
                                           .intermediate_size = 2048,
                                           .num_layers = num_layers,
                                           .num_heads = 8,
                                           .num_kv_heads = 8,
                                           .tie_word_embeddings = true,
                                           .max_position_embeddings = small.max_position_embeddings});
  config.eos_token_ids = small.eos_token_ids;
  config.pad_token_id = small.pad_token_id;
  ASSERT_TRUE(Model::random(config, 3)->save(default_env(), task.path() / "model").ok());
}

// The peak of the process that `command` becomes, as the system counts it. If that starts others, of the one with most.
double peak_bytes(const TaskFolder& task, const std::string& command) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chdir(task.path().c_str()) != 0) ::_exit(126);
    const int log = ::open("console.txt", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ::dup2(log, 1);
    ::dup2(log, 2);
    ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  struct rusage used = {};
  EXPECT_EQ(::wait4(child, &status, 0, &used), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << default_env().read_file(task.path() / "console.txt").value();
  return static_cast<double>(used.ru_maxrss) * 1024.0;
}

struct MemoryCase {
  const char* name;
  std::string settings;
  bool reuses_forward = true;
};

class Memory : public testing::TestWithParam<MemoryCase> {};

// Compares both, and returns what the dry run says. `dry`: variables of the dry run; `launch`: what starts ranks.
Json expect_peak_of_dry_run(const TaskFolder& task, const char* name, const std::string& settings,
                            const std::string& dry = "", const std::string& launch = "") {
  const std::string command = " train run.toml data.val_files=[] trainer.logger='[]' " + settings;
  const Outcome said = run(dry + program("mortise") + command + " --dry-run --json", task.path());
  EXPECT_EQ(said.code, 0) << said.output;
  Json numbers = parse_json(said.output, "dry run").value();
  const double estimate = number_of(numbers["memory_bytes"], "total");
  const double peak = peak_bytes(task, program("mortise") + launch + command);
  std::printf("%s: --dry-run says %.0f MiB, the peak is %.0f MiB, ratio %.3f\n", name, estimate / 1048576,
              peak / 1048576, estimate / peak);
  EXPECT_NEAR(estimate / peak, 1.0, kTolerance) << name;
  return numbers;
}

TEST_P(Memory, IsWhatADryRunSays) {
  const TaskFolder task;
  write_larger_model(task);
  const MemoryCase& one = GetParam();
  const Json numbers = expect_peak_of_dry_run(
      task, one.name,
      "trainer.default_local_dir=out trainer.total_training_steps=2 trainer.num_threads=2 rollout.n=4 "
      "data.train_batch_size=8 actor.ppo_mini_batch_size=8 " +
          one.settings);
  EXPECT_EQ(numbers["reuses_forward"], one.reuses_forward);
  EXPECT_EQ(number_of(numbers["memory_bytes"], "sampled_forward") > 0, one.reuses_forward);
}

// The rank that needs most counts. A dry run does not meet the other rank.
TEST(MemoryOfRanks, IsWhatADryRunSays) {
  const TaskFolder task;
  write_larger_model(task, 3);
  expect_peak_of_dry_run(task, "2 ranks, stage 3",
                         "trainer.default_local_dir=out trainer.total_training_steps=1 trainer.num_threads=1 "
                         "rollout.n=2 data.train_batch_size=2 actor.ppo_mini_batch_size=2 ranks.zero_stage=3",
                         "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 ", " launch --nproc 2");
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Memory,
    testing::Values(MemoryCase{"float32_with_a_reference", "actor.use_kl_loss=true"},
                    MemoryCase{"bfloat16_with_a_critic", "model.dtype=bfloat16 algorithm.adv_estimator=gae"},
                    MemoryCase{"float32_with_an_adapter", "model.lora_rank=8"},
                    // A checkpoint holds the masters of both models next to their bfloat16 weights.
                    MemoryCase{"bfloat16_in_files",
                               "model.dtype=bfloat16 algorithm.adv_estimator=gae "
                               "actor.use_kl_loss=true actor.optim.offload=file critic.optim.offload=file "
                               "ref.offload=file trainer.save_freq=1 trainer.save_dtype=bfloat16 "
                               "rollout.reuse_forward_mib=0 trainer.offload_dir=" +
                                   std::string(MORTISE_BINARY_DIR),
                               false}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace mortise::test
