// Losses and estimators in workers: the same bits as in this process, and what a fault of the plugin costs.
#include "plugin/worker/isolated.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/advantage_estimator.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "support/this_build.h"
#include "test_packs.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

IsolationOptions in_workers() {
  IsolationOptions options;
  options.mode = Isolation::kProcess;
  options.bubblewrap = false;
  options.limits.network = options.limits.write_files = options.limits.start_programs = false;
  return options;
}

// --- the same bits ---------------------------------------------------------------------------------------------------

// Rows of different lengths with masked tokens, all columns that a kind may see, and two rewards. 0 tokens if `rows`
// is 0.
struct Batch {
  std::vector<int64_t> offsets = {0}, row_id, group;
  std::vector<float> log_prob, old_log_prob, ref_log_prob, rollout_log_prob, is_weights, entropy, advantages, weight,
      token_rewards, values, sum_pi_squared, baselines, rewards, reward_weights = {1.0F, 0.5F};
  std::vector<uint8_t> mask, row_valid;

  Batch(int64_t rows, int64_t longest, uint64_t seed) {
    RandomStream stream({seed, RandomPurpose::kTest, 0, 0, 0});
    const auto uniform = [&](double low, double high) {
      return static_cast<float>(low + (high - low) * stream.next_double());
    };
    for (int64_t row = 0; row < rows; ++row) {
      const auto length = static_cast<int64_t>(uniform(1, static_cast<double>(longest)));
      offsets.push_back(offsets.back() + length);
      row_id.push_back(row);
      group.push_back(row / 4);
      baselines.push_back(uniform(0, 1));
      row_valid.push_back(row % 7 == 3 ? 0 : 1);
      for (const float reward : {uniform(0, 1), row % 5 == 2 ? NAN : uniform(-1, 1)}) rewards.push_back(reward);
      for (int64_t t = 0; t < length; ++t) {
        old_log_prob.push_back(uniform(-4, -0.1));
        log_prob.push_back(old_log_prob.back() + uniform(-0.5, 0.5));
        ref_log_prob.push_back(old_log_prob.back() + uniform(-0.2, 0.2));
        rollout_log_prob.push_back(old_log_prob.back() + uniform(-0.1, 0.1));
        is_weights.push_back(uniform(0.5, 2));
        entropy.push_back(uniform(0, 3));
        advantages.push_back(uniform(-1.5, 1.5));
        weight.push_back(uniform(0, 0.01));
        values.push_back(uniform(-1, 1));
        sum_pi_squared.push_back(uniform(0.1, 1));
        mask.push_back(t % 11 == 6 ? 0 : 1);
        token_rewards.push_back(t + 1 == length ? uniform(0, 1) : 0.0F);
      }
    }
  }
  [[nodiscard]] StepView view() const {
    StepView in;
    in.layout = {offsets, row_id, group};
    in.step = 12;
    in.update_index = 30;
    in.set<column::LogProb>(log_prob).set<column::OldLogProb>(old_log_prob).set<column::RefLogProb>(ref_log_prob);
    in.set<column::RolloutLogProb>(rollout_log_prob).set<column::RolloutIsWeights>(is_weights);
    in.set<column::Entropy>(entropy).set<column::Advantages>(advantages).set<column::Weight>(weight);
    in.set<column::ResponseMask>(mask).set<column::RowValid>(row_valid).set<column::Values>(values);
    in.set<column::RewardBaselines>(baselines).set<column::SumPiSquared>(sum_pi_squared);
    in.set<column::TokenLevelRewards>(token_rewards);
    return in;
  }
};

// All that a call gave.
struct Given {
  std::string error;
  std::vector<float> first, second, third;
  MetricSet metrics;
};

template <class Plugin, class Call>
Given given_by(Plugin& plugin, size_t tokens, const Call& call) {
  Given given{{}, std::vector<float>(tokens, 7), std::vector<float>(tokens, 7), std::vector<float>(tokens, 7), {}};
  const auto done = call(plugin, given);
  if (!done.ok()) given.error = done.error().to_string();
  return given;
}

