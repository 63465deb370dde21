// Runs of a tiny task on several ranks of `mortise launch`, for tests of how these share their passes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "run_table.h"
#include "support/long_run.h"

namespace mortise::test {

inline constexpr int64_t kSteps = 3;

inline std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::string command_line(const TinyTask& task, int num_ranks, const std::string& command, const std::string& out,
                                const std::vector<std::string>& settings) {
  std::vector<std::string> words = task.words(command, out, settings);
  std::string line = "'" + words[0] + "'";
  if (num_ranks > 1) line += " launch --log-dir logs --nproc " + std::to_string(num_ranks);
  words.erase(words.begin());
  for (const std::string& word : words) line += " '" + word + "'";
  return line;
}

inline Outcome launch(const TinyTask& task, int num_ranks, const std::string& command, const std::string& out,
                      const std::vector<std::string>& settings) {
  return run(command_line(task, num_ranks, command, out, settings), task.path());
}

// Settings for so many steps. The schedule of the learning rate does not depend on their number.
inline std::vector<std::string> until(int64_t step, const std::vector<std::string>& settings) {
  return joined({"actor.optim.lr_scheduler_type=constant", "actor.optim.lr_warmup_steps=0",
                 "trainer.total_training_steps=" + std::to_string(step)},
                settings);
}

// How many ranks a run has and how they share its passes. `name` is the run's folder.
struct SharedRun {
  std::string name;
  int num_ranks = 1;
  std::vector<std::string> settings;
};

// A configuration, and the names of the meshes that are tested with it. MORTISE_LONG=1 tests it with all meshes of its test.
struct SharedCase {
  RunCase run;
  std::vector<std::string> meshes;
};

inline std::vector<SharedRun> chosen(const SharedCase& one, std::vector<SharedRun> all) {
  if (is_long()) return all;
  for (const std::string& name : one.meshes)
    EXPECT_EQ(std::ranges::count(all, name, &SharedRun::name), 1) << "no mesh is called " << name;
  std::erase_if(all, [&](const SharedRun& run) { return std::ranges::count(one.meshes, run.name) == 0; });
  return all;
}

// Runs of the case in float64 have the numbers of one process to rounding, however the ranks share the passes.
inline void expect_numbers_of_one_process(const RunCase& one, const std::vector<std::string>& alone_settings,
                                          const std::vector<SharedRun>& shared_runs) {
  const TinyTask task(one.model);
  const std::string section = one.command == std::string("sft") ? "sft" : "trainer";
  const std::vector<std::string> settings =
      joined({"model.dtype=float64", section + ".total_training_steps=" + std::to_string(kSteps)}, one.settings);
  const Outcome alone = launch(task, 1, one.command, "alone", joined(settings, alone_settings));
  ASSERT_EQ(alone.code, 0) << alone.output;
  for (const SharedRun& shared : shared_runs) {
    const Outcome outcome = launch(task, shared.num_ranks, one.command, shared.name, joined(settings, shared.settings));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    for (const char* file : {"metrics.jsonl", "updates.jsonl"})
      expect_near_rows(task.path() / shared.name, task.path() / "alone", file, 1e-11);
  }
}

// `mesh` makes groups of two ranks. Any number of groups gives the same bits, also across a resume. `file`: what huggingface/
// holds of the weights.
inline void expect_bits_of_one_group(const std::vector<std::string>& mesh,
                                     const std::string& file = "model.safetensors") {
  const TinyTask task;
  const std::vector<std::string> settings = joined({"trainer.deterministic=true"}, mesh);
  const Outcome straight = launch(task, 2, "train", "straight", until(kSteps, settings));
  ASSERT_EQ(straight.code, 0) << straight.output;
  for (const auto& [step, num_ranks] : std::vector<std::pair<int64_t, int>>{{1, 4}, {2, 2}, {kSteps, 4}}) {
    const Outcome part = launch(task, num_ranks, "train", "out", until(step, settings));
    ASSERT_EQ(part.code, 0) << part.output;
  }
  const auto updates = [&](const std::string& out) {
    return default_env().read_file(task.path() / out / "updates.jsonl").value();
  };
  EXPECT_EQ(updates("out"), updates("straight"));
  const std::string weights = "global_step_3/huggingface/" + file;
  ASSERT_TRUE(default_env().exists(task.path() / "straight" / weights));
  EXPECT_EQ(hash_of(task.path() / "out" / weights), hash_of(task.path() / "straight" / weights));
}

// The settings are an error that says `text` and `also`, before the run makes its folder.
inline void expect_refused(const TinyTask& task, int num_ranks, const std::vector<std::string>& settings,
                           const std::string& text, const std::string& also = "") {
  const Outcome outcome = launch(task, num_ranks, "train", "out", settings);
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr(text));
  EXPECT_THAT(outcome.output, testing::HasSubstr(also));
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
}

// What --dry-run says of a run on so many ranks.
inline std::string dry_run(const TinyTask& task, int num_ranks, const std::vector<std::string>& settings) {
  const Outcome outcome = run(command_line(task, num_ranks, "train", "out", settings) + " --dry-run", task.path());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return outcome.output;
}

// The same as numbers. Rank 0 says them without the others: a dry run waits for nobody.
inline Json dry_run_numbers(const TinyTask& task, int num_ranks, const std::vector<std::string>& settings) {
  const std::string place =
      "RANK=0 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=" + std::to_string(num_ranks) + " ";
  const Outcome outcome =
      run(place + command_line(task, 1, "train", "out", settings) + " --dry-run --json", task.path());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return parse_json(outcome.output.substr(outcome.output.find('{')), "dry run").value();
}

// Rank 2 of four ranks is killed after the first step. The run names it.
inline void expect_killed_rank_is_named(const std::vector<std::string>& mesh) {
  const TinyTask task;
  const Outcome outcome = run(command_line(task, 4, "train", "out", until(100000, mesh)) +
                                  " & p=$!; until [ -s out/metrics.jsonl ] || ! kill -0 $p; do sleep 0.05; done; "
                                  "set -- $(cat /proc/$p/task/$p/children); kill -9 $3; wait $p",
                              task.path());
  EXPECT_EQ(outcome.code, 7) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr("was killed or crashed in '"));
  EXPECT_THAT(outcome.output, testing::HasSubstr("rank 2 was killed by signal 9 (Killed)"));
}

}  // namespace mortise::test
