// Dynamic sampling: which groups stay, which wait for the next step, and when it stops.
#include "experience/selection/group_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "scored_groups.h"

namespace mortise {
namespace {

TEST(Experience, BytesHoldAllOfIt) {
  const Experience one = groups_of({{0, 1}, {kNaN, 1}}, 5);
  const std::string bytes = encode_experience(one);
  const Result<Experience> again = decode_experience(bytes, "here");
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(encode_experience(*again), bytes);
  EXPECT_EQ(again->prompts.prompts[1].text, one.prompts.prompts[1].text);
  EXPECT_EQ(again->prompts.prompts[1].columns, one.prompts.prompts[1].columns);
  EXPECT_EQ(again->samples.rows[3].log_prob, one.samples.rows[3].log_prob);
  EXPECT_EQ(again->samples.rows[3].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(std::isnan(again->scored.rewards[2]));
  EXPECT_EQ(again->scored.columns[0].extra, one.scored.columns[0].extra);
  for (size_t length = 0; length < bytes.size(); length += 7)
    EXPECT_FALSE(decode_experience(std::string_view(bytes).substr(0, length), "here").ok()) << length;
}

TEST(Experience, DeeplyNestedGroupsAreRefused) {
  const auto deep = decode_experience(std::string(3'000'000, '\x81'), "here");
  ASSERT_FALSE(deep.ok());
  EXPECT_THAT(deep.error().to_string(), testing::HasSubstr("nested deeper than 128 levels"));
}

TEST(Experience, GroupsAreNumberedAnewWhenTakenAndJoined) {
  Experience all = take_groups(groups_of({{0, 1}, {2, 3}, {4, 5}}), std::vector<int64_t>{2, 0});
  Experience more = groups_of({{6, 7}}, 10);
  more.scored.columns[0].extra = {{"other", {1.0, 2.0}}};
  more.scored.token_scores = {{1, 2, 3}, {}};
  more.scored.columns[0].num_failed = 1;
  more.scored.columns[0].errors = {"", "crash\xff"};
  append_groups(all, more);
  const std::vector<std::string> errors = {"", "", "", "", "", "crash\xff"};
  EXPECT_EQ(all.scored.columns[0].errors, errors);
  EXPECT_EQ(decode_experience(encode_experience(all), "here")->scored.columns[0].errors, errors);
  EXPECT_EQ(take_groups(all, std::vector<int64_t>{2}).scored.columns[0].errors, more.scored.columns[0].errors);
  const std::vector<std::vector<double>> token_scores = {{}, {}, {}, {}, {1, 2, 3}, {}};
  EXPECT_EQ(all.scored.token_scores, token_scores);
  EXPECT_EQ(decode_experience(encode_experience(all), "here")->scored.token_scores, token_scores);
  const Experience last = take_groups(all, std::vector<int64_t>{2});
  EXPECT_EQ(last.scored.token_scores, more.scored.token_scores);
  EXPECT_EQ(rows_in(all), (std::vector<int64_t>{2, 0, 10}));
  EXPECT_EQ(all.scored.rewards, (std::vector<double>{4, 5, 0, 1, 6, 7}));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(all.samples.rows[i].prompt_index, static_cast<int64_t>(i / 2));
  const auto& extra = all.scored.columns[0].extra;
  EXPECT_EQ(extra.at("length")[0], 5.0);
  EXPECT_TRUE(std::isnan(extra.at("length")[4]));
  EXPECT_TRUE(std::isnan(extra.at("other")[3]));
  EXPECT_EQ(extra.at("other")[5], 2.0);
}

TEST(GroupFilter, KeepsWhatDiffersAndCarriesTheRestOver) {
  GroupFilter filter({true, "seq_reward", 0, {}, {}}, 2);
  MetricSet metrics;
  filter.begin_step(1);
  ASSERT_TRUE(filter.add(groups_of({{1, 1}, {0, 1}, {kNaN, 1}})).ok());
  EXPECT_FALSE(filter.is_full());
  ASSERT_TRUE(filter.add(groups_of({{1, 0}, {0.5, 0.25}, {2, 2}}, 10)).ok());
  ASSERT_TRUE(filter.is_full());
  EXPECT_EQ(filter.sampled_rows(), (std::vector<int64_t>{2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(rows_in(filter.take(metrics)), (std::vector<int64_t>{1, 10}));
  EXPECT_EQ(metrics.value("train/num_gen_batches"), 2.0);
  EXPECT_EQ(metrics.value("training/filter_groups/dropped"), 3.0);
  EXPECT_EQ(metrics.value("training/filter_groups/carried"), 1.0);

  filter.begin_step(1);  // the step failed, so nothing of it remains
  EXPECT_FALSE(filter.is_full());
  ASSERT_TRUE(filter.add(groups_of({{1, 0}, {0, 1}, {0, 2}}, 20)).ok());
  filter.take(metrics);
  filter.commit();

  StateSnapshot snapshot;
  StateWriter writer(filter.state_name(), &snapshot);
  ASSERT_TRUE(filter.save_state(writer).ok());
  GroupFilter other({true, "seq_reward", 0, {}, {}}, 2);
  StateReader reader(other.state_name(), &snapshot, "test");
  ASSERT_TRUE(other.load_state(reader).ok());
  for (GroupFilter* each : {&filter, &other}) {
    each->begin_step(2);
    ASSERT_TRUE(each->add(groups_of({{3, 4}}, 30)).ok());
    ASSERT_TRUE(each->is_full());
    EXPECT_EQ(each->sampled_rows(), (std::vector<int64_t>{-1, -1, 0, 1}));
    const Experience taken = each->take(metrics);
    EXPECT_EQ(rows_in(taken), (std::vector<int64_t>{22, 30}));
    EXPECT_EQ(taken.prompts.step, 2);
    EXPECT_EQ(taken.scored.rewards, (std::vector<double>{0, 2, 3, 4}));
  }
}

TEST(GroupFilter, TheMetricMayBeAnyNumberOfAReward) {
  const Experience batch = groups_of({{1, 1}, {0, 1}});
  for (const auto& [metric, kept] : {std::pair{"right", 1}, std::pair{"length", 2}, std::pair{"score", 1}}) {
    GroupFilter filter({true, metric, 0, {}, {}}, 1);
    MetricSet metrics;
    filter.begin_step(1);
    ASSERT_TRUE(filter.add(batch).ok());
    filter.take(metrics);
    EXPECT_EQ(metrics.value("training/filter_groups/carried"), kept - 1) << metric;
  }
  GroupFilter filter({true, "acc", 0, {}, {}}, 1);
  filter.begin_step(3);
  const auto refused = filter.add(batch);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(
      refused.error().to_string(),
      "step 3: 'algorithm.filter_groups.metric' is 'acc', which no reward gives; use one of: seq_reward, right, length");
}

TEST(GroupFilter, GivesUpWhereTheDataCannotGiveEnough) {
  GroupFilter limited({true, "seq_reward", 2, {}, {}}, 2);
  limited.begin_step(1);
  ASSERT_TRUE(limited.add(groups_of({{0, 1}})).ok());
  EXPECT_TRUE(limited.check_more(4).ok());
  ASSERT_TRUE(limited.add(groups_of({{0, 0}})).ok());
  const auto stopped = limited.check_more(4);
  ASSERT_FALSE(stopped.ok());
  EXPECT_NE(stopped.error().what.find("only 1 of the 2 groups"), std::string::npos) << stopped.error().what;
  EXPECT_NE(stopped.error().next.find("max_num_gen_batches"), std::string::npos);

  GroupFilter once({true, "seq_reward", 1, {}, {}}, 2);
  once.begin_step(1);
  ASSERT_TRUE(once.add(groups_of({{0, 0}})).ok());
  EXPECT_NE(once.check_more(4).error().what.find("after 1 generation batch "), std::string::npos);

  GroupFilter endless({true, "seq_reward", 0, {}, {}}, 2);
  endless.begin_step(1);
  for (const bool last : {false, false, true}) {
    ASSERT_TRUE(endless.add(groups_of({{0, 0}, {1, 1}})).ok());
    EXPECT_EQ(endless.check_more(6).ok(), !last);
  }
}

// The bounds are open: with 0 and 1, groups of rewards that are all right or all wrong lie outside.
TEST(GroupFilter, GroupsOutsideTheRangeOfMeansAreDropped) {
  FilterGroupsConfig config;
  config.enable = true;
  config.min_mean = 0.5;
  config.max_mean = 2.0;
  GroupFilter filter(config, 2);
  filter.begin_step(1);
  ASSERT_TRUE(filter.add(groups_of({{0, 1}, {0, 2}, {1, 3}, {1, 1}, {0.5, 0.75}, {kNaN, 1}})).ok());
  EXPECT_TRUE(filter.is_full());
  MetricSet metrics;
  EXPECT_THAT(rows_in(filter.take(metrics)), testing::ElementsAre(1, 4));
  config.max_mean.reset();
  GroupFilter open(config, 3);
  open.begin_step(1);
  ASSERT_TRUE(open.add(groups_of({{0, 1}, {0, 2}, {1, 3}, {0.5, 0.75}})).ok());
  EXPECT_THAT(rows_in(open.take(metrics)), testing::ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace mortise
