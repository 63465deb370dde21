// What a watch says of a rank whose process ended between two of its looks into the store.
#include "dist/watch/rank_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"
#include "foundation/metrics/rank_progress.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

// A process that does nothing, as another rank.
class Peer {
 public:
  Peer() : pid_(fork()) {
    if (pid_ == 0) {
      pause();
      _exit(0);
    }
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { end(); }
  [[nodiscard]] RankProcess process(int size = 2) const { return describe_process(pid_, size); }
  void end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

struct StoreFaults {
  std::atomic<bool> is_silent = false;  // it keeps its readers waiting, as one does whose process is stopped
  std::atomic<bool> is_lost = false;    // its process is no more
};

class FaultyStore : public C10dStore {
 public:
  FaultyStore(const C10dStore& store, std::shared_ptr<StoreFaults> faults)
      : C10dStore(store.handle()), faults_(std::move(faults)) {}
  Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys) override {
    faults_->is_silent.wait(true);
    if (faults_->is_lost) return Error{ErrorKind::kRankFailure, "a connection has closed", "store", {}};
    return C10dStore::get_all(keys);
  }

 private:
  std::shared_ptr<StoreFaults> faults_;  // a watch may leave its thread behind
};

// This process is rank 0 of two. `peer` is rank 1.
class RankWatches : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
    RankState start;
    start.stage = "start";
    for (int rank = 0; rank < options.size; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(start)).ok());
    options.processes.resize(static_cast<size_t>(options.size), this_process(options.size));
    options.processes[1] = peer.process(options.size);
    options.beat = beat;
    if (!options.end_process)
      options.end_process = [fails = fails](const Error& error) {
        if (fails) ADD_FAILURE() << error.to_string();
      };
    options.limits = limits;
    watch = std::make_unique<RankWatch>(std::make_unique<FaultyStore>(*store, faults), options);
    if (fails) watch->fail({});  // returns when it has talked to the store
  }

  bool fails = true;
  WatchLimits limits;
  std::chrono::milliseconds beat = std::chrono::hours(1);  // it looks into the store only when it has a reason
  Peer peer;
  std::unique_ptr<C10dStore> store = memory_store();
  std::shared_ptr<StoreFaults> faults = std::make_shared<StoreFaults>();
  WatchOptions options = [] {
    WatchOptions of_two;
    of_two.size = 2;
    of_two.store_rank = -1;
    return of_two;
  }();
  std::unique_ptr<RankWatch> watch;
};

TEST_F(RankWatches, NameTheErrorThatARankWroteJustBeforeItsEnd) {
  RankState last;
  last.status = RankStatus::kFailed;
  last.stage = "start";
  last.error = "data.jsonl:7: row 7 has no prompt";
  ASSERT_TRUE(store->set(state_key(1), encode(last)).ok());
  peer.end();
  const Error error = watch->explain_failure("gradients", "a connection has closed");
  EXPECT_EQ(error.kind, ErrorKind::kRankFailure);
  EXPECT_NE(error.what.find(" ended in 'start' with an error: data.jsonl:7: row 7 has no prompt"), std::string::npos)
      << error.what;
}

TEST_F(RankWatches, NameARankThatEndedWithoutAnErrorAsKilled) {
  peer.end();
  const Error error = watch->explain_failure("gradients", "a connection has closed");
  EXPECT_NE(error.what.find(" was killed or crashed in 'start'"), std::string::npos) << error.what;
}

// How often the threads of this process but the first one have gone to sleep.
int64_t num_sleeps_of_others() {
  int64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == std::to_string(getpid())) continue;
    std::ifstream status(thread.path() / "status");
    for (std::string name; status >> name;) {
      if (name != "voluntary_ctxt_switches:") continue;
      int64_t count = 0;
      status >> count;
      sum += count;
    }
  }
  return sum;
}

