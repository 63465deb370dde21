// Real workers, and system calls that fail: each call for a resource, one after the other, in the trainer and in the
// fork server. Whatever fails, the rows get their own scores, or NaN with a reason, or the call is an error that says
// what to do; nothing hangs, and no descriptor is left open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "plugin/worker/reward_pool.h"
#include "support/faulty_system.h"
#include "support/this_build.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class WorkerInjection : public WorkerTest {
 protected:
  // `faults` are those of the fork server and of its workers.
  Result<std::unique_ptr<RewardFunction>> start(const std::string& name, WorkerSystem& system,
                                                const std::vector<Fault>& faults = {}, int num_workers = 2) {
    PoolOptions options;
    options.num_workers = num_workers;
    options.system = &system;
    options.program = dir_ / "worker";
    if (!std::filesystem::exists(options.program))
      std::filesystem::create_symlink(Path(MORTISE_BINARY_DIR) / "tests/faulty_worker", options.program);
    std::ofstream file(options.program.string() + ".faults");
    for (const Fault& fault : faults)
      file << fault.call << ' ' << fault.first << ' ' << fault.code << ' ' << fault.times << '\n';
    file.close();
    const PluginRef ref = TRY(registry_.find(MORTISE_KIND_REWARD, name));
    InstanceIdentity identity =
        TRY(PluginInstance::identify(ref, nlohmann::ordered_json::object(), RunKey{7, nullptr}));
    return RewardPool::start(ref, std::move(identity), RunKey{7, nullptr}, WorkerLimits{}, options);
  }

  // Two batches, the second with more rows, longer ones and a crash. What came of it, for the failure's text.
  std::string play(WorkerSystem& system, const std::vector<Fault>& faults) {
    auto started = start("plain", system, faults);
    if (!started.ok()) return check_error(started.error());
    RewardFunction& reward = **started;
    const auto first = reward.score(request(3), rows_of({"a", "bb", "ccc"}), nullptr);
    if (!first.ok()) return check_error(first.error());
    check(*first, {1, 2, 3});
    std::vector<std::string> texts(300, std::string(10'000, 'x'));
    std::vector<double> lengths(300, 10'000);
    texts[7] = "crash";
    lengths[7] = std::numeric_limits<double>::quiet_NaN();
    const auto second = reward.score(request(300), rows_of(texts), nullptr);
    if (!second.ok()) return check_error(second.error());
    check(*second, lengths);
    return "scores";
  }
  static void check(const RewardOutput& out, const std::vector<double>& expected) {
    ASSERT_EQ(out.rewards.size(), expected.size());
    const auto failed = failures(out);
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool has_failed = failed.count(static_cast<int64_t>(i)) == 1;
      EXPECT_EQ(std::isnan(out.rewards[i]), has_failed) << i;
      if (has_failed) {
        EXPECT_FALSE(failed.at(static_cast<int64_t>(i)).empty()) << i;
      } else {
        EXPECT_EQ(out.rewards[i], expected[i]) << i;
      }
    }
  }
  static std::string check_error(const Error& error) {
    EXPECT_FALSE(error.what.empty());
    EXPECT_FALSE(error.next.empty()) << error.to_string() << ": the error does not say what to do";
    return error.to_string();
  }

  TempDir dir_;
};

using FailingCalls = std::vector<std::pair<const char*, int>>;

// Plus `also` without a sanitizer: these fail in the same places of the program, for another reason.
FailingCalls with(FailingCalls calls, const FailingCalls& also) {
  if (!kSanitized) calls.insert(calls.end(), also.begin(), also.end());
  return calls;
}

TEST_F(WorkerInjection, EveryCallOfTheTrainerMayFailOnce) {
  const size_t open = num_open_files();
  const FailingCalls calls = with({{"socketpair", EMFILE},
                                   {"memfd_create", EMFILE},
                                   {"ftruncate", ENOMEM},
                                   {"mmap", ENOMEM},
                                   {"add_seals", ENOMEM},
                                   {"spawn", EAGAIN},
                                   {"poll", ENOMEM}},
                                  {{"spawn", ENOMEM}, {"poll", EINTR}, {"poll", EAGAIN}});
  for (const auto& [call, code] : calls) {
    int64_t k = 1;
    for (bool reached = true; reached && k < 25; ++k) {
      SCOPED_TRACE(std::string(call) + " number " + std::to_string(k) + ": " + std::strerror(code));
      FaultySystem system;
      system.fail({call, k, code});
      const std::string outcome = play(system, {});
      reached = system.num_failed() > 0;
      EXPECT_EQ(outcome, "scores");
      EXPECT_EQ(num_open_files(), open);
    }
    EXPECT_GT(k, 2) << call << " is never called";
  }
}

// A suite is a ctest entry: these two long cases run side by side.
class ForkServerInjection : public WorkerInjection {};

TEST_F(ForkServerInjection, EveryCallOfItAndOfItsWorkersMayFailOnce) {
  const size_t open = num_open_files();
  const FailingCalls calls = with({{"fork", EAGAIN},
                                   {"signalfd", EMFILE},
                                   {"recvmsg", EMFILE},
                                   {"mmap", ENOMEM},
                                   {"poll", EINTR},
                                   {"poll", ENOMEM}},
                                  {{"fork", ENOMEM}});
  for (const auto& [call, code] : calls) {
    for (int64_t k = 1; k <= 6; ++k) {
      SCOPED_TRACE(std::string(call) + " number " + std::to_string(k) + ": " + std::strerror(code));
      FaultySystem system;
      const std::string outcome = play(system, {{call, k, code}});
      if (std::string(call) == "fork") {
        EXPECT_EQ(outcome, "scores");
      }
      EXPECT_EQ(num_open_files(), open);
    }
  }
}

// Three deaths of the fork server used to end a run, and so did a fork that failed three times.
TEST_F(WorkerInjection, AForkThatFailsIsTriedAgain) {
  for (const int code : {EAGAIN, ENOMEM}) {
    FaultySystem system;
    // The first worker starts. The next eight attempts find no process.
    ASSERT_OK_AND_ASSIGN(const auto reward, start("plain", system, {{"fork", 2, code, 8}}));
    for (int batch = 0; batch < 4; ++batch) {
      ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(3), rows_of({"a", "crash", "ccc"}), nullptr));
      check(out, {1, std::numeric_limits<double>::quiet_NaN(), 3});
      EXPECT_EQ(out.failed_rows.size(), 1U);
    }
    EXPECT_EQ(system.count("spawn"), 1) << "the fork server lives on";
  }
}

