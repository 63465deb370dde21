// Runs whose rewards are in workers: they give the same numbers as without workers, and a fault costs its row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "run_bits.h"
#include "support/this_build.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

std::string with_faulty_pack(const std::string& settings) {
  return "train run.toml trainer.total_training_steps=3 plugins.paths='[\"" +
         (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string() + "\"]' reward.0.use=fussy " + settings;
}

// run.toml without the parameter of its reward.
void use_fussy(const TaskFolder& task) {
  std::string text = default_env().read_file(task.path() / "run.toml").value();
  const std::string pattern = "pattern = \"^7\"\n";
  text.erase(text.find(pattern), pattern.size());
  task.write("run.toml", text);
}

double sum_of(const std::vector<Json>& rows, const std::string& metric) {
  double sum = 0;
  for (const Json& row : rows) sum += row[metric].get<double>();
  return sum;
}

TEST(Workers, GiveTheSameBitsAsTheTrainersOwnProcess) {
  const TaskFolder inside, outside;
  const std::string settings = "train run.toml trainer.total_training_steps=3 plugins.isolation=";
  const Outcome in = inside.mortise(settings + "none"),
                out = outside.mortise(settings + "process plugins.num_workers=3");
  ASSERT_EQ(in.code, 0) << in.output;
  ASSERT_EQ(out.code, 0) << out.output;
  EXPECT_THAT(out.output, HasSubstr("runs in 3 workers"));
  EXPECT_THAT(default_env().read_file(outside.path() / "out/log.txt").value(), HasSubstr("no network"));
  EXPECT_EQ(hash_of(inside.path() / "out/global_step_3/huggingface/model.safetensors"),
            hash_of(outside.path() / "out/global_step_3/huggingface/model.safetensors"));
}

TEST(Workers, ACrashCostsItsRowsAndIsShown) {
  const TaskFolder task;
  use_fussy(task);
  const Outcome outcome = task.mortise(
      with_faulty_pack("reward.0.crash_on='\"3\"' reward.0.refuse_on='\"5\"' plugins.max_failed_fraction=1 "
                       "trainer.rollout_data_dir=samples trainer.num_completions_to_print=128"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  // Kind, plugin, pack, hash, step, row and reason.
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex(
                  "warning: reward fussy@test[.]faulty 1[.]0[.]0 [(][0-9a-f]+[)], step [0-9]+: reward 'fussy' "
                  "failed on [0-9]+ of 128 rows; first: row [0-9]+: .*its worker was ended by signal 11 "
                  "[(]Segmentation fault[)] while it scored the row"));
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_GT(sum_of(rows, "rewards/fussy/failed"), 0);
  // Every failed row says why it failed: in the file, and below its line of the table.
  const std::vector<Json> samples = rows_of(task.path() / "samples/1.jsonl");
  ASSERT_EQ(samples.size(), 128U);
  std::set<std::string> reasons;
  for (const Json& sample : samples) {
    const Json& error = sample["errors"].at("fussy");
    ASSERT_EQ(error.is_null(), sample["rewards"]["fussy"].is_number()) << sample.dump();
    if (error.is_string()) reasons.insert(sample["output"].get<std::string>().substr(0, 1) + error.get<std::string>());
  }
  EXPECT_THAT(reasons, testing::UnorderedElementsAre(testing::StartsWith("3its worker was ended by signal 11"),
                                                     "5cannot stand it,\nnot at all"));
  EXPECT_THAT(outcome.output, HasSubstr("\n  ^ fussy failed: cannot stand it,\\nnot at all\n"));
}

TEST(Workers, TooManyFailuresStopTheRunWithTheirOwnCode) {
  const TaskFolder task;
  use_fussy(task);
  const std::string strict = with_faulty_pack("reward.0.refuse_on='\"3\"' plugins.max_failed_fraction=0 ");
  const Outcome outcome = task.mortise(strict);
  EXPECT_EQ(outcome.code, 9) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("raise plugins.max_failed_fraction = 0\n"));
  EXPECT_THAT(outcome.output, HasSubstr("reward fussy@test.faulty"));
  // The rows that it stopped by are not lost with it.
  const Outcome kept =
      task.mortise(strict + "trainer.rollout_data_dir=samples trainer.num_completions_to_print=128 --resume never");
  EXPECT_EQ(kept.code, 9) << kept.output;
  EXPECT_THAT(kept.output, HasSubstr("= 0; the rows, each with its reason, are in samples/1.jsonl\n"));
  EXPECT_THAT(kept.output, HasSubstr("\n  ^ fussy failed: cannot stand it,\\nnot at all\n"));
  const std::vector<Json> samples = rows_of(task.path() / "samples/1.jsonl");
  ASSERT_EQ(samples.size(), 128U);
  size_t num_failed = 0;
  for (const Json& sample : samples) {
    const bool failed = sample["output"].get<std::string>().starts_with("3");
    EXPECT_EQ(sample["errors"]["fussy"], failed ? Json("cannot stand it,\nnot at all") : Json(nullptr)) << sample;
    EXPECT_EQ(sample["score"].is_null(), failed) << sample;
    num_failed += failed ? 1 : 0;
  }
  EXPECT_GT(num_failed, 0U);
  EXPECT_THAT(kept.output, HasSubstr("failed on " + std::to_string(num_failed) + " of 128 rows"));
  // The folder takes no file. The error still names what stopped the run.
  task.write("blocked/1.jsonl/file", "");
  const Outcome blocked = task.mortise(strict + "trainer.rollout_data_dir=blocked --resume never");
  EXPECT_EQ(blocked.code, 9) << blocked.output;
  EXPECT_THAT(blocked.output, HasSubstr("the rows on which a reward failed could not be written: blocked/1.jsonl"));
}

// The step before the validation is learnt: it is kept, as those before it.
TEST(Workers, AValidationThatFailsCostsNoStep) {
  const TaskFolder task;
  use_fussy(task);
  const Outcome outcome = task.mortise(with_faulty_pack(
      "reward.0.trains_only=true data.val_files=data/val.jsonl data.val_max_samples=4 trainer.test_freq=2 "
      "trainer.save_freq=-1 plugins.isolation=none trainer.validation_data_dir=checks"));
  EXPECT_EQ(outcome.code, 9) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("validation after step 2: reward 'fussy' failed on 4 of 4 rows; first: row 0: "
                        "cannot validate; correct the reward, or raise plugins.max_failed_fraction = 0.1; "
                        "the rows, each with its reason, are in checks/2.jsonl"));
  EXPECT_THAT(outcome.output, HasSubstr("the 2 finished steps are saved in"));
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
  EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_2/manifest.json"));
  const std::vector<Json> checks = rows_of(task.path() / "checks/2.jsonl");
  ASSERT_EQ(checks.size(), 4U);
  for (const Json& check : checks) EXPECT_EQ(check["errors"]["fussy"], "cannot validate");
  // `eval` keeps them too.
  const Outcome eval = task.mortise(
      "eval run.toml model.path=out/global_step_2/huggingface data.val_files=data/val.jsonl data.val_max_samples=4 "
      "plugins.isolation=none trainer.validation_data_dir=checks reward.0.trains_only=true reward.0.use=fussy "
      "plugins.paths='[\"" +
      (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string() + "\"]'");
  EXPECT_EQ(eval.code, 9) << eval.output;
  EXPECT_THAT(eval.output, HasSubstr("are in checks/eval.jsonl"));
  EXPECT_EQ(rows_of(task.path() / "checks/eval.jsonl").size(), 4U);
}

// The next process repeats a failed validation, and the run's files are as if nothing had failed. This holds in the
// middle of a run, and if only the validation is left. Without validation rows the run continues without it.
TEST(Workers, AValidationThatFailedIsMadeByAResume) {
  const TaskFolder task;
  use_fussy(task);
  const auto train = [&](const std::string& out, const std::string& more) {
    return task.mortise(with_faulty_pack("plugins.isolation=none trainer.default_local_dir=" + out + " " + more));
  };
  const std::string checks = "data.val_files=data/val.jsonl data.val_max_samples=4 trainer.test_freq=";
  const std::string fails = " reward.0.trains_only=true", corrected = " reward.0.trains_only=false";
  for (const std::string frequency : {"2", "-1"}) {  // after steps 2 and 3, or only after step 3
    const std::string straight = "straight" + frequency, out = "out" + frequency;
    const Outcome expected = train(straight, checks + frequency + corrected);
    ASSERT_EQ(expected.code, 0) << expected.output;
    const Outcome failed = train(out, checks + frequency + fails);
    EXPECT_EQ(failed.code, 9) << failed.output;
    EXPECT_THAT(failed.output, HasSubstr("failed: a resume begins with it (data.val_files=[] leaves it out)"));
    const size_t num_steps = frequency == "2" ? 2 : 3;
    EXPECT_EQ(rows_of(task.path() / out / "metrics.jsonl").size(), num_steps);
    const Outcome again = train(out, checks + frequency + fails);  // it is still broken, and nothing is lost by trying
    EXPECT_EQ(again.code, 9) << again.output;
    EXPECT_EQ(rows_of(task.path() / out / "metrics.jsonl").size(), num_steps);
    std::filesystem::copy(task.path() / out, task.path() / ("without" + frequency),
                          std::filesystem::copy_options::recursive);

    const Outcome resumed = train(out, checks + frequency + corrected + " --allow-change");
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    expect_same_bits(bits_of_run(task.path() / out, 3), bits_of_run(task.path() / straight, 3), out);
    EXPECT_TRUE(rows_of(task.path() / out / "metrics.jsonl").back().contains("val-core/addition/reward/mean@1"));
    const Outcome finished = train(out, checks + frequency + corrected + " --allow-change");
    EXPECT_EQ(finished.code, 0) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("this run is finished: nothing to do"));

    const Outcome without = train("without" + frequency, fails);
    EXPECT_EQ(without.code, 0) << without.output;
    const std::vector<Json> rows = rows_of(task.path() / ("without" + frequency) / "metrics.jsonl");
    ASSERT_EQ(rows.size(), 3U);
    for (const Json& row : rows) EXPECT_FALSE(row.contains("val-core/addition/reward/mean@1")) << row;
    EXPECT_THAT(train("without" + frequency, fails).output, HasSubstr("this run is finished: nothing to do"));
  }
}