Given of_loss(PolicyLoss& loss, const Batch& batch) {
  return given_by(loss, batch.mask.size(), [&](PolicyLoss& one, Given& out) {
    return one.compute(batch.view(), {out.first, out.second, out.third}, &out.metrics);
  });
}
Given of_kl(KlEstimator& kl, const Batch& batch) {
  return given_by(kl, batch.mask.size(), [&](KlEstimator& one, Given& out) {
    return one.compute(batch.view(), {out.first, out.second}, &out.metrics);
  });
}
Given of_advantage(AdvantageEstimator& estimator, const Batch& batch) {
  return given_by(estimator, batch.mask.size(), [&](AdvantageEstimator& one, Given& out) {
    AdvantageInput in{batch.view(), batch.rewards, batch.reward_weights};
    return one.compute(in, {out.first, out.second}, &out.metrics);
  });
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void expect_same(const Given& here, const Given& apart) {
  EXPECT_EQ(here.error, apart.error);
  EXPECT_TRUE(same_bits(here.first, apart.first));
  EXPECT_TRUE(same_bits(here.second, apart.second));
  EXPECT_TRUE(same_bits(here.third, apart.third));
  const std::vector<MetricValue> a = here.metrics.values(), b = apart.metrics.values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(std::bit_cast<uint64_t>(a[i].value), std::bit_cast<uint64_t>(b[i].value)) << a[i].name;
  }
}

// Batches of growing and shrinking sizes through one instance, then none at all.
template <class Plugin, class Call>
void compare(PluginRegistry& registry, const PluginInfo& info, const ordered_json& params, const Call& call) {
  auto here = Plugin::create(registry, info.name, params, RunKey{7});
  auto apart = Plugin::create(registry, info.name, params, RunKey{7}, isolated(in_workers()));
  ASSERT_TRUE(here.ok() && apart.ok()) << (here.ok() ? apart : here).error().to_string();
  EXPECT_EQ(here->instance().remote(), nullptr);
  ASSERT_NE(apart->instance().remote(), nullptr);
  for (const auto& [rows, longest] : {std::pair(8, 9), {40, 400}, {4, 3}, {0, 0}, {16, 50}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const Batch batch(rows, longest, static_cast<uint64_t>(rows + 1));
    expect_same(call(*here, batch), call(*apart, batch));
  }
}

// Values for the parameters that have no default.
ordered_json needed_params(const PluginInfo& info) {
  ordered_json params = ordered_json::object();
  for (const ParamInfo& param : info.params) {
    if (param.default_text) continue;
    EXPECT_EQ(param.type, ParamType::kF64) << info.name << "." << param.name << ": teach this test";
    params[param.name] = 0.3;
  }
  return params;
}

class BuiltinPlugin : public testing::TestWithParam<std::string> {};

RegistryOptions builtin_only() {
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  return options;
}

// "policy_loss vanilla" for every plugin of the three kinds that the program brings.
std::vector<std::string> builtin_plugins() {
  std::vector<std::string> names;
  const auto registry = PluginRegistry::open(builtin_only());
  if (!registry.ok()) return names;
  for (const Candidate& pack : registry->candidates()) {
    for (const PluginInfo& plugin : pack.info.plugins) {
      const std::string kind = short_kind(plugin.kind);
      if (kind == "policy_loss" || kind == "kl_estimator" || kind == "advantage_estimator")
        names.push_back(kind + " " + plugin.name);
    }
  }
  return names;
}

TEST_P(BuiltinPlugin, GivesTheSameBitsInAWorker) {
  ASSERT_OK_AND_ASSIGN(PluginRegistry registry, PluginRegistry::open(builtin_only()));
  const std::string kind = GetParam().substr(0, GetParam().find(' '));
  ASSERT_OK_AND_ASSIGN(const PluginRef ref, registry.find(kind, GetParam().substr(kind.size() + 1)));
  const ordered_json params = needed_params(*ref.plugin);
  if (kind == "policy_loss") compare<PolicyLoss>(registry, *ref.plugin, params, of_loss);
  if (kind == "kl_estimator") compare<KlEstimator>(registry, *ref.plugin, params, of_kl);
  if (kind == "advantage_estimator") compare<AdvantageEstimator>(registry, *ref.plugin, params, of_advantage);
}
INSTANTIATE_TEST_SUITE_P(Every, BuiltinPlugin, testing::ValuesIn(builtin_plugins()), [](const auto& name) {
  std::string text = name.param;
  std::ranges::replace(text, ' ', '_');
  return text;
});
TEST(BuiltinPlugins, ThereAreSomeOfEachKind) {
  const std::vector<std::string> all = builtin_plugins();
  for (const std::string kind : {"policy_loss ", "kl_estimator ", "advantage_estimator "})
    EXPECT_GT(std::ranges::count_if(all, [&](const std::string& name) { return name.starts_with(kind); }), 2) << kind;
}

// --- faults ----------------------------------------------------------------------------------------------------------

class IsolatedTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(log_init({.console_level = LogLevel::kOff, .file = dir_ / "log.txt", .force_plain = true}));
    key_.call_timeout_ms = 60'000;
  }
  void TearDown() override { ASSERT_OK(log_init({})); }
  std::string log() const {
    log_flush();
    return dir_.read("log.txt");
  }
  Result<PolicyLoss> make(const std::string& name, const ordered_json& params = ordered_json::object()) {
    return PolicyLoss::create(registry_, name, params, key_, isolated(options_));
  }
  // A new loss, called once with the batch.
  std::string error_of_call(const ordered_json& params) {
    auto loss = make("apart", params);
    if (!loss.ok()) return loss.error().to_string();
    return of_loss(*loss, batch_).error;
  }
  // Written at first, so that a worker that may write files can remove it.
  ordered_json once(const std::string& what) {
    options_.limits.write_files = true;
    return {{"what", what}, {"once", dir_.write("once", "").string()}};
  }

  TempDir dir_;
  PluginRegistry registry_ = open_registry({"apart", "rude"});
  IsolationOptions options_ = in_workers();
  RunKey key_;
  Batch batch_{6, 5, 3};
};

