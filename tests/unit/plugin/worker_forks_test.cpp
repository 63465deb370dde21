// Answers of workers belong to their requests: a child that a plugin forks and lets return, and code that writes to the
// connection, give no row the result of another one, and never end the run of a reward.
#include <sys/wait.h>

#include <cstdlib>
#include <deque>

#include "foundation/base/log.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/episode_runner.h"
#include "plugin/worker/isolated.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

const auto kIsExplained = AllOf(HasSubstr("its code forked and the child returned"), HasSubstr("file descriptor"),
                                HasSubstr("end a forked child with _exit(0)"));

TEST(ForkedChannel, AnswersRepeatTheNumberOfTheirRequest) {
  ASSERT_OK_AND_ASSIGN(auto ends, Channel::pair());
  for (const uint64_t number : {1, 2, 3}) {
    ASSERT_OK(ends.first.send(kPiece, "a"));
    ASSERT_OK_AND_ASSIGN(const auto asked, ends.second.receive(5000));
    EXPECT_EQ(asked->request, number);
    ASSERT_OK(ends.second.send(kRow, "b"));
    ASSERT_OK(ends.second.send(kDone, ""));
    for (int answer = 0; answer < 2; ++answer) {
      ASSERT_OK_AND_ASSIGN(const auto got, ends.first.receive(5000));
      EXPECT_EQ(got->request, number);
      EXPECT_EQ(got->process, ::getpid());
    }
  }
}

TEST(ForkedChannel, AForkCanNeitherReadNorWrite) {
  ASSERT_OK_AND_ASSIGN(auto ends, Channel::pair());
  ASSERT_OK(ends.first.send(kPiece, "for the parent"));
  const pid_t child = ::fork();
  if (child == 0) ::_exit((ends.second.receive(0).ok() ? 1 : 0) + (ends.second.send(kDone, "").ok() ? 2 : 0));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_OK_AND_ASSIGN(const auto asked, ends.second.receive(5000));
  EXPECT_EQ(asked->body, "for the parent");
}

class ForkedWorkers : public WorkerTest {
 protected:
  void SetUp() override {
    options_.bubblewrap = false;
    options_.limits.open_files = 64;
  }
  // The rewards without their random part, NaN as -1.
  std::vector<double> score(RewardFunction& reward, const std::vector<std::string>& texts) {
    const auto n = static_cast<int64_t>(texts.size());
    auto out = reward.score(request(n), rows_of(texts, rows_per_group_), nullptr);
    if (!out.ok()) {
      ADD_FAILURE() << out.error().to_string();
      return {};
    }
    failures_ = failures(*out);
    std::vector<double> rewards;
    for (const double one : out->rewards) rewards.push_back(std::isnan(one) ? -1 : std::floor(one));
    return rewards;
  }
  static std::vector<double> lengths(const std::vector<std::string>& texts) {
    std::vector<double> out;
    for (const std::string& text : texts) out.push_back(static_cast<double>(text.size()));
    return out;
  }

  std::map<int64_t, std::string> failures_;
  int64_t rows_per_group_ = 1;
};

