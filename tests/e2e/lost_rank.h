// A run of two ranks that loses one of them in a step: killed, or stopped (SIGSTOP). The other one names it and ends.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "foundation/base/clock.h"
#include "rank_group.h"
#include "support/long_run.h"

namespace mortise::test {

// How long the other ranks may take at most to end.
inline constexpr double kKilledLimit_s = 30, kStoppedLimit_s = 60;

// A run that does not end by itself. Its ranks start as users start them: a signal must reach the process itself.
class TwoRanks {
 public:
  explicit TwoRanks(std::vector<std::string> settings) {
    settings.insert(settings.end(), {"trainer.total_training_steps=100000", "actor.optim.lr_scheduler_type=constant",
                                     "actor.ppo_max_token_len_per_gpu=20", "trainer.save_freq=-1"});
    std::vector<std::string> words = task_.words("train", "out", settings);
    words[0] = program("mortise");
    group_.emplace(std::vector(size_t{2}, words), task_.path());
  }
  [[nodiscard]] Group& group() { return *group_; }
  Process& operator[](size_t rank) { return (*group_)[rank]; }

  // Until the first step is done. False if a rank has ended before.
  bool wait_for_a_step() {
    const Path rows = task_.path() / "out/metrics.jsonl";
    while (rows_of(rows).empty()) {
      if ((*this)[0].poll() || (*this)[1].poll()) return false;
      usleep(20'000);
    }
    return true;
  }
  [[nodiscard]] std::string log_of(size_t rank) const {
    const std::string name = rank == 0 ? "log.txt" : "rank_" + std::to_string(rank) + ".log";
    return default_env().read_file(task_.path() / "out" / name).value();
  }
  // As the messages of the other rank name it.
  [[nodiscard]] std::string name_of(size_t rank) {
    return "rank " + std::to_string(rank) + " (process " + std::to_string((*this)[rank].pid()) + " on ";
  }

 private:
  TinyTask task_;
  std::optional<Group> group_;
};

// `is_limited`: the other rank must also end in time, which a busy machine may delay.
inline void expect_lost_rank_is_named(size_t victim, int signal, const std::vector<std::string>& settings,
                                      bool is_limited) {
  TwoRanks ranks(settings);
  const size_t other = 1 - victim;
  ASSERT_TRUE(ranks.wait_for_a_step()) << ranks.group().text_of(0) << ranks.group().text_of(1);
  ranks[victim].signal(signal);
  const Stopwatch watch;
  EXPECT_EQ(ranks[other].wait(), 7);
  const double seconds = watch.elapsed_s();
  const std::string text = ranks.group().text_of(other);
  EXPECT_THAT(text, testing::HasSubstr(ranks.name_of(victim)));
  if (is_limited) EXPECT_LE(seconds, signal == SIGKILL ? kKilledLimit_s : kStoppedLimit_s);
  std::printf("rank %zu, signal %d: the other one ended after %.1f s\n", victim, signal, seconds);
  if (signal == SIGKILL) {
    EXPECT_EQ(ranks[victim].wait(), -SIGKILL);
    return;
  }
  EXPECT_THAT(text, testing::HasSubstr(" has not answered for "));
  EXPECT_THAT(ranks.log_of(other),
              testing::ContainsRegex("the threads of rank " + std::to_string(other) + " are here:\n[^\n]*thread "));
  ranks[victim].signal(SIGCONT);
  EXPECT_EQ(ranks[victim].wait(), 7) << "it learns that it was given up: " << ranks.group().text_of(victim);
}

// How long a rank may say nothing: the default only where all cases of a test are wanted.
inline std::vector<std::string> silence_of_tests() {
  return is_long() ? std::vector<std::string>{} : std::vector<std::string>{"ranks.answer_timeout=10s"};
}

}  // namespace mortise::test
