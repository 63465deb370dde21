// Pages that prompts share: who may use which, which remain, and which are freed.
#include "generate/schedule/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "generate/schedule/scheduler.h"

namespace mortise {
namespace {

constexpr KvShape kShape{1, 1, 16};

std::vector<int64_t> ids(int64_t size, int64_t first = 0) {
  std::vector<int64_t> out(static_cast<size_t>(size));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Takes the pages that a prompt needs and puts its blocks into the tree. Returns their end and the known part.
struct Held {
  PrefixCache::Node* end;
  std::vector<float*> pages;
  size_t num_known;
};
Held hold(PrefixCache& cache, KvCache& kv, const std::vector<int64_t>& prompt) {
  Held held{nullptr, {}, 0};
  PrefixCache::Node* const known = cache.acquire(prompt, held.pages);
  held.num_known = held.pages.size();
  const auto blocks = static_cast<size_t>(PrefixCache::num_blocks(prompt));
  EXPECT_TRUE(kv.reserve(static_cast<int64_t>(blocks - held.num_known)));
  while (held.pages.size() < blocks) held.pages.push_back(kv.take());
  held.end = cache.insert(prompt, known, std::span(held.pages).subspan(held.num_known));
  return held;
}

TEST(PrefixCache, TheLastIdIsNeverShared) {
  EXPECT_EQ(PrefixCache::num_blocks(ids(0)), 0);
  EXPECT_EQ(PrefixCache::num_blocks(ids(16)), 0);
  EXPECT_EQ(PrefixCache::num_blocks(ids(17)), 1);
  EXPECT_EQ(PrefixCache::num_blocks(ids(33)), 2);
}

TEST(PrefixCache, PromptsThatBeginAlikeShareWholePages) {
  KvCache kv(kShape, 100);
  PrefixCache cache(kv, 100);
  const Held first = hold(cache, kv, ids(50));
  EXPECT_EQ(first.num_known, 0U);
  std::vector<int64_t> other = ids(50);
  other[20] = 999;  // in the second block
  const Held second = hold(cache, kv, other);
  EXPECT_EQ(second.num_known, 1U);
  EXPECT_EQ(second.pages[0], first.pages[0]);
  EXPECT_NE(second.pages[1], first.pages[1]);
  const Held third = hold(cache, kv, ids(70));
  EXPECT_EQ(third.num_known, 3U);
  EXPECT_EQ(hold(cache, kv, ids(50, 1)).num_known, 0U);  // the same ids at other places
  EXPECT_EQ(cache.num_pages(), 3 + 2 + 1 + 3);
  EXPECT_EQ(kv.reserved_pages(), cache.num_pages());
}

TEST(PrefixCache, UnusedPagesStayUpToTheLimitOldestFirst) {
  KvCache kv(kShape, 100);
  PrefixCache cache(kv, 4);
  cache.release(hold(cache, kv, ids(50)).end);
  EXPECT_EQ(cache.num_unused_pages(), 3);
  cache.release(hold(cache, kv, ids(33, 500)).end);
  EXPECT_EQ(cache.num_unused_pages(), 4);  // the end of the first prompt went
  EXPECT_EQ(kv.reserved_pages(), 4);
  std::vector<float*> pages;
  PrefixCache::Node* const end = cache.acquire(ids(50), pages);
  EXPECT_EQ(pages.size(), 2U);
  EXPECT_EQ(cache.num_unused_pages(), 2);
  cache.make_room(100);
  EXPECT_EQ(kv.reserved_pages(), 2);  // pages in use remain
  cache.release(end);
  cache.clear();
  EXPECT_EQ(kv.reserved_pages(), 0);
  EXPECT_TRUE(kv.free_unused());
}

GenerateRequest request(int64_t id, std::vector<int64_t> prompt) {
  GenerateRequest out;
  out.request_id = id;
  out.prompt_ids = std::move(prompt);
  out.sampling.max_new_tokens = 2;
  return out;
}

TEST(PrefixCache, TheSchedulerReservesSharedPagesOnce) {
  KvCache kv(kShape, 100);
  SchedulerOptions options;
  options.max_unused_prefix_pages = 100;
  Scheduler scheduler(kv, options);
  for (int64_t i = 0; i < 5; ++i) scheduler.add(request(i, ids(40)));
  scheduler.admit(0);
  ASSERT_EQ(scheduler.running().size(), 5U);
  EXPECT_EQ(kv.reserved_pages(), 2 + 5 * (1 + 1));  // shared, and of each the prompt's end and its own
  EXPECT_EQ(scheduler.num_prefilled_tokens(), 40U + 4 * 8);
  for (int i = 0; i < 2; ++i) scheduler.accept(std::vector<SampledToken>(5, SampledToken{9, -1.0F, -1.0F}));
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(kv.reserved_pages(), 2);
  scheduler.add(request(9, ids(40)));
  scheduler.admit(0);
  EXPECT_EQ(scheduler.num_prefilled_tokens(), 40U + 5 * 8);
  scheduler.abort(-1, 0);
  scheduler.forget_prompts();
  EXPECT_EQ(kv.reserved_pages(), 0);
  EXPECT_TRUE(kv.free_unused());
}

TEST(PrefixCache, UnusedPagesMakeRoomForRequests) {
  KvCache kv(kShape, 5);
  SchedulerOptions options;
  options.max_unused_prefix_pages = 100;
  Scheduler scheduler(kv, options);
  for (int64_t i = 0; i < 6; ++i) {
    scheduler.add(request(i, ids(40, 100 * i)));
    scheduler.admit(0);
    ASSERT_EQ(scheduler.running().size(), 1U) << i;
    for (int t = 0; t < 2; ++t) scheduler.accept({{SampledToken{9, -1.0F, -1.0F}}});
    EXPECT_LE(kv.reserved_pages(), 5);
  }
}

}  // namespace
}  // namespace mortise