// A run of a small model has thousands of calls a second.
TEST_F(RankWatches, DoNotWakeTheirThreadsWhenACallEnds) {
  constexpr int kCalls = 200;
  const int64_t before = num_sleeps_of_others();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    const auto call = watch->new_completion();
    call->finish();
    EXPECT_TRUE(watch->wait(call, "gradients", {0, 1, 2}).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // time for a thread that was woken to sleep again
  }
  // They also wake by themselves, at most ten times a second each. A busy machine may join wakes, but adds none.
  const auto by_themselves = 20 + 40 * ((std::chrono::steady_clock::now() - start) / std::chrono::seconds(1));
  EXPECT_LT(num_sleeps_of_others() - before - by_themselves, kCalls);
}

class RankWatchesOfASilentStore : public RankWatches {
 protected:
  RankWatchesOfASilentStore() { limits.dead_s = 2.5; }
};

// The other rank's limit was reached first: it ended, and the store cannot tell why.
TEST_F(RankWatchesOfASilentStore, BlameItAndNoRankThatEndedMeanwhile) {
  faults->is_silent = true;
  peer.end();
  const Error error = watch->explain_failure("gradients", "a connection has closed");
  EXPECT_NE(error.what.find("the store of the group at "), std::string::npos) << error.what;
  EXPECT_NE(error.what.find(" has not answered for "), std::string::npos) << error.what;
  faults->is_silent = false;
  faults->is_silent.notify_all();
}

// This process is rank 2 of three, and rank 0 serves the store. Rank 1 is done, but this rank has not read that.
class RankWatchesOfALostRank : public RankWatches {
 protected:
  RankWatchesOfALostRank() {
    fails = false;
    options.rank = 2;
    options.size = 3;
    options.store_rank = 0;
    options.processes = {server.process(3)};
  }
  void rank_1_ends_well() {
    RankState last;
    last.stage = "end";
    last.status = RankStatus::kGone;
    ASSERT_TRUE(store->set(state_key(1), encode(last)).ok());
    peer.end();
  }
  Peer server;
};

// The connections of a killed process may close before its end shows.
TEST_F(RankWatchesOfALostRank, BlameItAndNoRankWhoseLastStateTheyMissed) {
  faults->is_lost = true;
  rank_1_ends_well();
  const Result<> end = watch->leave();
  ASSERT_FALSE(end.ok());
  EXPECT_NE(end.error().what.find("rank 0 (process "), std::string::npos) << end.error().what;
  EXPECT_NE(end.error().what.find(") has closed its connections: it was last in 'start'"), std::string::npos)
      << end.error().what;
  EXPECT_NE(end.error().what.find("; this rank (2) was in 'end'"), std::string::npos) << end.error().what;
}

TEST_F(RankWatchesOfALostRank, SayThatItWasKilledIfItsProcessIsNoMore) {
  faults->is_lost = true;
  rank_1_ends_well();
  server.end();
  const Result<> end = watch->leave();
  ASSERT_FALSE(end.ok());
  EXPECT_NE(end.error().what.find("rank 0 (process "), std::string::npos) << end.error().what;
  EXPECT_NE(end.error().what.find(") was killed or crashed in 'start'"), std::string::npos) << end.error().what;
}

TEST_F(RankWatchesOfALostRank, BlameNobodyWhileTheStoreTellsThatARankIsDone) {
  rank_1_ends_well();
  RankState last;
  last.stage = "end";
  last.status = RankStatus::kLeft;
  ASSERT_TRUE(store->set(state_key(0), encode(last)).ok());
  EXPECT_TRUE(watch->leave().ok());
}

// This process is rank 0 and serves the store. Rank 1 has to read there why the run ends.
class RankWatchesThatServe : public RankWatches {
 protected:
  RankWatchesThatServe() {
    fails = false;
    beat = std::chrono::milliseconds(20);
    limits.wait_s = 0.2;
    limits.answer_s = limits.dead_s = 1800;
    options.store_rank = 0;
    options.end_grace = std::chrono::milliseconds(1);
    options.end_process = [this](const Error& /*error*/) {
      was_read_before_end = was_read.load();
      has_ended = true;
    };
  }
  std::atomic<bool> was_read = false, was_read_before_end = false, has_ended = false;
};