constexpr const char* kWho = "policy_loss apart@test.apart 1.0.0 (";
// A sanitizer catches the signal, reports it, and then ends the process in its own way.
const std::string kCrash = kSanitized ? "compute, step 12: its [^;]*"
                                      : "compute, step 12: its code was ended by signal 11 \\(Segmentation fault\\)";

TEST_F(IsolatedTest, ACrashIsAnErrorAfterASecondTry) {
  EXPECT_THAT(error_of_call({{"what", "crash"}}),
              AllOf(HasSubstr(kWho), ContainsRegex(kCrash + ", 2 times in a row; find the fault with `mortise plugin "
                                                            "check FILE`")));
  EXPECT_THAT(log(), ContainsRegex(kCrash + "; the call is made once more in a new worker"));
  EXPECT_THAT(error_of_call({{"what", "exit"}}), HasSubstr("its worker ended in the call (exit code 3), 2 times"));
}

TEST_F(IsolatedTest, ACrashThatDoesNotRepeatCostsNothing) {
  auto loss = make("apart", once("crash"));
  ASSERT_OK(loss);
  auto here = PolicyLoss::create(registry_, "apart", ordered_json::object(), key_);
  expect_same(of_loss(*here, batch_), of_loss(*loss, batch_));
  EXPECT_THAT(log(), HasSubstr("made once more"));
  const Batch larger(50, 90, 4);
  expect_same(of_loss(*here, larger), of_loss(*loss, larger));
}

TEST_F(IsolatedTest, EstimatorsAreReplacedToo) {
  const ordered_json crashes = once("crash"), exits = once("exit");
  auto kl = KlEstimator::create(registry_, "apart", crashes, key_, isolated(options_));
  auto estimator = AdvantageEstimator::create(registry_, "apart", exits, key_, isolated(options_));
  ASSERT_OK(kl);
  ASSERT_OK(estimator);
  dir_.write("once", "");
  EXPECT_EQ(of_kl(*kl, batch_).error, "");
  EXPECT_FALSE(default_env().exists(dir_ / "once")) << "it crashed";
  dir_.write("once", "");
  const Given advantages = of_advantage(*estimator, batch_);
  EXPECT_EQ(advantages.error, "");
  EXPECT_EQ(advantages.first, batch_.token_rewards);
  EXPECT_FALSE(default_env().exists(dir_ / "once"));
  auto bad = KlEstimator::create(registry_, "apart+", {{"what", "crash"}}, key_, isolated(options_));
  EXPECT_THAT(of_kl(*bad, batch_).error, HasSubstr("kl_estimator apart@test.apart 1.0.0 ("));
}

