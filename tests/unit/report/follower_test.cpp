// A page gets every row of a run that trains once, wherever the stream breaks.
#include "report/run_follower.h"

#include <gmock/gmock.h>

#include <numeric>

#include "support/forwarding_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FollowedRun {
  FollowedRun() {
    dir.write("metrics.jsonl", "");
    dir.write("log.txt", "");
  }
  void append(const char* file, const std::string& text) const {
    dir.write(file, default_env().read_file(dir.path() / file).value() + text);
  }
  void step(int64_t step) const { append("metrics.jsonl", dump_json(Json{{"step", step}, {"reward", 0.5}}) + "\n"); }
  void warn(const std::string& text) const {
    append("log.txt", "2026-01-01T00:00:00.000+00:00 warning " + text + "\n");
  }
  [[nodiscard]] std::string page_place() const {
    const RunHistory run = read_run_history(default_env(), dir.path()).value();
    return place_of({&run});
  }
  [[nodiscard]] RunFollower follow(const std::string& place) {
    return RunFollower(default_env(), {dir.path()}, place, findings);
  }
  test::TempDir dir;
  FindingsCache findings;
};

// The steps of all rows, and the last place.
std::vector<int64_t> steps_in(const std::vector<RunNews>& news, std::string* place = nullptr) {
  std::vector<int64_t> steps;
  for (const RunNews& one : news) {
    if (place != nullptr && !one.place.empty()) *place = one.place;
    if (one.name != "metrics") continue;
    for (const Json& row : one.data["rows"]) steps.push_back(row["step"]);
  }
  return steps;
}

// The texts of all events of the log; a continuation begins with "+".
std::vector<std::string> texts_in(const std::vector<RunNews>& news, std::string* place = nullptr) {
  std::vector<std::string> texts;
  for (const RunNews& one : news) {
    if (place != nullptr && !one.place.empty()) *place = one.place;
    if (one.name != "log") continue;
    if (const std::string more = one.data["continues"]; !more.empty()) texts.push_back("+" + more);
    for (const Json& event : one.data["events"]) texts.push_back(event["text"]);
  }
  return texts;
}

std::vector<std::string> names_in(const std::vector<RunNews>& news) {
  std::vector<std::string> names;
  for (const RunNews& one : news) names.push_back(one.name);
  return names;
}

TEST(FileTail, ALongLineComesAloneAndMarksItsEnd) {
  const test::TempDir dir;
  const std::string line(5 * FileTail::kMostBytes, 'x');
  dir.write("log.txt", "short\n" + line + "\nlast\nhalf a li");
  FileTail tail(default_env(), dir.path() / "log.txt");
  EXPECT_THAT(tail.read().value(), ElementsAre("short"));
  EXPECT_EQ(tail.read().value(), std::vector<std::string>{line});
  FileTail again(default_env(), dir.path() / "log.txt", tail.place());
  for (FileTail* one : {&tail, &again}) EXPECT_THAT(one->read().value(), ElementsAre("last"));
  EXPECT_THAT(tail.read().value(), IsEmpty());
  dir.write("log.txt", "short\n" + line + "\nLast\nhalf a line\n");
  EXPECT_FALSE(tail.read()) << "the line before the place is another one";
}

TEST(RunFollower, APageGetsWhatCameSinceItWasMade) {
  FollowedRun run;
  run.step(1);
  run.warn("before");
  const std::string made = run.page_place();
  run.step(2);
  run.warn("since");
  RunFollower follower = run.follow(made);
  const std::vector<RunNews> news = follower.read();
  EXPECT_THAT(steps_in(news), ElementsAre(2));
  EXPECT_THAT(texts_in(news), ElementsAre("since"));
  EXPECT_THAT(follower.read(), IsEmpty());
  run.step(3);
  EXPECT_THAT(steps_in(follower.read()), ElementsAre(3));
}

// The stream breaks behind every single event, and the page tells the last id that it got.
TEST(RunFollower, NothingIsLostOrDoubledWhenTheStreamBreaks) {
  FollowedRun run;
  std::string place = run.page_place();
  std::vector<int64_t> steps;
  std::vector<std::string> texts;
  for (int64_t step = 1; step <= 20; ++step) {
    run.step(step);
    if (step % 3 == 0) run.warn("step " + std::to_string(step));
    if (step % 4 == 0) continue;  // several rows at once
    for (bool is_done = false; !is_done;) {
      RunFollower follower = run.follow(place);
      const std::vector<RunNews> news = follower.read();
      is_done = true;
      for (const RunNews& one : news) {
        if (one.place.empty()) continue;
        for (const int64_t got : steps_in({one}, &place)) steps.push_back(got);
        for (const std::string& got : texts_in({one}, &place)) texts.push_back(got);
        is_done = false;
        break;  // here the connection ends
      }
    }
  }
  std::vector<int64_t> expected(19);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(steps, expected) << "step 20 is not read";
  EXPECT_THAT(texts, ElementsAre("step 3", "step 6", "step 9", "step 12", "step 15", "step 18"));
}