TEST(Workers, AValidationOfSftThatFailedIsMadeByAResume) {
  const TaskFolder task;
  use_fussy(task);
  const auto sft = [&](const std::string& out, const std::string& more) {
    const std::string args = with_faulty_pack("plugins.isolation=none data.train_files=data/sft.jsonl ") +
                             "data.max_response_length=8 sft.train_batch_size=4 sft.total_training_steps=2 "
                             "data.val_files=data/val.jsonl data.val_max_samples=4 trainer.default_local_dir=" +
                             out + " " + more;
    return task.mortise("sft" + args.substr(std::string("train").size()));
  };
  ASSERT_EQ(sft("straight", "reward.0.trains_only=false").code, 0);
  const Outcome failed = sft("out", "reward.0.trains_only=true");
  EXPECT_EQ(failed.code, 9) << failed.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
  const Outcome resumed = sft("out", "reward.0.trains_only=false --allow-change");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  expect_same_bits(bits_of_run(task.path() / "out", 2), bits_of_run(task.path() / "straight", 2), "resumed");
  EXPECT_TRUE(rows_of(task.path() / "out/metrics.jsonl").back().contains("val-core/addition/reward/mean@1"));
  EXPECT_THAT(sft("out", "reward.0.trains_only=false --allow-change").output, HasSubstr("this run is finished"));
}

