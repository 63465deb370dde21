// Rewards of one rank's prompts that a worker of another rank scores while both sample.
#include <gtest/gtest.h>

#include <regex>

#include "rank_group.h"

namespace mortise::test {
namespace {

class RankRewards : public Ranks {};

// What the log of a rank says that it scored for others, in all steps.
int64_t num_taken_over(const Path& log) {
  const std::string text = default_env().read_file(log).value();
  const std::regex line("this rank scored ([0-9]+) prompts? of other ranks while rows were sampled");
  int64_t sum = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) sum += std::stoll((*it)[1]);
  return sum;
}

// The first two prompts of rank 0 begin with 1, and only their reward is slow: two seconds for each prompt. So the second one
// waits for the worker of rank 0, while both ranks sample six prompts more, one after another, and the worker of rank 1
// is free.
TEST_F(RankRewards, AFreeWorkerScoresPromptsOfAnotherRankWhileRowsAreSampled) {
  const Path config = task_.path() / "model/config.json";
  Json model = read_json_file(default_env(), config).value();
  model["max_position_embeddings"] = 4096;
  task_.write("model/config.json", dump_json(model));
  std::string rows;
  for (int i = 0; i < 16; ++i) rows += dump_json(Json{{"prompt", sum_prompt(i < 2 ? 10 + i : 20 + i, i)}}) + "\n";
  task_.write("data/one_slow_rank.jsonl", rows);
  const std::string packs = "plugins.paths=[\"" + std::string(MORTISE_BINARY_DIR) + "/tests/packs/faulty\"]";
  const std::vector<std::string> settings{"data.train_files=data/one_slow_rank.jsonl",
                                          "~data.train_max_samples",
                                          "data.shuffle=false",
                                          "data.train_batch_size=16",
                                          "data.max_response_length=2000",
                                          "actor.ppo_mini_batch_size=16",
                                          "actor.ppo_max_token_len_per_gpu=4000",
                                          "rollout.n=2",
                                          "rollout.max_num_seqs=2",
                                          "rollout.ignore_eos=true",
                                          "trainer.deterministic=true",
                                          "trainer.total_training_steps=1",
                                          "plugins.isolation=process",
                                          "plugins.num_workers=1",
                                          packs,
                                          "reward.0.use=plain",
                                          "reward.0.work_us=1000000",
                                          "reward.0.work_prompt=\"1\"",
                                          "~reward.0.pattern"};
  run_group(2, "train", "ranks", settings);
  if (HasFailure()) return;
  EXPECT_GT(num_taken_over(task_.path() / "ranks/log.txt") + num_taken_over(task_.path() / "ranks/rank_1.log"), 0);
  run_alone("train", "alone", settings);
  if (HasFailure()) return;
  const auto bits_of = [&](const std::string& out) { return without_shares(bits_of_run(task_.path() / out, 1)); };
  expect_same_bits(bits_of("ranks"), bits_of("alone"), "ranks");
}

}  // namespace
}  // namespace mortise::test
