// Tasks of the trainer's kernels: each runs once, whoever calls and from where, and libraries stay on a task's thread.
#include "model/tensor/compute_team.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace mortise {
namespace {

class ComputeTeam : public testing::Test {
 protected:
  ComputeTeam() { at::set_num_threads(3); }
  ~ComputeTeam() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

std::vector<int> counts_of(int64_t count, int64_t grain) {
  std::vector<int> counts(static_cast<size_t>(count));
  compute_ranges(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
  });
  return counts;
}

TEST_F(ComputeTeam, RangesCoverEverythingOnce) {
  for (const int64_t count : {0, 1, 7, 100, 1001}) {
    for (const int64_t grain : {1, 10, 5000})
      EXPECT_EQ(counts_of(count, grain), std::vector<int>(static_cast<size_t>(count), 1));
  }
}

TEST_F(ComputeTeam, TasksComputeAlone) {
  std::atomic<int> wrong{0};
  compute_tasks(50, [&](int member, int64_t) {
    if (member < 0 || member > 2 || at::get_num_threads() != 1) ++wrong;
    const auto thread = std::this_thread::get_id();
    compute_tasks(20, [&](int inner, int64_t) { wrong += inner != 0 || std::this_thread::get_id() != thread ? 1 : 0; });
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(at::get_num_threads(), 3);
}

TEST_F(ComputeTeam, LibtorchAloneLeavesTheTasksTheirThreads) {
  for (const bool is_on : {false, true}) {
    const LibtorchAlone outer(is_on);
    const LibtorchAlone inner(is_on);
    EXPECT_EQ(at::get_num_threads(), is_on ? 1 : 3);
    EXPECT_EQ(compute_threads(), 3);
    // The tasks wait for each other, so they run on three threads.
    std::atomic<int> started{0}, wrong{0};
    compute_tasks(3, [&](int, int64_t) {
      ++started;
      while (started < 3) std::this_thread::yield();
      wrong += compute_threads() != 1 || at::get_num_threads() != 1 ? 1 : 0;
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(compute_threads(), 3);
  }
  EXPECT_EQ(at::get_num_threads(), 3);
}

TEST_F(ComputeTeam, WorksOnAfterATaskThatThrows) {
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(compute_tasks(20,
                               [&](int, int64_t i) {
                                 if (i == round % 20) throw std::runtime_error("a task");
                               }),
                 std::runtime_error);
    EXPECT_EQ(at::get_num_threads(), 3);
    ASSERT_EQ(counts_of(100, 1), std::vector<int>(100, 1));
  }
}

// Whether two tasks of a call run at the same time: each waits until the other has begun.
bool two_run_at_once() {
  std::atomic<int> begun{0};
  std::atomic<bool> met{false};
  compute_tasks(2, [&](int, int64_t) {
    ++begun;
    for (int ms = 0; ms < 300'000 && begun < 2 && !met; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (begun == 2) met = true;
  });
  return met;
}

// Also while another thread has the team: then libtorch's threads share the tasks.
TEST_F(ComputeTeam, ThreadsShareTheTasks) {
  EXPECT_TRUE(two_run_at_once());
  std::atomic<bool> has_team{false}, others_are_done{false};
  std::thread first([&] {
    compute_tasks(2, [&](int, int64_t) {
      has_team = true;
      while (!others_are_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  while (!has_team) std::this_thread::yield();
  EXPECT_TRUE(two_run_at_once());
  {
    const LibtorchAlone alone(true);
    EXPECT_TRUE(two_run_at_once());
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_EQ(compute_threads(), 3);
  }
  others_are_done = true;
  first.join();
}

TEST_F(ComputeTeam, SeveralThreadsMayCall) {
  std::atomic<int> wrong{0};
  const auto call = [&] {
    wrong += at::get_num_threads() == 3 ? 0 : 1;
    for (int round = 0; round < 200; ++round) wrong += counts_of(50, 1) == std::vector<int>(50, 1) ? 0 : 1;
  };
  std::thread first(call), second(call);
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace mortise
