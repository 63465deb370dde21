// Calling an environment: each episode gets exactly one answer, whatever the plugin gives.
#include "plugin/host/kinds/environment.h"

#include "test_packs.h"

namespace mortise {
namespace {

using testing::HasSubstr;

class EnvironmentTest : public testing::Test {
 protected:
  // The answers to turns with these texts, in one call.
  std::vector<EpisodeAnswer> act(std::initializer_list<const char*> texts) {
    auto environment = Environment::create(registry_, "answers", nlohmann::ordered_json::object(), {});
    EXPECT_OK(environment);
    if (!environment.ok()) return {};
    std::vector<EpisodeAction> actions;
    for (const char* text : texts) {
      EpisodeAction& action = actions.emplace_back();
      action.episode = 10 + static_cast<int64_t>(actions.size());
      action.text = text;
    }
    return environment->act(actions, {});
  }
  PluginRegistry registry_ = test::open_registry({"rude"});
};

TEST_F(EnvironmentTest, AnEpisodeFailsAloneAndSaysWhy) {
  const auto answers = act({"well", "twice", "silent", "fail", "infinite", "well"});
  ASSERT_EQ(answers.size(), 6U);
  for (const size_t i : {size_t{0}, size_t{5}}) {
    EXPECT_EQ(answers[i].failure, "") << i;
    EXPECT_EQ(answers[i].reward, 0.5) << i;
  }
  EXPECT_THAT(answers[1].failure, HasSubstr("gave two observations for the episode"));
  EXPECT_THAT(answers[2].failure, HasSubstr("gave no observation for the episode"));
  EXPECT_EQ(answers[3].failure, "as told");
  EXPECT_THAT(answers[4].failure, HasSubstr("a reward that is not finite"));
}

TEST_F(EnvironmentTest, AnObservationOfAnotherEpisodeFailsTheCall) {
  for (const EpisodeAnswer& answer : act({"well", "another"}))
    EXPECT_EQ(answer.failure, "gave an observation for episode 4711, which is not of this call");
}

}  // namespace
}  // namespace mortise