TEST(RunFollower, ALineIsToldWhenItIsWhole) {
  FollowedRun run;
  RunFollower follower = run.follow(run.page_place());
  run.append("metrics.jsonl", R"({"step": 1, "rew)");
  EXPECT_THAT(steps_in(follower.read()), IsEmpty());
  run.append("metrics.jsonl", "ard\": 0.5}\n");
  EXPECT_THAT(steps_in(follower.read()), ElementsAre(1));
}

TEST(RunFollower, DamagedLinesAreCounted) {
  FollowedRun run;
  RunFollower follower = run.follow(run.page_place());
  run.append("metrics.jsonl", "{\"step\": 1}\nzeros\n\n[1]\n{\"reward\": 1}\n{\"step\": 2}\n");
  const std::vector<RunNews> news = follower.read();
  EXPECT_THAT(steps_in(news), ElementsAre(1, 2));
  EXPECT_EQ(news.at(0).data["num_damaged"], 3);
}

TEST(RunFollower, AnEventMayContinueOnTheNextLine) {
  FollowedRun run;
  std::string place = run.page_place();
  run.warn("the disk is");
  EXPECT_THAT(texts_in(run.follow(place).read(), &place), ElementsAre("the disk is"));
  run.append("log.txt", "nearly full\n");
  EXPECT_THAT(texts_in(run.follow(place).read(), &place), ElementsAre("+\nnearly full"));
}

TEST(RunFollower, AFileThatIsReplacedMakesThePageNew) {
  FollowedRun run;
  for (int64_t step = 1; step <= 5; ++step) run.step(step);
  const std::string place = run.page_place();
  RunFollower follower = run.follow(place);
  follower.read();
  run.dir.write("metrics.jsonl", "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"reward\":0.5}\n");  // a resume goes back
  EXPECT_THAT(names_in(follower.read()), ElementsAre("reset"));
  EXPECT_THAT(follower.read(), IsEmpty());
  EXPECT_THAT(names_in(run.follow(place).read()), ElementsAre("reset"));
  for (int64_t step = 3; step <= 9; ++step)
    run.append("metrics.jsonl", R"({"step":)" + std::to_string(step) + ",\"reward\":0.7}\n");
  EXPECT_THAT(names_in(run.follow(place).read()), ElementsAre("reset")) << "it is longer again, with other rows";
  for (const char* wrong : {"", "x", "1.2.3", "0..0..0~0..0..0"})
    EXPECT_THAT(names_in(run.follow(wrong).read()), ElementsAre("reset")) << wrong;
}

TEST(RunFollower, TellsStatusFindingsAndStepsWhenTheyChange) {
  FollowedRun run;
  run.dir.write("config.resolved.toml", "[rollout]\nn = 4\n[trainer]\nrollout_data_dir = \"dump\"\n");
  run.append("metrics.jsonl", "{\"step\": 1, \"frac_reward_zero_std\": 0.9}\n");
  run.dir.write("live.json", R"({"state": "running", "step": 2, "total_steps": 9, "time_ns": 0, "headline": "step 1/9",
                                 "stages": [], "rewards": []})");
  run.dir.write("dump/1.jsonl", "{}\n");
  RunFollower follower = run.follow(run.page_place());
  const std::vector<RunNews> news = follower.read();
  EXPECT_THAT(names_in(news), ElementsAre("status", "findings", "steps"));
  EXPECT_EQ(news[0].data["step"], 2);
  EXPECT_GT(news[0].data["age_s"], 1e9);
  EXPECT_EQ(news[1].data["findings"][0]["rule"], "zero_variance");
  EXPECT_EQ(news[2].data["steps"], Json::array({{{"step", 1}}}));
  EXPECT_THAT(follower.read(), IsEmpty());
  run.dir.write("dump/2.jsonl", "{}\n");
  EXPECT_THAT(names_in(follower.read()), ElementsAre("steps"));
}

class LaterEnv final : public test::ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  int64_t monotonic_ns() override { return ForwardingEnv::monotonic_ns() + later_ns; }
  int64_t later_ns = 0;
};

// A run that fails adds no row any more.
TEST(RunFollower, TellsThatTheRunFailed) {
  FollowedRun run;
  run.step(1);
  const auto is_in_state = [&](const std::string& state) {
    run.dir.write("live.json", R"({"state": ")" + state + R"(", "step": 2, "total_steps": 9, "time_ns": 0,
                                   "headline": "step 1/9", "stages": [], "rewards": []})");
  };
  is_in_state("running");
  LaterEnv env(default_env());
  RunFollower follower(env, {run.dir.path()}, run.page_place(), run.findings);
  EXPECT_THAT(names_in(follower.read()), ElementsAre("status", "findings"));
  is_in_state("failed");
  env.later_ns = 10'000'000'000;  // findings are not made for every look
  const std::vector<RunNews> news = follower.read();
  ASSERT_THAT(names_in(news), ElementsAre("status", "findings"));
  EXPECT_EQ(news[1].data["findings"][0]["rule"], "failed_run");
}

}  // namespace
}  // namespace mortise