TEST_F(RankWatchesThatServe, EndNotBeforeTheOthersHaveReadWhy) {
  const std::shared_ptr<Completion> never = watch->new_completion();
  const Result<> end = watch->wait(never, "gradients");
  ASSERT_FALSE(end.ok());
  EXPECT_NE(end.error().what.find("is still in 'start'"), std::string::npos) << end.error().what;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // time for a watch that does not wait
  was_read = true;
  RankState stopped;
  stopped.status = RankStatus::kStopped;
  ASSERT_TRUE(store->set(state_key(1), encode(stopped)).ok());
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  while (!has_ended && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(has_ended);
  EXPECT_TRUE(was_read_before_end);
  watch.reset();
}

// One thread waits for a rank that never comes, while another one waits again and again for a moment.
class RankWatchesOfTwoThreads : public RankWatches {
 protected:
  RankWatchesOfTwoThreads() {
    fails = false;
    limits.wait_s = 0.5;
  }
};

TEST_F(RankWatchesOfTwoThreads, NameTheRankThatOneOfThemWaitsFor) {
  watch->enter("updates", 3);
  const std::shared_ptr<Completion> never = watch->new_completion();
  std::atomic<bool> has_ended = false;
  Result<> end;
  std::thread sampler([&] {
    end = watch->wait(never, "completions");
    has_ended = true;
  });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  while (!has_ended && std::chrono::steady_clock::now() < give_up) {
    const std::shared_ptr<Completion> done = watch->new_completion();
    done->finish();
    static_cast<void>(watch->wait(done, "gradients"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(has_ended);
  never->finish();
  sampler.join();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().kind, ErrorKind::kRankFailure);
  EXPECT_NE(end.error().what.find("is still in 'start'"), std::string::npos) << end.error().what;
  EXPECT_NE(end.error().what.find("was in 'completions'"), std::string::npos) << end.error().what;
}

// A rank that hangs is in the logs long before the others give it up.
class RankWatchesThatNotice : public RankWatches {
 protected:
  RankWatchesThatNotice() {
    fails = false;
    limits.notice_s = 0.2;
    limits.answer_s = 1800;  // rank 1 is silent
    beat = std::chrono::milliseconds(20);
  }
  // Waits until the log file has `text`.
  [[nodiscard]] std::string logged(const std::string& text) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    std::string all;
    while (all.find(text) == std::string::npos && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      log_flush();
      all = dir.read("log.txt");
    }
    return all;
  }
  void SetUp() override {
    RankWatches::SetUp();
    ASSERT_TRUE(log_init({.file = dir / "log.txt"}).ok());
  }
  void TearDown() override { ASSERT_TRUE(log_init({}).ok()); }
  test::TempDir dir;
};

TEST_F(RankWatchesThatNotice, SayForWhomTheyWait) {
  watch->enter("updates", 3);
  const std::shared_ptr<Completion> call = watch->new_completion();
  Result<> end = Error{};
  std::thread waiter([&] { end = watch->wait(call, "gradients"); });
  const std::string peer_text = "rank 1 (process " + std::to_string(peer.process().pid);
  const std::string log = logged("is still in 'start'");
  call->finish();
  waiter.join();
  EXPECT_NE(log.find(" s in 'gradients': " + peer_text), std::string::npos) << log;
  EXPECT_NE(log.find(" warning this rank (0) has waited "), std::string::npos) << log;
  EXPECT_TRUE(end.ok()) << "a notice ends nothing";
}

// The main rank's view has the rank that is behind. A rank in another step says nothing about this one.
TEST_F(RankWatchesThatNotice, TellTheViewHowFarTheOthersAre) {
  const auto heard = [&](int64_t step, const std::string& progress, const auto& is_heard) {
    RankState other;
    other.step = step;
    other.progress = progress;
    EXPECT_TRUE(store->set(state_key(1), encode(other)).ok());
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    while (std::chrono::steady_clock::now() < give_up) {
      const auto slowest = slowest_rank("sampling", 8, 8);
      if (slowest && is_heard(*slowest)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  };
  note_step();
  note_stage("sampling", 3, 8);
  watch->enter("rollout", 3);
  EXPECT_TRUE(heard(3, "sampling=2/6", [](const SlowRank& one) { return one.rank == 1 && one.done == 2; }));
  EXPECT_TRUE(heard(2, "sampling=1/6", [](const SlowRank& one) { return one.rank == 0 && one.done == 8; }));
  const auto written = store->get_all({state_key(0)});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(decode_rank_state(written->front())->progress, "sampling=3/8");
}

// A stop signal that one rank got stops the sampling and scoring of all.
TEST_F(RankWatchesThatNotice, FollowAStopSignalOfAnotherRank) {
  RankState other;
  EXPECT_FALSE(stop_requested());
  other.stop_signal = SIGTERM;
  ASSERT_TRUE(store->set(state_key(1), encode(other)).ok());
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  const auto is_told = [&] {
    const auto written = store->get_all({state_key(0)});
    return written.ok() && decode_rank_state(written->front())->stop_signal == SIGTERM;
  };
  while (!is_told() && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(is_told()) << "the others hear of it from every rank";
  EXPECT_EQ(stop_signal(), SIGTERM);
  EXPECT_TRUE(stop_flag());
  watch.reset();
  set_stop_signal(0);
  EXPECT_FALSE(stop_requested());
}

// Both ranks are in the same collective: no rank is late, but a message is lost.
TEST_F(RankWatchesThatNotice, SayThatAllRanksWait) {
  RankState waiting;
  waiting.calls = 1;
  waiting.step = 3;
  waiting.waits = true;
  waiting.stage = "gradients";
  ASSERT_TRUE(store->set(state_key(1), encode(waiting)).ok());
  watch->enter("updates", 3);
  ASSERT_TRUE(watch->begin_call("gradients", /*is_collective=*/true).ok());
  const std::shared_ptr<Completion> call = watch->new_completion();
  Result<> end = Error{};
  std::thread waiter([&] { end = watch->wait(call, "gradients"); });
  const std::string log = logged("thread " + std::to_string(getpid()));
  call->finish();
  waiter.join();
  const std::string peer_text = "rank 1 (process " + std::to_string(peer.process().pid);
  EXPECT_NE(log.find(" s in 'gradients', and so have all others: " + peer_text), std::string::npos) << log;
  EXPECT_NE(log.find("; a message may be lost, and the log file has the stacks"), std::string::npos) << log;
  EXPECT_TRUE(end.ok()) << "a notice ends nothing";
}

// Rank 1 waits in a call of all ranks, and this one for a message of rank 1.
TEST_F(RankWatchesThatNotice, SayThatRanksWaitInDifferentCalls) {
  RankState waiting;
  waiting.step = 3;
  waiting.waits = true;
  waiting.stage = "gradients";
  ASSERT_TRUE(store->set(state_key(1), encode(waiting)).ok());
  watch->enter("updates", 3);
  ASSERT_TRUE(watch->begin_call("tensor parallel", /*is_collective=*/false).ok());
  const std::shared_ptr<Completion> call = watch->new_completion();
  Result<> end = Error{};
  std::thread waiter([&] { end = watch->wait(call, "tensor parallel", {1, 1, 1}); });
  const std::string log = logged("thread " + std::to_string(getpid()));
  call->finish();
  waiter.join();
  const std::string peer_text = "rank 1 (process " + std::to_string(peer.process().pid);
  EXPECT_NE(log.find(" s in 'tensor parallel', and ranks wait for each other in different calls: " + peer_text),
            std::string::npos)
      << log;
  EXPECT_NE(log.find(" in 'gradients' for all ranks; the log file has the stacks"), std::string::npos) << log;
  EXPECT_TRUE(end.ok()) << "a notice ends nothing";
}

TEST_F(RankWatchesThatNotice, SayWhereTheirThreadsAreIfOthersWaitForThem) {
  watch->enter("rollout", 4);
  RankState waiting;
  waiting.calls = 1;
  waiting.waits = true;
  waiting.stage = "completions";
  ASSERT_TRUE(store->set(state_key(1), encode(waiting)).ok());
  const std::string log = logged("thread " + std::to_string(getpid()));
  EXPECT_NE(log.find("s for this rank (0), which is in 'rollout' of step 4; the log file has the stacks"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("(main):\n"), std::string::npos) << log;
}

}  // namespace
}  // namespace mortise
