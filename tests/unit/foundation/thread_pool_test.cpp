// The pool under load; this program also runs under ThreadSanitizer.
#include "foundation/base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>

namespace mortise {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  std::atomic<int> count{0};
  {
    ThreadPool pool(4, 8);  // a short queue, so submit() waits now and then
    for (int i = 0; i < 2000; ++i) pool.submit([&] { ++count; });
    pool.wait_idle();
    EXPECT_EQ(count, 2000);
    for (int i = 0; i < 100; ++i) pool.submit([&] { ++count; });
  }
  EXPECT_EQ(count, 2100);  // the destructor ran what was queued
}

TEST(ThreadPool, TrySubmitTellsWhenTheQueueIsFull) {
  ThreadPool pool(1, 1);
  std::mutex gate;
  std::atomic<bool> started{false};
  gate.lock();
  pool.submit([&] {
    started = true;
    const std::lock_guard lock(gate);
  });
  while (!started) std::this_thread::yield();
  std::atomic<bool> ran{false};
  EXPECT_TRUE(pool.try_submit([&] { ran = true; }));
  EXPECT_FALSE(pool.try_submit([] {}));
  gate.unlock();
  pool.wait_idle();
  EXPECT_TRUE(ran);
}

TEST(ThreadPool, SubmitInsideATaskNeverWaitsForItself) {
  ThreadPool pool(2, 1);
  std::atomic<int> count{0};
  for (int i = 0; i < 20; ++i) {
    pool.submit([&] {
      for (int j = 0; j < 10; ++j) pool.submit([&] { ++count; });
    });
  }
  pool.wait_idle();
  EXPECT_EQ(count, 200);
}

TEST(ParallelFor, CoversTheRangeInFixedPieces) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (const int64_t grain : {1, 3, 7, 1000}) {
      std::vector<int> seen(101);
      std::mutex mutex;
      std::set<std::pair<int64_t, int64_t>> pieces;
      pool.parallel_for(-1, 100, grain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) ++seen[static_cast<size_t>(i + 1)];
        const std::lock_guard lock(mutex);
        pieces.insert({first, last});
      });
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 101);
      for (const int count : seen) ASSERT_EQ(count, 1);
      for (const auto& [first, last] : pieces) {
        EXPECT_EQ((first + 1) % grain, 0);
        EXPECT_EQ(last, std::min<int64_t>(first + grain, 100));
      }
    }
    pool.parallel_for(5, 5, 1, [](int64_t, int64_t) { FAIL() << "an empty range has no pieces"; });
  }
}

TEST(ParallelFor, NestsAndRunsFromManyThreads) {
  ThreadPool pool(3, 4);
  std::atomic<int64_t> sum{0};
  const auto job = [&] {
    pool.parallel_for(0, 20, 1, [&](int64_t first, int64_t) {
      pool.parallel_for(0, 10, 2, [&](int64_t a, int64_t b) { sum += (b - a) * (first + 1); });
    });
  };
  std::thread one(job), two(job);
  job();
  one.join();
  two.join();
  EXPECT_EQ(sum, 3 * 10 * 210);
}

}  // namespace
}  // namespace mortise
