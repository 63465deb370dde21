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

// On a device a sample's pages are those of one sequence: the full pages of the prompt, which all have in common, and its own.
TEST(Scheduler, CountsThePagesOfADevice) {
  KvCache kv(kCacheShape, 7, PageMemory::kOnDevice);
  SchedulerOptions options = rows(100);
  options.joins_pages = true;
  Scheduler scheduler(kv, options);
  scheduler.add(request_of_length(1, 31, 2, 18));  // 48 tokens with a place: 1 page of the prompt, 2 for each sample
  scheduler.add(request_of_length(2, 31, 1, 2));   // 32 tokens: the same page of the prompt, and 1 of its own
  scheduler.add(request_of_length(3, 33, 1, 1));   // does not fit: another full page, and 1 of its own
  EXPECT_EQ(Scheduler::pages_for(request_of_length(1, 32, 1, 1), true), 2);
  EXPECT_EQ(Scheduler::pages_for(request_of_length(1, 32, 1, 2), true), 3);
  EXPECT_EQ(Scheduler::pages_for(request_of_length(1, 31, 1, 18), true), 3);
  scheduler.admit(0);
  ASSERT_EQ(scheduler.running().size(), 3U);
  EXPECT_EQ(kv.reserved_pages(), 1 + 2 + 2 + 1);
  std::vector<int32_t> numbers;
  for (const std::unique_ptr<RunningSample>& sample : scheduler.running()) {
    ASSERT_EQ(sample->group->pages.size(), 1U);
    EXPECT_EQ(KvCache::number_of(sample->group->pages[0]), 0);
    for (const float* const page : sample->pages) numbers.push_back(KvCache::number_of(page));
  }
  EXPECT_EQ(numbers, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  scheduler.abort(-1, 0);
  scheduler.forget_prompts();
  EXPECT_EQ(kv.reserved_pages(), 0);
  EXPECT_TRUE(kv.free_unused()) << "no page is out";
}

TEST(Scheduler, APageOfADeviceIsComputedUntilItIsGivenBackOrForgotten) {
  KvCache kv(kCacheShape, 4, PageMemory::kOnDevice);
  std::vector<float*> pages = {kv.take(), kv.take()};
  EXPECT_FALSE(kv.is_computed(pages[0]));
  kv.set_computed(pages[0]);
  kv.set_computed(pages[0]);
  EXPECT_TRUE(kv.is_computed(pages[0]) && !kv.is_computed(pages[1]));
  EXPECT_EQ(kv.num_computed(), 1);
  kv.forget_computed();
  EXPECT_FALSE(kv.is_computed(pages[0]));
  EXPECT_EQ(kv.num_computed(), 0);
  for (float* const page : pages) kv.set_computed(page);
  kv.give_back(pages);
  EXPECT_EQ(kv.num_computed(), 0);
  float* const again = kv.take();
  EXPECT_EQ(KvCache::number_of(again), 0);
  EXPECT_FALSE(kv.is_computed(again));
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
