// The loop of all clients: shared steps, pausing, new weights, failures.
#include "serve/serve_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "fake_model.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What one client hears.
class HeardSink final : public ServedSink {
 public:
  explicit HeardSink(uint64_t num_samples) : num_left_(num_samples) {}
  void progress(size_t, const ServedSequence&) override {}
  void finished(size_t, const ServedSequence& sequence) override {
    sequences.push_back(sequence);
    if (--num_left_ == 0) done_.set_value();
  }
  void failed(const Error& error) override {
    failure = error.to_string();
    done_.set_value();
  }
  [[nodiscard]] bool wants_progress() const override { return false; }
  void wait() { done_.get_future().wait(); }

  std::vector<ServedSequence> sequences;
  std::string failure;

 private:
  uint64_t num_left_;
  std::promise<void> done_;
};

class Loop : public testing::Test {
 protected:
  void TearDown() override { finish(); }
  void start() {
    thread_ = std::thread([this] { loop.run(); });
  }
  void finish() {
    loop.stop();
    if (thread_.joinable()) thread_.join();
  }
  static ServedRequest request(int64_t last_id, int64_t n, int64_t length) {
    ServedRequest out;
    out.prompt_ids = {last_id};
    out.num_samples = n;
    out.sampling.max_new_tokens = length;
    return out;
  }
  std::shared_ptr<HeardSink> ask(int64_t last_id, int64_t n, int64_t length) {
    auto sink = std::make_shared<HeardSink>(static_cast<uint64_t>(n));
    loop.submit({request(last_id, n, length)}, sink);
    return sink;
  }
  // The outcome of a control call: "" if it is good.
  template <class Call>
  static std::string outcome(const Call& call) {
    std::promise<std::string> told;
    call([&](const Result<>& done) { told.set_value(done.ok() ? "" : done.error().to_string()); });
    return told.get_future().get();
  }
  std::string pause(PauseMode mode) {
    return outcome([&](auto done) { loop.pause(mode, done); });
  }
  std::string resume() {
    return outcome([&](auto done) { loop.resume(done); });
  }
  std::string load(const std::string& folder) {
    return outcome([&](auto done) { loop.load_weights(folder, done); });
  }
  std::string name(int64_t version) {
    return outcome([&](auto done) { loop.set_version(version, done); });
  }

  FakeModel model;
  ServeLoop loop{model};
  std::thread thread_;
};

TEST_F(Loop, ClientsShareTheSteps) {
  std::vector<std::shared_ptr<HeardSink>> clients;
  for (int64_t i = 0; i < 5; ++i) clients.push_back(ask(10 * i, 2, 4));
  start();
  for (const auto& client : clients) client->wait();
  finish();
  EXPECT_EQ(model.most_at_once, 10U);
  EXPECT_EQ(model.num_steps, 4) << "a token of every sample in each";
  ASSERT_EQ(clients[3]->sequences.size(), 2U);
  EXPECT_THAT(clients[3]->sequences[1].ids, ElementsAre(31, 32, 33, 34));
  EXPECT_EQ(loop.stats().num_finished, 10U);
  EXPECT_EQ(loop.stats().num_tokens, 40U);
}

TEST_F(Loop, ABadRequestFailsAlone) {
  auto bad = std::make_shared<HeardSink>(1);
  ServedRequest empty = request(0, 1, 2);
  empty.prompt_ids.clear();
  loop.submit({request(5, 1, 2), empty}, bad);
  const auto good = ask(7, 1, 2);
  start();
  bad->wait();
  good->wait();
  EXPECT_THAT(bad->failure, HasSubstr("the prompt is empty"));
  EXPECT_TRUE(bad->sequences.empty());
  EXPECT_EQ(good->sequences.size(), 1U);
}

TEST_F(Loop, WeightsChangeOnlyBetweenCompletionsAndAreUnknownUntilNamed) {
  start();
  EXPECT_EQ(loop.stats().version, kUnknownVersion);
  EXPECT_EQ(pause(PauseMode::kWait), "");
  const auto held = ask(3, 1, 2);
  EXPECT_EQ(load("good"), "");
  EXPECT_EQ(name(9), "");
  EXPECT_TRUE(held->sequences.empty()) << "what comes while paused waits";
  EXPECT_EQ(resume(), "");
  held->wait();
  EXPECT_EQ(held->sequences[0].weight_version, 9);
  EXPECT_EQ(pause(PauseMode::kWait), "");
  EXPECT_EQ(load("good"), "");
  EXPECT_EQ(loop.stats().version, kUnknownVersion);
  EXPECT_EQ(resume(), "");
}

TEST_F(Loop, AFrozenCompletionKeepsNewWeightsOut) {
  loop.pause(PauseMode::kKeep, [](const Result<>&) {});
  loop.resume([](const Result<>&) {});
  const auto client = ask(3, 1, 1'000'000);
  loop.pause(PauseMode::kKeep, [](const Result<>&) {});
  start();
  EXPECT_THAT(load("good"), HasSubstr("1 completions are unfinished"));
  EXPECT_THAT(name(3), HasSubstr("pause with mode=wait or mode=abort"));
  EXPECT_EQ(pause(PauseMode::kAbort), "");
  client->wait();
  EXPECT_EQ(client->sequences[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(load("good"), "");
}

TEST_F(Loop, AfterAFailedLoadNothingIsSampledUntilAGoodOne) {
  start();
  EXPECT_EQ(pause(PauseMode::kWait), "");
  EXPECT_THAT(load("bad"), HasSubstr("a tensor is missing"));
  EXPECT_EQ(resume(), "");
  const auto refused = ask(3, 1, 2);
  refused->wait();
  EXPECT_THAT(refused->failure, HasSubstr("the last load of weights failed"));
  EXPECT_EQ(load("good"), "");
  const auto client = ask(3, 1, 2);
  client->wait();
  EXPECT_EQ(client->sequences.size(), 1U);
}

TEST_F(Loop, DivergedWeightsAreToldToEveryClient) {
  model.diverges = true;
  const auto first = ask(3, 1, 2), second = ask(4, 2, 2);
  start();
  first->wait();
  second->wait();
  EXPECT_THAT(first->failure, HasSubstr("not finite"));
  EXPECT_THAT(second->failure, HasSubstr("not finite"));
}

TEST_F(Loop, AClientThatLeavesFreesItsPlace) {
  auto gone = std::make_shared<HeardSink>(1);
  const int64_t job = loop.submit({request(3, 1, 1'000'000)}, gone);
  start();
  const auto other = ask(4, 1, 3);
  other->wait();
  loop.abort(job);
  EXPECT_EQ(pause(PauseMode::kWait), "") << "nothing is left to wait for";
  EXPECT_TRUE(gone->sequences.empty());
}

TEST_F(Loop, StoppingTellsWhoWaits) {
  start();
  EXPECT_EQ(pause(PauseMode::kWait), "");
  const auto held = ask(3, 1, 2);
  EXPECT_EQ(pause(PauseMode::kWait), "") << "posted behind the request";
  finish();
  held->wait();
  EXPECT_THAT(held->failure, HasSubstr("the server stops"));
}

}  // namespace
}  // namespace mortise::test