TEST_F(IsolatedTest, ACallThatDoesNotReturnIsEndedWithItsWorker) {
  key_.call_timeout_ms = 5'000;  // the first call, which returns, has to keep it
  auto loss = make("apart", {{"what", "spin"}, {"at_step", 31}});
  ASSERT_OK(loss);
  EXPECT_EQ(of_loss(*loss, batch_).error, "");
  StepView late = batch_.view();
  late.update_index = 31;
  std::vector<float> out(batch_.mask.size());
  EXPECT_THAT(error_of(loss->compute(late, {out, {}, {}}, nullptr)),
              HasSubstr("compute, step 12: it still runs after its limit of 5000 ms (plugins.call_timeout); its worker "
                        "was ended; raise plugins.call_timeout or make it faster"));
  EXPECT_THAT(log(), Not(HasSubstr("once more"))) << "it would take as long again";
  EXPECT_EQ(of_loss(*loss, batch_).error, "") << "in a new worker";
}

TEST_F(IsolatedTest, ACallThatReturnsLateIsAnError) {
  key_.call_timeout_ms = 100;
  EXPECT_THAT(error_of_call({{"what", "polite"}}), AllOf(HasSubstr("took "), HasSubstr("raise plugins.call_timeout")));
}

TEST_F(IsolatedTest, AStopOfTheRunReachesThePlugin) {
  std::atomic<bool> stop{false};
  key_.cancelled = &stop;
  auto loss = make("apart", {{"what", "polite"}});
  ASSERT_OK(loss);
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop = true;
  });
  std::vector<float> out(batch_.mask.size());
  const auto done = loss->compute(batch_.view(), {out, {}, {}}, nullptr);
  stopper.join();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().kind, ErrorKind::kSignal) << done.error().to_string();
}

TEST_F(IsolatedTest, ErrorsOfThePluginAreThoseOfThisProcess) {
  for (const std::string name : {"nan_everywhere", "inf_gradient", "says_why", "bare_code", "fails_yet_ok",
                                 "bad_metric", "throws", "throws_int", "counts", "checks_views", "nan_masked"}) {
    auto here = PolicyLoss::create(registry_, name, ordered_json::object(), key_);
    auto apart = make(name);
    ASSERT_TRUE(here.ok() && apart.ok()) << name;
    const Given expected = of_loss(*here, batch_), given = of_loss(*apart, batch_);
    EXPECT_EQ(given.error, expected.error);
    if (expected.error.empty()) expect_same(expected, given);
  }
  for (const std::string name : {"empty", "create_fails", "create_throws"}) {
    const auto here = PolicyLoss::create(registry_, name, ordered_json::object(), key_), apart = make(name);
    ASSERT_FALSE(here.ok() || apart.ok()) << name;
    EXPECT_EQ(apart.error().to_string(), here.error().to_string());
  }
}

// Without plugins.check as well.
TEST_F(IsolatedTest, AWriteBesideTheOutputsIsFound) {
  EXPECT_THAT(error_of_call({{"what", "write past"}}),
              AllOf(HasSubstr("step 12: wrote at least "), HasSubstr("behind the end of output 'loss'")));
  for (const bool check : {false, true}) {
    key_.check_writes = check;
    auto behind = make("writes_behind"), before = make("writes_before");
    ASSERT_TRUE(behind.ok() && before.ok());
    EXPECT_THAT(of_loss(*behind, batch_).error, HasSubstr("behind the end of output 'loss'"));
    EXPECT_THAT(of_loss(*before, batch_).error, HasSubstr("in front of output 'grad_log_prob'"));
  }
  // The inputs cannot be written at all, and the trainer's own copy is elsewhere.
  const std::vector<float> log_prob = batch_.log_prob;
  EXPECT_THAT(error_of_call({{"what", "write inputs"}}), ContainsRegex(kCrash + ", 2 times in a row"));
  EXPECT_EQ(batch_.log_prob, log_prob);
}