TEST_F(ForkedWorkers, AForkThatReturnsChangesNoReward) {
  auto reward = make("faulty", 2);
  for (int batch = 1; batch < 8; ++batch) {
    std::vector<std::string> texts;
    for (int i = 0; i < 12; ++i) texts.emplace_back(static_cast<size_t>((i * 7 + batch) % 20), 'x');
    if (batch == 2) texts[3] = texts[9] = "fork";
    if (batch == 3) texts[5] = "late fork";
    EXPECT_EQ(score(*reward, texts), lengths(texts)) << batch;
    EXPECT_EQ(failures_.size(), 0U) << failures_.begin()->second;
    if (batch > 3) ::usleep(100'000);
  }
}

TEST_F(ForkedWorkers, AForkThatReturnsChangesNoGroupAndNoBatch) {
  rows_per_group_ = 3;
  for (const auto& [name, expected] : {std::pair("whole_group", 3.0), std::pair("whole_batch", 6.0)}) {
    SCOPED_TRACE(name);
    auto reward = make(name, 2);
    for (const char* what : {"a", "fork", "b", "late fork", "c", "d"}) {
      EXPECT_EQ(score(*reward, std::vector<std::string>(6, what)), std::vector<double>(6, expected)) << what;
      EXPECT_EQ(failures_.size(), 0U) << failures_.begin()->second;
    }
  }
}

// 31 is kRow, 32 kDone, 33 kState.
TEST_F(ForkedWorkers, WhatIsNoAnswerToTheRequestFailsItsRows) {
  for (const char* what : {"forge 32", "forge 31", "forge 33", "pose 32", "pose 33", "rubbish"}) {
    SCOPED_TRACE(what);
    auto reward = make("whole_batch", 1);
    EXPECT_EQ(score(*reward, {"a", "b"}), (std::vector<double>{2, 2}));
    EXPECT_EQ(score(*reward, {"a", what}), (std::vector<double>{-1, -1}));
    for (const auto& [row, text] : failures_) EXPECT_THAT(text, kIsExplained) << row;
    EXPECT_EQ(score(*reward, {"a", "b", "c"}), (std::vector<double>{3, 3, 3}));
  }
}

// Pieces of one row each.
TEST_F(ForkedWorkers, AForgedRowCostsItsPieceAlone) {
  auto reward = make("faulty", 1);
  EXPECT_EQ(score(*reward, {"a", "bb", "forge 32", "dddd"}), (std::vector<double>{1, 2, -1, 4}));
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_THAT(failures_.at(2), kIsExplained);
  EXPECT_EQ(score(*reward, {"ccc", "dd"}), (std::vector<double>{3, 2}));
}

// Without workers the child would be a second trainer.
TEST_F(ForkedWorkers, AForkInTheTrainersProcessEndsToo) {
  mode_ = Isolation::kNone;
  auto reward = make("faulty");
  const pid_t self = ::getpid();
  const std::vector<double> got = score(*reward, {"a", "fork", "ccc"});
  if (::getpid() != self) ::_exit(9);
  EXPECT_EQ(got, (std::vector<double>{1, 4, 3}));
  int status = 0;
  ASSERT_GT(::waitpid(-1, &status, 0), 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

// --- losses ----------------------------------------------------------------------------------------------------------

class ForkedLosses : public ForkedWorkers {
 protected:
  // The error of a call whose loss at token t is t + 1 times `advantage`; "" if there is none.
  static std::string call(PolicyLoss& loss, float advantage) {
    const std::vector<int64_t> offsets = {0, 2, 3}, row_id = {0, 1};
    const std::vector<float> advantages(3, advantage), log_prob = {-1, -2, -3}, ones(3, 1.0F);
    const std::vector<uint8_t> mask(3, 1);
    StepView in;
    in.layout = {offsets, row_id, row_id};
    in.step = in.update_index = 5;
    in.set<column::LogProb>(log_prob).set<column::OldLogProb>(log_prob).set<column::Advantages>(advantages);
    in.set<column::Weight>(ones).set<column::ResponseMask>(mask);
    std::vector<float> values(3), gradients(3);
    const auto done = loss.compute(in, {values, gradients, {}}, nullptr);
    if (!done.ok()) return done.error().to_string();
    for (size_t t = 0; t < 3; ++t) EXPECT_EQ(values[t], advantage * static_cast<float>(t + 1));
    return "";
  }
  Result<PolicyLoss> loss(const std::string& what, const Path& once = {}) {
    RunKey key;
    key.call_timeout_ms = 60'000;
    options_.mode = Isolation::kProcess;
    options_.limits.write_files = true;
    return PolicyLoss::create(packs_, "apart", ordered_json{{"what", what}, {"once", once.string()}}, key,
                              isolated(options_));
  }
  PluginRegistry packs_ = open_registry({"apart"});
  TempDir dir_;
};

TEST_F(ForkedLosses, AForkThatReturnsChangesNoLoss) {
  for (const char* what : {"fork", "late fork"}) {
    SCOPED_TRACE(what);
    ASSERT_OK_AND_ASSIGN(PolicyLoss made, loss(what, dir_.write("once", "")));
    for (int i = 1; i < 12; ++i) {
      EXPECT_EQ(call(made, static_cast<float>(i)), "");
      ::usleep(i > 8 ? 100'000 : 0);
    }
  }
}

TEST_F(ForkedLosses, AnAnswerToAnotherRequestIsAnErrorAfterASecondTry) {
  ASSERT_OK_AND_ASSIGN(PolicyLoss always, loss("forge 36"));  // kComputed
  EXPECT_THAT(call(always, 1), kIsExplained);
  ASSERT_OK_AND_ASSIGN(PolicyLoss once, loss("pose 36", dir_.write("once", "")));
  for (int i = 1; i < 5; ++i) EXPECT_EQ(call(once, static_cast<float>(i)), "");
}

// --- episodes --------------------------------------------------------------------------------------------------------

class ForkedEpisodes : public ForkedWorkers {
 protected:
  void start(PluginRegistry& registry, const std::string& name, const ordered_json& params, int num_workers) {
    options_.mode = Isolation::kProcess;
    options_.num_workers = num_workers;
    auto made = make_episode_runner(registry, name, params, RunKey{7, nullptr}, options_, /*timeout_ms=*/120'000);
    ASSERT_OK(made);
    runner_ = std::move(made).value();
  }
  // Begins an episode for each text and plays a turn with it: the rewards by episode. Failures go to failures_.
  std::vector<double> play(const std::vector<std::string>& texts) {
    std::vector<double> rewards(texts.size(), -1);
    failures_.clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      EpisodeStart start;
      start.episode = static_cast<int64_t>(++num_begun_);
      start.messages = "[]";
      start.columns = "{}";
      runner_->begin(start);
    }
    const int64_t first = num_begun_ - static_cast<int64_t>(texts.size()) + 1;
    std::set<int64_t> begun;
    const auto take = [&](const EpisodeAnswer& answer) {
      const auto place = static_cast<size_t>(answer.episode - first);
      if (!answer.failure.empty()) {
        failures_[static_cast<int64_t>(place)] = answer.failure;
      } else if (begun.insert(answer.episode).second) {
        EpisodeAction action;
        action.episode = answer.episode;
        action.text = texts.at(place);
        action.calls = "[]";
        pending_.push_back(action);
      } else {
        rewards.at(place) = answer.reward;
      }
    };
    while (!runner_->is_idle() || !pending_.empty()) {
      for (; !pending_.empty(); pending_.pop_front()) runner_->act(pending_.front());
      EXPECT_OK(runner_->advance(1000, take));
    }
    EXPECT_OK(runner_->close());
    return rewards;
  }

  std::unique_ptr<EpisodeRunner> runner_;
  std::deque<EpisodeAction> pending_;
  int64_t num_begun_ = 0;
};

TEST_F(ForkedEpisodes, AForkThatReturnsChangesNoAnswer) {
  start(registry_, "faulty_turns", ordered_json::object(), 2);
  for (int batch = 1; batch < 6; ++batch) {
    std::vector<std::string> texts;
    for (int i = 0; i < 8; ++i) texts.emplace_back(static_cast<size_t>(i + batch), 'x');
    if (batch == 2) texts[3] = "fork";
    if (batch == 3) texts[4] = "late fork";
    EXPECT_EQ(play(texts), lengths(texts)) << batch;
    EXPECT_EQ(failures_.size(), 0U) << failures_.begin()->second;
    if (batch > 3) ::usleep(200'000);
  }
}

TEST_F(ForkedEpisodes, AnAnswerThatIsNoneCostsTheEpisodesOfItsWorker) {
  start(registry_, "faulty_turns", ordered_json::object(), 1);
  for (const char* what : {"forge 60", "pose 60"}) {  // kAnswer
    SCOPED_TRACE(what);
    EXPECT_EQ(play({what}), (std::vector<double>{-1}));
    ASSERT_EQ(failures_.size(), 1U);
    EXPECT_THAT(failures_.begin()->second, kIsExplained);
    EXPECT_EQ(play({"a", "bb"}), (std::vector<double>{1, 2}));
  }
}

constexpr const char* kGame = R"(
import json, os, struct
class Game:
    def reset(self, **row):
        return "go"
    def step(self, text):
        if text == "fork":
            os.fork()
        if text == "forge":
            body = b'{"done": true, "reward": 77}'
            for fd in range(3, 64):
                try:
                    os.write(fd, struct.pack("<QQQ", len(body), 2, os.getpid()) + body)
                except OSError:
                    pass
        return "more", float(len(text)), True
)";

TEST_F(ForkedEpisodes, AForkInAPythonGameChangesNoAnswerAndAForgedOneIsSeen) {
  if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no python3 of 3.8 or newer in PATH: the environment `python` was not tested in workers";
  TempDir dir;
  RegistryOptions packs = only({});
  packs.builtin_dir = Path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
  ASSERT_OK_AND_ASSIGN(PluginRegistry registry, PluginRegistry::open(packs));
  options_.limits.start_programs = true;
  const std::string game = dir.write("game.py", kGame).string() + ":Game";
  start(registry, "python", {{"class", game}, {"start_limit", 100}}, 1);
  for (const char* text : {"a", "fork", "ccc", "dddd"}) {
    const std::vector<std::string> texts = {text, "12345", "1234567"};
    EXPECT_EQ(play(texts), lengths(texts));
    EXPECT_EQ(failures_.size(), 0U) << failures_.begin()->second;
  }
  EXPECT_EQ(play({"forge"}), (std::vector<double>{-1}));
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_THAT(failures_.begin()->second,
              AllOf(HasSubstr("its code forked and the child returned"), HasSubstr("os._exit(0)")));
  EXPECT_EQ(play({"a"}), (std::vector<double>{1}));
}

}  // namespace
}  // namespace mortise::test