TEST(Workers, AHangIsEnded) {
  const TaskFolder task;
  use_fussy(task);
  const Outcome outcome = task.mortise(
      with_faulty_pack("reward.0.hang_on='\"35\"' reward.0.row_timeout=100ms plugins.max_failed_fraction=1"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("took longer than row_timeout = 0.10 s"));
}

// A pack's `steps`: 1 for the row and a quarter of each id for its token.
TEST(Workers, TokensGetTheirRewardsWhereverTheFunctionRuns) {
  const TaskFolder inside, outside;
  const std::string settings =
      "train run.toml trainer.total_training_steps=1 algorithm.adv_estimator=reinforce_plus_plus "
      "trainer.rollout_data_dir=samples '~reward.0.pattern' reward.0.use=steps reward.0.weight=2 plugins.paths='[\"" +
      (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string() + "\"]' plugins.isolation=";
  const Outcome in = inside.mortise(settings + "none"),
                out = outside.mortise(settings + "process plugins.num_workers=2");
  ASSERT_EQ(in.code, 0) << in.output;
  ASSERT_EQ(out.code, 0) << out.output;
  EXPECT_EQ(hash_of(inside.path() / "out/global_step_1/huggingface/model.safetensors"),
            hash_of(outside.path() / "out/global_step_1/huggingface/model.safetensors"));
  const std::vector<Json> samples = rows_of(outside.path() / "samples/1.jsonl");
  ASSERT_EQ(samples.size(), 128U);
  for (const Json& sample : samples) {
    const auto ids = sample["token_ids"].get<std::vector<int64_t>>();
    const auto scores = sample["token_scores"].get<std::vector<double>>();
    ASSERT_EQ(scores.size(), ids.size());
    double sum = 0;
    for (size_t t = 0; t < ids.size(); ++t) {
      EXPECT_EQ(scores[t], 0.5 * static_cast<double>(ids[t]) + (t + 1 == ids.size() ? 2 : 0));
      sum += scores[t];
    }
    EXPECT_EQ(sample["score"].get<double>(), sum);
  }
}

// host->progress of a worker updates the terminal's line, and writes nothing without a terminal.
TEST(Workers, ProgressReachesTheTerminal) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "no `script` here to play the terminal";
  const TempDir dir;
  dir.write("rows.jsonl", R"({"prompt": "", "completion": "progress"})");
  const std::string eval = program() + " plugin eval reward faulty --inputs rows.jsonl --outputs scores.jsonl " +
                           "--plugin-path " + (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string();
  const Outcome terminal = run("TERM=xterm script -qec '" + eval + "' /dev/null", dir.path());
  ASSERT_EQ(terminal.code, 0) << terminal.output;
  EXPECT_THAT(terminal.output, HasSubstr("[faulty@test.faulty] 40%"));
  const Outcome plain = run(eval, dir.path());
  ASSERT_EQ(plain.code, 0) << plain.output;
  EXPECT_THAT(plain.output, testing::Not(HasSubstr("40%")));
}

// An evaluation stops at once, with its current rows: code 8, not the code of a failing reward.
TEST(Workers, AnInterruptedEvaluationStopsItsRewards) {
  const TaskFolder task;
  use_fussy(task);
  const std::string settings = "eval run.toml data.val_files=data/val.jsonl data.val_max_samples=4 plugins.paths='[\"" +
                               (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string() +
                               "\"]' reward.0.use=fussy reward.0.hangs=true reward.0.mark=hangs "
                               "reward.0.allow='[\"files\"]' reward.0.timeout=1h plugins.isolation=process";
  const Outcome outcome = run("{ " + program() + " " + settings +
                                  " & } ; eval=$!; until [ -e hangs ] || ! kill -0 $eval; do sleep 0.05; done; "
                                  "kill -TERM $eval; wait $eval",
                              task.path());
  EXPECT_EQ(outcome.code, 8) << outcome.output;
}

TEST(Workers, ARewardThatCannotBeMadeIsNamedByItsLine) {
  const TaskFolder task;
  use_fussy(task);
  for (const char* mode : {"process", "none"}) {
    const Outcome outcome = task.mortise(
        with_faulty_pack("reward.0.use=faulty reward.0.dies_in_create=2 plugins.isolation=" + std::string(mode)));
    EXPECT_EQ(outcome.code, 3) << outcome.output;  // NOT_FOUND: of the data that it asks for
    EXPECT_THAT(outcome.output, HasSubstr("run.toml:16:1, reward faulty@test.faulty"));
    EXPECT_THAT(outcome.output, HasSubstr("no such judge"));
  }
}

// 2,048 prompts and three rewards need as many descriptors as 16 prompts. The hard limit allows no more.
TEST(Workers, ScoreALargeBatchWithFewDescriptors) {
  const TaskFolder task;
  task.write("run.toml", default_env().read_file(task.path() / "run.toml").value() +
                             "[[reward]]\nuse = \"plain\"\n[[reward]]\nuse = \"faulty\"\n");
  const Outcome outcome =
      run("ulimit -S -n 256 && ulimit -H -n 256 && " + program() +
              " train run.toml trainer.total_training_steps=2 data.train_batch_size=2048 rollout.n=1 "
              "actor.ppo_mini_batch_size=2048 algorithm.adv_estimator=reinforce_plus_plus plugins.isolation=process "
              "plugins.num_workers=8 plugins.paths='[\"" +
              (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string() + "\"]'",
          task.path());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
}

// Deadlines are times of the monotonic clock: a wall clock that jumps by an hour at every look changes nothing.
TEST(Workers, KeepTheirDeadlinesWhileTheClockJumps) {
  if (kSanitized) GTEST_SKIP() << "sanitizers must be loaded first";
  const TaskFolder steady, jumping;
  const std::string settings =
      " train run.toml trainer.total_training_steps=3 plugins.isolation=process reward.0.timeout=10m "
      "reward.0.row_timeout=5m";
  const Outcome as_it_is = run(program() + settings, steady.path());
  const Outcome jumped = run("LD_PRELOAD=" MORTISE_JUMPING_CLOCK " " + program() + settings, jumping.path());
  ASSERT_EQ(as_it_is.code, 0) << as_it_is.output;
  ASSERT_EQ(jumped.code, 0) << jumped.output;
  EXPECT_EQ(jumped.output.find("failed on"), std::string::npos) << jumped.output;
  EXPECT_EQ(hash_of(steady.path() / "out/global_step_3/huggingface/model.safetensors"),
            hash_of(jumping.path() / "out/global_step_3/huggingface/model.safetensors"));
}

TEST(Workers, EndWithATrainerThatIsKilled) {
  const TaskFolder task;
  const Outcome outcome =
      run("{ " + program("mortise") +
              " train run.toml trainer.total_training_steps=100000 plugins.isolation=process & } ; "
              "trainer=$!; until [ -s out/metrics.jsonl ] || ! kill -0 $trainer; do sleep 0.05; done; "
              "server=$(cat /proc/$trainer/task/*/children); "
              "workers=$(cat /proc/$(echo $server)/task/*/children); kill -9 $trainer; "
              "for i in $(seq 3000); do left=; for p in $server $workers; do kill -0 $p 2>/dev/null "
              "&& ! grep -q 'State:.Z' /proc/$p/status && left=\"$left $p\"; done; "
              "[ -z \"$left\" ] && break; sleep 0.1; done; "
              "[ -z \"$left\" ] || echo LEFT $left; echo were $server $workers",
          task.path());
  EXPECT_EQ(outcome.output.find("LEFT"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("were \n"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace mortise::test
