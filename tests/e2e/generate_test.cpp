// Decoding through the program: slots and threads do not change the file, and a run can sample with bfloat16 weights.
#include <gtest/gtest.h>

#include <algorithm>

#include "process.h"
#include "program.h"

namespace mortise::test {
namespace {

TEST(Generate, DeterministicTokensForAnySlotsAndThreads) {
  const TaskFolder task;
  ASSERT_EQ(run("head -n 12 data/val.jsonl > few.jsonl", task.path()).code, 0);
  for (const char* dtype : {"rollout.dtype=auto", "rollout.dtype=bfloat16", "model.dtype=float64"}) {
    std::string first;
    for (const char* settings :
         {"rollout.max_num_seqs=1 trainer.num_threads=1", "rollout.max_num_seqs=3 trainer.num_threads=2",
          "rollout.max_num_seqs=64 trainer.num_threads=2 rollout.kv_cache_mib=1"}) {
      const Outcome outcome = task.mortise(
          "generate --model model --prompts few.jsonl --out g.jsonl rollout.n=5 rollout.response_length=6 "
          "rollout.deterministic=true " +
          std::string(dtype) + " " + settings);
      ASSERT_EQ(outcome.code, 0) << outcome.output;
      const std::string text = default_env().read_file(task.path() / "g.jsonl").value();
      if (first.empty()) first = text;
      EXPECT_EQ(text, first) << dtype << " " << settings;
    }
    EXPECT_EQ(rows_of(task.path() / "g.jsonl").size(), 12U);
  }
}

// The reference operations and each instruction set of the fast path, from the command line.
TEST(Generate, EveryPathCanBeForced) {
  const TaskFolder task("--tiny");
  ASSERT_EQ(run("head -n 6 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const auto generate = [&](const std::string& settings) {
    const Outcome outcome = task.mortise(
        "generate --model model --prompts few.jsonl --out g.jsonl rollout.temperature=0 rollout.response_length=6 "
        "--json " +
        settings + " 2>/dev/null");
    const auto summary = parse_json(outcome.output, settings);
    return summary.ok() ? (*summary)["path"].get<std::string>() : outcome.output;
  };
  const auto ids = [&] {
    Json out = Json::array();
    for (const Json& row : rows_of(task.path() / "g.jsonl")) out.push_back(row["completions"][0]["token_ids"]);
    return out;
  };
  const std::string fast = generate("");
  EXPECT_NE(fast, "plain");
  const Json want = ids();
  EXPECT_EQ(want.size(), 6U);
  EXPECT_EQ(generate("rollout.kernels=" + fast), fast);
  for (const char* settings : {"rollout.kernels=plain", "rollout.kernels=plain rollout.deterministic=true",
                               "rollout.kernels=plain model.dtype=float64", "model.dtype=float64"}) {
    EXPECT_EQ(generate(settings), "plain") << settings;
    EXPECT_EQ(ids(), want) << settings;
  }
  EXPECT_EQ(generate("rollout.kernels=base"), "base");
  EXPECT_EQ(ids(), want);
  // Every combination of sampler and learner gives the same update.
  std::vector<double> norms;
  for (const char* settings :
       {"rollout.kernels=auto", "rollout.kernels=plain model.layers=plain", "model.layers=plain"}) {
    const Outcome trained = task.mortise(
        std::string("train run.toml 'reward.0.pattern=^[0-4]' trainer.total_training_steps=1 data.train_batch_size=4 "
                    "actor.ppo_mini_batch_size=4 trainer.default_local_dir=out") +
        std::to_string(norms.size()) + " " + settings);
    ASSERT_EQ(trained.code, 0) << trained.output;
    const Json row = rows_of(task.path() / ("out" + std::to_string(norms.size())) / "metrics.jsonl")[0];
    EXPECT_LT(row["training/rollout_probs_diff_max"].get<double>(), 1e-5) << settings;
    norms.push_back(row["actor/grad_norm"].get<double>());
    EXPECT_NEAR(norms.back(), norms[0], 1e-5 * norms[0]) << settings;
  }
  EXPECT_GT(norms[0], 0.0);
}

// As in transformers, such an id never comes. A warning tells the user.
TEST(Generate, EndIdsOutsideTheVocabularyAreToldAndLeftOut) {
  const TaskFolder task;
  task.write("model/generation_config.json", "{\"eos_token_id\": [1, 70000]}");
  ASSERT_EQ(run("head -n 1 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const Outcome outcome =
      task.mortise("generate --model model --prompts few.jsonl --out g.jsonl rollout.response_length=3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("the end id 70000"), std::string::npos) << outcome.output;
}

TEST(Generate, RoundedWeightsNeedAFloat32Model) {
  const TaskFolder task;
  ASSERT_EQ(run("head -n 1 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const Outcome outcome = task.mortise(
      "generate --model model --prompts few.jsonl --out g.jsonl rollout.response_length=2 rollout.dtype=bfloat16 "
      "model.dtype=float64");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("Only a float32 model can sample in another format"), std::string::npos)
      << outcome.output;
}

// A stopped command keeps the finished completions: whole rows, in the order of the prompts.
TEST(Generate, StoppedItKeepsTheRowsThatAreWhole) {
  const TaskFolder task;
  ASSERT_EQ(run("for i in $(seq 100); do cat data/val.jsonl; done > many.jsonl", task.path()).code, 0);
  Process process({program("mortise"), "generate", "--model", "model", "--prompts", "many.jsonl", "--out", "g.jsonl",
                   "rollout.n=4", "rollout.max_num_seqs=2", "rollout.ignore_eos=true", "rollout.response_length=2"},
                  task.path(), task.path() / "log");
  const Path partial = task.path() / "g.jsonl.partial";
  const auto has_rows = [&] { return default_env().exists(partial) && default_env().info(partial)->size_bytes > 5000; };
  while (!has_rows() && !process.poll()) usleep(2000);
  ASSERT_EQ(run("head -n 2 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const std::string few = "generate --model model --prompts few.jsonl --out g.jsonl rollout.response_length=2";
  process.signal(SIGSTOP);  // it keeps its lock, and leaves the cores to the second
  const Outcome second = task.mortise(few);
  process.signal(SIGCONT);
  EXPECT_EQ(second.code, 6) << second.output;
  EXPECT_NE(second.output.find("g.jsonl.partial: another process is writing the rows of g.jsonl; wait for it"),
            std::string::npos)
      << second.output;
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 8);
  EXPECT_FALSE(default_env().exists(task.path() / "g.jsonl"));
  const std::vector<Json> rows = rows_of(partial);
  EXPECT_GT(rows.size(), 0U);
  for (const Json& row : rows) EXPECT_EQ(row["completions"].size(), 4U);
  const std::string log = default_env().read_file(task.path() / "log").value();
  EXPECT_NE(log.find("rows are in g.jsonl.partial"), std::string::npos) << log;
  // As a kill may leave it.
  ASSERT_EQ(run("printf '{\"prompt_token_ids\": [1' >> g.jsonl.partial", task.path()).code, 0);
  const Outcome next = task.mortise(few);
  EXPECT_EQ(next.code, 0) << next.output;
  EXPECT_NE(next.output.find("are now in g.jsonl.partial.before_1; its last row was not whole and is dropped"),
            std::string::npos)
      << next.output;
  EXPECT_EQ(rows_of(task.path() / "g.jsonl").size(), 2U);
  EXPECT_EQ(rows_of(task.path() / "g.jsonl.partial.before_1"), rows);
  EXPECT_TRUE(default_env().read_file(task.path() / "g.jsonl.partial.before_1").value().ends_with("}\n"));
  EXPECT_FALSE(default_env().exists(partial));
}

// The row that the disk had no room for is not left half-written among the whole ones.
TEST(Generate, AFullDiskLeavesWholeRows) {
  const TaskFolder task;
  const Outcome outcome =
      run("trap '' XFSZ; ulimit -f 4; " + program() +
              " generate --model model --prompts data/val.jsonl --out g.jsonl rollout.response_length=2",
          task.path());
  EXPECT_EQ(outcome.code, 6) << outcome.output;
  const std::string text = default_env().read_file(task.path() / "g.jsonl.partial").value();
  EXPECT_TRUE(text.ends_with("}\n")) << text;
  const auto num_rows = std::count(text.begin(), text.end(), '\n');
  EXPECT_GT(num_rows, 1);
  EXPECT_NE(outcome.output.find("the first " + std::to_string(num_rows) + " of 500 rows are in g.jsonl.partial"),
            std::string::npos)
      << outcome.output;
}

// The sampler's probabilities differ from the trainer's by the rounding of the weights. Learning still works.
TEST(Generate, TrainingWithBfloat16Rollouts) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml rollout.dtype=bfloat16");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 40U);
  double largest = 0;
  for (const Json& row : rows) largest = std::max(largest, row["training/rollout_probs_diff_mean"].get<double>());
  EXPECT_GT(largest, 1e-6);
  EXPECT_LT(largest, 1e-2);
  double reward = 0;
  for (size_t i = 35; i < 40; ++i) reward += rows[i]["critic/score/mean"].get<double>() / 5;
  EXPECT_GT(reward, 0.9);
}

}  // namespace
}  // namespace mortise::test