TEST_F(WorkerInjection, NoDescriptorIsAnErrorThatNamesTheLimit) {
  FaultySystem system;
  system.fail({"memfd_create", 1, EMFILE, 1'000'000});
  ASSERT_OK_AND_ASSIGN(const auto reward, start("plain", system));
  const auto out = reward->score(request(1), rows_of({"a"}), nullptr);
  ASSERT_FALSE(out.ok());
  EXPECT_THAT(out.error().to_string(), HasSubstr("memfd_create failed: Too many open files"));
  EXPECT_THAT(out.error().next, HasSubstr("raise the limit on open files (ulimit -n is "));
}

// The memory for the rewards of a worker cannot be had for a while: the rows wait, no worker is killed for it.
TEST_F(WorkerInjection, MemoryForRewardsIsTriedAgain) {
  FaultySystem system;
  system.fail({"memfd_create", 2, ENOMEM, 6});
  ASSERT_OK_AND_ASSIGN(const auto reward, start("plain", system));
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(2), rows_of({"a", "bb"}), nullptr));
  EXPECT_THAT(out.rewards, testing::ElementsAre(1, 2));
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), 0);
}

// A system whose clock advances by `jump` from batch to batch, as if a batch took that long.
class HurriedSystem final : public ForwardingSystem {
 public:
  int64_t ahead_ns = 0;
  std::vector<pid_t> spawned;

  int64_t monotonic_ns() override { return real_.monotonic_ns() + ahead_ns; }
  int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) override {
    const int code = real_.spawn(pid, program, files, attributes, arguments, environment);
    if (code == 0) spawned.push_back(*pid);
    return code;
  }
};

// Killed again and again over a long run: at most three times a minute, between batches and amid them.
TEST_F(WorkerInjection, AForkServerThatDiesNowAndThenNeverEndsARun) {
  const int num_batches = std::getenv("MORTISE_LONG") != nullptr ? 1'000 : 60;
  HurriedSystem system;
  ASSERT_OK_AND_ASSIGN(const auto reward, start("plain", system));
  const size_t open = num_open_files();
  std::vector<std::string> texts;
  std::vector<double> lengths;
  for (size_t i = 0; i < 40; ++i) {
    texts.emplace_back(i, 'x');
    lengths.push_back(static_cast<double>(i));
  }
  for (int batch = 0; batch < num_batches; ++batch) {
    system.ahead_ns += int64_t{25'000} * 1'000'000;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the requested worker gets ready meanwhile
    ASSERT_OK(reward->begin(request(40, 0, 0)));
    if (batch % 3 == 1) ::kill(system.spawned.back(), SIGKILL);
    ASSERT_OK(reward->add(rows_of(texts)));
    if (batch % 3 == 2) ::kill(system.spawned.back(), SIGKILL);
    ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->finish(nullptr));
    check(out, lengths);
    EXPECT_TRUE(out.failed_rows.empty()) << out.failed_rows[0].text;
  }
  EXPECT_GT(system.spawned.size(), static_cast<size_t>(num_batches) / 2);
  EXPECT_LE(num_open_files(), open + 4);
}

TEST_F(WorkerInjection, AForkServerThatDiesAllTheTimeEndsTheRun) {
  HurriedSystem system;
  ASSERT_OK_AND_ASSIGN(const auto reward, start("plain", system));
  Result<RewardOutput> out = RewardOutput{};
  for (int batch = 0; batch < 500 && out.ok(); ++batch) {
    ::kill(system.spawned.back(), SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it takes a moment to die
    out = reward->score(request(1, 0, 0), rows_of({"a"}), nullptr);
  }
  ASSERT_FALSE(out.ok());
  EXPECT_THAT(out.error().to_string(), HasSubstr("its workers has ended 4 times within 60 s"));
  EXPECT_EQ(system.spawned.size(), 4U);
}

}  // namespace
}  // namespace mortise::test
