// Admission, leaving, budgets and back-pressure, without a model.
#include "generate/schedule/scheduler.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

constexpr KvShape kCacheShape{1, 1, 16};

GenerateRequest request_of_length(int64_t id, int64_t prompt, int64_t samples, int64_t max_new) {
  GenerateRequest out;
  out.request_id = id;
  out.prompt_ids.assign(static_cast<size_t>(prompt), 1);
  out.num_samples = samples;
  out.sampling.max_new_tokens = max_new;
  return out;
}

SchedulerOptions rows(int64_t max_num_seqs) {
  SchedulerOptions options;
  options.max_num_seqs = max_num_seqs;
  return options;
}

std::vector<SampledToken> tokens(size_t count) {
  return std::vector<SampledToken>(count, SampledToken{9, -1.0F, -1.0F});
}

TEST(Scheduler, AdmitsInOrderUpToTheRows) {
  KvCache kv(kCacheShape, 1000);
  Scheduler scheduler(kv, rows(3));
  scheduler.add(request_of_length(1, 4, 2, 2));
  scheduler.add(request_of_length(2, 4, 3, 1));
  scheduler.admit(0);
  ASSERT_EQ(scheduler.running().size(), 3U);
  EXPECT_EQ(scheduler.running()[2]->sequence.request_id, 2);
  EXPECT_EQ(scheduler.num_waiting_requests(), 1);
  scheduler.accept(tokens(3));  // the sample of request 2 has all it may have
  EXPECT_EQ(scheduler.running().size(), 2U);
  EXPECT_EQ(scheduler.outstanding(), 5U);
  scheduler.admit(0);
  ASSERT_EQ(scheduler.running().size(), 3U);
  EXPECT_EQ(scheduler.running()[2]->sequence.sample_index, 1);
  scheduler.accept(tokens(3));
  scheduler.admit(0);
  scheduler.accept(tokens(scheduler.running().size()));
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.finished().size(), 5U);
  EXPECT_EQ(kv.reserved_pages(), 0);
}

TEST(Scheduler, ReservesForTheLongestCompletion) {
  KvCache kv(kCacheShape, 5);
  Scheduler scheduler(kv, rows(100));
  scheduler.add(
      request_of_length(1, 17, 3, 17));  // 2 pages of prompt, 1 for each sample: the last token needs no place
  scheduler.add(request_of_length(2, 1, 1, 1));
  scheduler.admit(0);
  EXPECT_EQ(scheduler.running().size(), 3U);
  EXPECT_EQ(kv.reserved_pages(), 5);
  for (int i = 0; i < 17; ++i) scheduler.accept(tokens(3));
  EXPECT_EQ(kv.reserved_pages(), 0);
  scheduler.admit(0);
  EXPECT_EQ(scheduler.running().size(), 1U);
}

TEST(Scheduler, PagesComeBack) {
  KvCache kv(kCacheShape, 8);
  std::vector<float*> pages = {kv.take(), kv.take()};
  EXPECT_NE(pages[0], pages[1]);
  EXPECT_GT(kv.allocated_bytes(), 0);
  EXPECT_FALSE(kv.free_unused());
  kv.give_back(pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_TRUE(kv.free_unused());
  EXPECT_EQ(kv.allocated_bytes(), 0);
}

TEST(Scheduler, AbortOfWaitingOnesGivesEmptySequences) {
  KvCache kv(kCacheShape, 100);
  Scheduler scheduler(kv, rows(1));
  scheduler.add(request_of_length(1, 4, 2, 9));
  scheduler.admit(5);
  scheduler.accept(tokens(1));
  scheduler.abort(1, 6);
  ASSERT_EQ(scheduler.finished().size(), 2U);
  EXPECT_EQ(scheduler.finished()[0].ids.size(), 1U);
  EXPECT_EQ(scheduler.finished()[0].weight_version, 5);
  EXPECT_EQ(scheduler.finished()[1].ids.size(), 0U);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(kv.reserved_pages(), 0);
}

}  // namespace
}  // namespace mortise
