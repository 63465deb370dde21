// The mark of a run: the same for its ranks, and another for each other run, whatever their launcher.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "version_names.h"

namespace mortise {
namespace {

using Variables = std::map<std::string, std::string>;

std::int64_t mark(const Variables& variables) {
  return make_run_mark([&](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::string() : it->second;
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// By chance: two in a row may be equal once in 900000 times, four never are.
bool is_by_chance(const Variables& variables) {
  const std::int64_t first = mark(variables);
  return mark(variables) != first || mark(variables) != first || mark(variables) != first;
}

TEST(RunMark, OneProcessDrawsIt) {
  EXPECT_TRUE(is_by_chance({}));
  EXPECT_TRUE(is_by_chance({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}));
  const std::int64_t drawn = mark({});
  EXPECT_GE(drawn, 100'000);
  EXPECT_LT(drawn, 1'000'000);
}

// Two runs that a batch script starts in the background share all of these variables.
TEST(RunMark, ABatchScriptOfSlurmIsNoRank) {
  const Variables script = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_TRUE(is_by_chance(script));
  EXPECT_FALSE(is_by_chance(with(script, {{"SLURM_STEP_ID", "0"}})));
}

TEST(RunMark, RanksOfSlurm) {
  const Variables rank = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NPROCS", "2"}};
  EXPECT_EQ(mark(rank), mark(with(rank, {{"SLURM_PROCID", "1"}, {"MASTER_ADDR", "node1"}})));
  EXPECT_NE(mark(rank), mark(with(rank, {{"SLURM_STEP_ID", "1"}})));
  EXPECT_NE(mark(rank), mark(with(rank, {{"SLURM_JOB_ID", "8"}})));
}

TEST(RunMark, RanksOfTorchrun) {
  const Variables rank = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(mark(rank), mark(with(rank, {{"RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}})));
  EXPECT_NE(mark(rank), mark(with(rank, {{"MASTER_PORT", "2"}})));
  EXPECT_NE(mark(rank), mark(with(rank, {{"MASTER_ADDR", "b"}})));
  // With a job's name the spelling of the address does not count.
  const Variables named = with(rank, {{"TORCHELASTIC_RUN_ID", "run1"}});
  EXPECT_EQ(mark(named), mark(with(named, {{"MASTER_ADDR", "localhost"}})));
  EXPECT_NE(mark(named), mark(with(named, {{"TORCHELASTIC_RUN_ID", "run2"}})));
}

TEST(RunMark, RanksThatShareNothingHaveNone) { EXPECT_EQ(mark({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), 0); }

}  // namespace
}  // namespace mortise