TEST_F(IsolatedTest, AMemoryHogEndsItsWorkerAlone) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map terabytes";
  options_.limits.memory_bytes = int64_t{100} << 20;
  options_.limits.memory_where = "run.toml:3:1";
  auto loss = make("apart");
  ASSERT_OK(loss);
  const Batch large(1000, 5000, 1);  // more than 110 MiB
  EXPECT_THAT(of_loss(*loss, large).error, AllOf(HasSubstr(kWho), HasSubstr("mmap failed: Cannot allocate memory"),
                                                 HasSubstr("plugins.worker_memory_mib = 100 (run.toml:3:1)")));
  EXPECT_EQ(of_loss(*loss, batch_).error, "");
}

TEST_F(IsolatedTest, WorkersThatAreKilledFromOutsideAreReplaced) {
  auto loss = make("probe");
  ASSERT_OK(loss);
  const Given first = of_loss(*loss, batch_);
  ASSERT_NE(first.first[0], static_cast<float>(::getpid()));
  ASSERT_EQ(::kill(static_cast<pid_t>(first.first[0]), SIGKILL), 0);
  const Given second = of_loss(*loss, batch_);
  EXPECT_EQ(second.error, "");
  EXPECT_NE(second.first[0], first.first[0]);
}

// --- state, logs, limits ---------------------------------------------------------------------------------------------

TEST_F(IsolatedTest, StateIsThatAfterTheLastCall) {
  auto loss = make("counter");
  ASSERT_OK(loss);
  ASSERT_OK_AND_ASSIGN(std::optional<std::string> state, loss->instance().save_state());
  EXPECT_EQ(state, "0");
  EXPECT_EQ(of_loss(*loss, batch_).first[0], 1);
  EXPECT_EQ(of_loss(*loss, batch_).first[0], 2);
  ASSERT_OK_AND_ASSIGN(state, loss->instance().save_state());
  EXPECT_EQ(state, "2");

  auto resumed = make("counter");
  ASSERT_OK(resumed);
  ASSERT_OK(resumed->instance().load_state("41"));
  EXPECT_EQ(of_loss(*resumed, batch_).first[0], 42);
  auto damaged = make("counter");
  EXPECT_THAT(error_of(damaged->instance().load_state("")), HasSubstr("not a count"));
  ASSERT_OK_AND_ASSIGN(const auto none, make("apart")->instance().save_state());
  EXPECT_FALSE(none.has_value());
}

TEST_F(IsolatedTest, ANewWorkerGoesOnWithTheState) {
  ordered_json params = once("crash");
  params["at_step"] = 31;
  auto loss = make("counter", params);
  ASSERT_OK(loss);
  ASSERT_OK(loss->instance().load_state("10"));
  EXPECT_EQ(of_loss(*loss, batch_).first[0], 11);
  StepView late = batch_.view();
  late.update_index = 31;
  std::vector<float> out(batch_.mask.size());
  ASSERT_OK(loss->compute(late, {out, {}, {}}, nullptr));
  EXPECT_THAT(log(), HasSubstr("made once more"));
  EXPECT_EQ(out[0], 12) << "the call that crashed does not count";
}

// A call that fails leaves the state of the last one that did not.
TEST_F(IsolatedTest, AFailedCallSavesNoState) {
  auto loss = make("counter", {{"what", "crash"}});
  ASSERT_OK(loss);
  ASSERT_OK(loss->instance().load_state("10"));
  EXPECT_NE(of_loss(*loss, batch_).error, "");
  ASSERT_OK_AND_ASSIGN(const auto state, loss->instance().save_state());
  EXPECT_EQ(state, "10");
}

TEST_F(IsolatedTest, LogsOfThePluginAreInTheRunsLog) {
  EXPECT_EQ(error_of_call({{"what", "log"}}), "");
  EXPECT_THAT(log(), AllOf(HasSubstr("runs in a worker (without bubblewrap, as configured)"),
                           HasSubstr("its worker has these limits: "), HasSubstr("no network, writes no files"),
                           HasSubstr("warning [apart@test.apart] a line from the worker\n")));
}

TEST_F(IsolatedTest, AWorkerHasTheLimitsOfRewards) {
  const ordered_json path = {{"path", (dir_ / "file").string()}};
  const auto probe = [&] {
    auto loss = make("probe", path);
    EXPECT_OK(loss);
    return loss.ok() ? of_loss(*loss, batch_).first : std::vector<float>(5);
  };
  const std::vector<float> confined = probe();
  EXPECT_EQ(confined[1], 0) << "no network";
  EXPECT_EQ(confined[2], 0) << "no files";
  EXPECT_LE(confined[3], 6) << "the standard three, its connection, the pack: none of the trainer's";
  EXPECT_EQ(confined[4], 8) << "threads work";
  options_.limits.network = options_.limits.write_files = true;
  const std::vector<float> free = probe();
  EXPECT_EQ(free[1], 1);
  EXPECT_EQ(free[2], 1);
}

TEST_F(IsolatedTest, LeavesNothingOpen) {
  const size_t before = num_open_files();
  for (int i = 0; i < 3; ++i) {
    auto loss = make("apart");
    ASSERT_OK(loss);
    for (const int rows : {3, 60}) EXPECT_EQ(of_loss(*loss, Batch(rows, 50, 2)).error, "");
  }
  EXPECT_EQ(num_open_files(), before);
}

// --- where it runs ---------------------------------------------------------------------------------------------------

TEST_F(IsolatedTest, NoneIsThisProcessAndNothingIsSaidOfIt) {
  options_.mode = Isolation::kNone;
  auto loss = make("apart");
  ASSERT_OK(loss);
  EXPECT_EQ(loss->instance().remote(), nullptr);
  EXPECT_EQ(log(), "");
}

TEST_F(IsolatedTest, APackThatNeedsTorchRunsHereOrIsRefused) {
  PackInfo pack;
  pack.id = "test.torch";
  pack.path = "/packs/torch.so";
  pack.tier = "torch-locked";
  pack.plugins.emplace_back();
  pack.plugins[0].kind = MORTISE_KIND_POLICY_LOSS;
  pack.plugins[0].name = "mine";
  const PluginRef ref{&pack, pack.plugins.data(), nullptr};
  options_.key = "actor.policy_loss.isolation";
  const auto refused = place_plugin(ref, ordered_json::object(), options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), AllOf(HasSubstr("needs libtorch, which workers do not have"),
                                                 HasSubstr("set actor.policy_loss.isolation = \"none\"")));
  options_.mode = Isolation::kAuto;
  ASSERT_OK_AND_ASSIGN(const auto here, place_plugin(ref, ordered_json::object(), options_));
  EXPECT_FALSE(here.has_value());
  EXPECT_THAT(log(), HasSubstr("runs in the trainer's own process: /packs/torch.so: the pack needs libtorch"));
}

// Ranks on one machine share its processors, so that eight ranks do not start eight times as many workers.
TEST_F(IsolatedTest, RanksShareTheProcessorsAmongTheirWorkers) {
  const PluginRef ref = registry_.find("policy_loss", "apart").value();
  const auto num_workers = [&] {
    const auto place = place_plugin(ref, ordered_json::object(), options_);
    return place.ok() && *place ? (*place)->pool.num_workers : 0;
  };
  EXPECT_EQ(num_workers(), std::min(8, usable_cpus()));
  set_processes_here({.on_cpus = 1 << 20, .in_quota = 1});
  EXPECT_EQ(num_workers(), 1);
  options_.num_workers = 3;
  EXPECT_EQ(num_workers(), 3) << "as configured, on each rank";
  set_processes_here({});
}

size_t num_loaded_objects() {
  size_t count = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info*, size_t, void* data) {
        ++*static_cast<size_t*>(data);
        return 0;
      },
      &count);
  return count;
}

// No code of an isolated pack runs here, not even its static constructors.
TEST_F(IsolatedTest, TheTrainerDoesNotLoadThePack) {
  PluginRegistry registry = open_registry({"faulty"});  // which no other test of this program loads
  const size_t before = num_loaded_objects();
  auto apart = AdvantageEstimator::create(registry, "echo", ordered_json::object(), key_, isolated(options_));
  ASSERT_OK(apart);
  EXPECT_EQ(of_advantage(*apart, batch_).error, "");
  EXPECT_EQ(num_loaded_objects(), before);
  ASSERT_OK(AdvantageEstimator::create(registry, "echo", ordered_json::object(), key_));
  EXPECT_EQ(num_loaded_objects(), before + 1);
}

}  // namespace
}  // namespace mortise::test
