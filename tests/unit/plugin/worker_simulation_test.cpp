// Rollouts, rewards and workers as a simulation: the real scheduling (RolloutRunner, RewardRunner, RewardPool, Supervisor,
// the queue, the account, the retries) over a clock, a rollout backend, processes and faults that are a function of a
// seed. Time passes between two polls of the backend. 200 seeds, MORTISE_LONG=1: 2,000.
//
// A failing seed is printed with the command that replays it: MORTISE_SIM_SEED=N runs only that one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>

#include "experience/reward/reward_runner.h"
#include "experience/rollout/rollout_runner.h"
#include "foundation/base/log.h"
#include "plugin/worker/reward_pool.h"
#include "sim_workers.h"
#include "test_packs.h"
#include "text/tokenizer/tokenizer.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

struct Function {
  std::unique_ptr<SimMachine> machine;
  RewardSpec spec;
};

// What a seed decides, drawn before anything runs.
struct Plan {
  SimFaults faults;
  int num_functions = 1, num_workers = 1, num_steps = 1;
  int64_t num_prompts = 1, num_samples = 1;
  bool has_row_timeout = false, has_batch_timeout = false, stops = false, pauses = false;
  double hostile = 0;  // chance that a row crashes, hangs or fails
  // Events of the rollout backend.
  int64_t capacity = 1, slowest = 0;
  double cut = 0, restart = 0, failure = 0;
  std::string lie;  // how it breaks its contract
};

// A completion's text as token ids, and back.
constexpr int64_t kBetween = 999;  // after each completion in a prompt of the simulated backend
Tokenizer letters() {
  CharTokenizerSpec spec;
  spec.characters = "0123456789acfghiklnors";
  spec.special_tokens = {"<|pad|>", "<|end|>"};
  spec.roles = {{"pad_token", "<|pad|>"}, {"eos_token", "<|end|>"}};
  const CharTokenizerFiles files = make_char_tokenizer(spec).value();
  const TempDir dir;
  dir.write("tokenizer.json", files.tokenizer_json);
  dir.write("tokenizer_config.json", files.tokenizer_config_json);
  return Tokenizer::load(dir.path()).value();
}

class Simulation {
 public:
  Simulation(uint64_t seed, PluginRegistry& backends, const Tokenizer& tokenizer)
      : seed_(seed), random_(seed), clock_(seed), backends_(backends), tokenizer_(tokenizer) {
    draw_plan();
    draw_rollout();
  }

  void run() {
    std::vector<std::unique_ptr<RewardFunction>> rewards;
    std::vector<RewardSpec> specs;
    for (int i = 0; i < plan_.num_functions; ++i) {
      auto made = make_function(i);
      if (!made.ok()) return expect_machine_to_blame(made.error());
      rewards.push_back(std::move(*made));
      specs.push_back(functions_.back().spec);
    }
    auto rollout = RolloutRunner::create(backends_, "sim", backend_params(), RunKey());
    ASSERT_TRUE(rollout.ok()) << rollout.error().to_string();
    {
      RewardRunner runner = RewardRunner::over(specs, std::move(rewards), /*max_failed_fraction=*/1.0);
      for (int step = 1; step <= plan_.num_steps && may_go_on_; ++step) play_step(*rollout, runner, step);
    }
    pass_time(2'000);
    for (const Function& function : functions_) {
      EXPECT_EQ(function.machine->num_living(), 0U) << "processes outlive the pool";
    }
  }

 private:
  int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }

  void draw_plan() {
    plan_.num_functions = static_cast<int>(uniform(1, 3));
    plan_.num_workers = static_cast<int>(uniform(1, 4));
    plan_.num_steps = static_cast<int>(uniform(1, 4));
    plan_.num_prompts = uniform(1, 12);
    plan_.num_samples = uniform(1, 6);
    plan_.hostile = chance(0.5) ? 0.15 : 0;
    plan_.has_row_timeout = plan_.hostile > 0 || chance(0.5);
    plan_.has_batch_timeout = chance(0.3);
    plan_.stops = chance(0.1);
    plan_.pauses = chance(0.3);
    if (chance(0.3)) return;  // no fault of the machine: then every score must be there
    const double scale = chance(0.2) ? 0.5 : 0.03;
    SimFaults& faults = plan_.faults;
    if (chance(0.5)) faults.refusal = scale;
    if (chance(0.5)) faults.fork_fails = 2 * scale * 0.9;
    if (chance(0.3)) faults.server_dies = scale * 0.1;
    if (chance(0.5)) faults.worker_dies = scale * 0.2;
    if (chance(0.3)) faults.start_fails = scale * 0.5;
    faults.quiet_ns = 1'000'000'000 + uniform(0, 120'000) * kSimMs;
  }

  // One run in five has a backend that fails or lies: then its step ends with an error.
  void draw_rollout() {
    plan_.capacity = uniform(1, 16);
    plan_.slowest = uniform(0, 20);
    if (chance(0.5)) plan_.cut = 0.2;
    if (chance(0.4)) plan_.restart = 0.1;
    if (chance(0.1)) plan_.failure = 0.05;
    if (chance(0.1))
      plan_.lie = std::array{"twice", "forgets", "unknown", "foreign"}[static_cast<size_t>(uniform(0, 3))];
  }
  Json backend_params() const {
    return {{"seed", static_cast<int64_t>(seed_)},
            {"capacity", plan_.capacity},
            {"slowest", plan_.slowest},
            {"cut", plan_.cut},
            {"restart", plan_.restart},
            {"failure", plan_.failure},
            {"lie", plan_.lie}};
  }

  Result<std::unique_ptr<RewardFunction>> make_function(int index) {
    SimReward reward;
    reward.granularity = static_cast<Granularity>(std::array{0, 0, 0, 1, 2}[static_cast<size_t>(uniform(0, 4))]);
    reward.has_state = chance(0.2);
    reward.starts_threads = chance(0.2);
    reward.slowest_row_ns = chance(0.2) ? 300'000'000 : 2'000'000;
    Function& function = functions_.emplace_back();
    function.machine = std::make_unique<SimMachine>(clock_, plan_.faults, reward);
    function.spec.use = function.spec.label = "sim" + std::to_string(index);
    function.spec.row_timeout_ms = plan_.has_row_timeout ? uniform(500, 3'000) : 0;
    // A group's or a batch's rows take as long as one call; a whole batch knows only the batch's own time.
    const bool needs_timeout = reward.granularity == Granularity::kBatch && plan_.hostile > 0;
    function.spec.timeout_ms = plan_.has_batch_timeout || needs_timeout ? uniform(500, 20'000) : 0;
    PoolOptions options;
    options.num_workers = plan_.num_workers;
    options.program = "/simulated/mortise-worker";
    options.system = &function.machine->system;
    InstanceIdentity identity;
    identity.label = function.spec.use;
    RunKey key;
    key.cancelled = &stop_;
    return RewardPool::start(PluginRef{&pack_, &plugin_, nullptr}, identity, key, WorkerLimits{}, options);
  }

  void draw_batch(int64_t step) {
    prompts_ = PromptBatch();
    prompts_.step = step;
    planned_.clear();
    for (int64_t p = 0; p < plan_.num_prompts; ++p) {
      Prompt& prompt = prompts_.prompts.emplace_back();
      for (int64_t s = 0; s < plan_.num_samples; ++s) {
        const bool bad = chance(plan_.hostile);
        const std::string text = bad ? std::array{"crash", "hang", "fail"}[static_cast<size_t>(uniform(0, 2))]
                                     : "ok" + std::to_string(uniform(0, 1'000'000));
        const std::vector<int64_t> ids = tokenizer_.encode(text).value();
        prompt.token_ids.insert(prompt.token_ids.end(), ids.begin(), ids.end());
        prompt.token_ids.push_back(kBetween);
        planned_.push_back(text);
      }
    }
  }

  void pass_time(int64_t ms) { clock_.run_until(clock_.now_ns() + ms * kSimMs); }

  // Prompts return from sampling in any order, with pauses. Some are scored only after all are finished.
  Result<ScoredBatch> sample_and_score(RolloutRunner& rollout, RewardRunner& runner, const ScoreContext& context) {
    TRY(runner.begin(prompts_, plan_.num_samples, context));
    RolloutPlan sampling;
    sampling.num_samples = plan_.num_samples;
    sampling.sampling.max_new_tokens = 16;
    sampling.vocab_size = kBetween;
    const bool overlaps = chance(0.8);
    std::vector<int> num_told(prompts_.prompts.size(), 0);
    const auto on_prompt = [&](const SampleBatch& batch, int64_t prompt) -> Result<> {
      ++num_told[static_cast<size_t>(prompt)];
      for (int64_t s = 0; s < plan_.num_samples; ++s)
        EXPECT_FALSE(batch.rows[static_cast<size_t>(prompt * plan_.num_samples + s)].text.empty()) << "told too early";
      return overlaps && chance(0.9) ? runner.feed(prompts_, batch, prompt) : Result<>();
    };
    const auto on_turn = [&](const SampleBatch& batch) -> Result<> {
      if (++num_turns_ > 100'000) throw SimStuck("sampling does not end");
      pass_time(uniform(0, 50));
      if (plan_.pauses && chance(0.02))
        pass_time(uniform(1'000, 3'600'000));  // the trainer is stopped, the rest is not
      return runner.tend(prompts_, batch);
    };
    auto samples = rollout.collect(prompts_, sampling, tokenizer_, nullptr, {}, on_prompt, on_turn);
    sampled_ = samples.ok();
    if (!samples.ok()) return std::move(samples).error();
    samples_ = *std::move(samples);
    EXPECT_THAT(num_told, testing::Each(1)) << "each prompt is told once";
    check_samples();
    return runner.score(prompts_, samples_, context, nullptr);
  }

  // Every row is there once, with its own completion, whole or a beginning of it.
  void check_samples() const {
    ASSERT_EQ(samples_.rows.size(), planned_.size());
    for (size_t row = 0; row < planned_.size(); ++row) {
      const Sample& sample = samples_.rows[row];
      EXPECT_EQ(sample.prompt_index * plan_.num_samples + sample.sample_index, static_cast<int64_t>(row));
      EXPECT_EQ(sample.weight_version, prompts_.step);
      if (sample.finish_reason == FinishReason::kStop) {
        EXPECT_EQ(sample.text, planned_[row]);
      } else {
        EXPECT_GT(plan_.cut, 0);
        EXPECT_TRUE(planned_[row].starts_with(sample.text)) << sample.text;
      }
    }
  }

  // An error of sampling is one that was planned. Returns whether it was one.
  bool is_backend_to_blame(const Error& error) const {
    if (sampled_) return false;
    if (plan_.failure > 0 && error.what.find("the server does not answer") != std::string::npos) return true;
    return !plan_.lie.empty() && error.to_string().find("sim@test.sim_rollout") != std::string::npos;
  }

  void play_step(RolloutRunner& rollout, RewardRunner& runner, int step) {
    draw_batch(step);
    sampled_ = true;
    num_turns_ = 0;
    ASSERT_OK(rollout.set_version(step));
    step_ = step;
    stop_ = false;
    if (plan_.stops && step == plan_.num_steps) {
      clock_.after(uniform(0, 500) * kSimMs, [this] { stop_ = true; });
    }
    const ScoreContext context{.step = step};
    auto scored = sample_and_score(rollout, runner, context);
    if (!scored.ok()) {
      may_go_on_ = false;
      if (scored.error().kind == ErrorKind::kSignal) {
        EXPECT_TRUE(stop_) << "nobody asked for a stop";
        return;
      }
      if (is_backend_to_blame(scored.error())) return;
      return expect_machine_to_blame(scored.error());
    }
    const bool has_one_at_a_time = plan_.num_samples == 1 && (plan_.num_prompts == 1 || plan_.capacity == 1);
    EXPECT_TRUE(plan_.lie.empty() || (plan_.lie == "forgets" && has_one_at_a_time)) << "a lie was not seen";
    for (size_t i = 0; i < functions_.size(); ++i) check_column(functions_[i], scored->columns[i]);
  }

  void expect_machine_to_blame(const Error& error) {
    EXPECT_TRUE(plan_.faults.any()) << error.to_string();
    EXPECT_THAT(error.to_string(),
                testing::AnyOf(testing::HasSubstr("failed: "), testing::HasSubstr("ended"),
                               testing::HasSubstr("was ready within"), testing::HasSubstr("no memory for"),
                               testing::HasSubstr("cannot be started")));
  }

  // The rows that one call of the function is about, with this one.
  std::pair<size_t, size_t> call_of(const Function& function, size_t row) const {
    const auto n = static_cast<size_t>(plan_.num_samples);
    switch (function.machine->reward.granularity) {
      case Granularity::kRow:
        return {row, row + 1};
      case Granularity::kGroup:
        return {row / n * n, row / n * n + n};
      default:
        return {0, samples_.rows.size()};
    }
  }

  void check_column(const Function& function, const RewardColumn& column) {
    ASSERT_EQ(column.values.size(), samples_.rows.size());
    for (size_t row = 0; row < column.values.size(); ++row) check_row(function, column, row);
  }

  // Exactly one outcome: its own score, or NaN with a reason that is its own, its group's or the machine's.
  void check_row(const Function& function, const RewardColumn& column, size_t row) {
    SCOPED_TRACE(function.spec.label + ", step " + std::to_string(step_) + ", row " + std::to_string(row) + " '" +
                 samples_.rows[row].text + "': " + std::string(column.error(row)));
    const double value = column.values[row];
    const auto id = static_cast<int64_t>(row);
    const std::string& text = samples_.rows[row].text;
    const auto begun = function.machine->calls_begun.find({step_, id});
    const int num_calls = begun == function.machine->calls_begun.end() ? 0 : begun->second;
    EXPECT_LE(num_calls, 3) << "retries are bounded";
    const auto named = column.extra.find("id");
    const double note = named == column.extra.end() ? kNaN : named->second[row];
    if (!std::isnan(value)) {
      EXPECT_EQ(value, sim_reward(text, id));
      EXPECT_EQ(note, static_cast<double>(id)) << "what the row said about itself is there once";
      EXPECT_GE(num_calls, 1);
      return;
    }
    EXPECT_FALSE(column.error(row).empty()) << "NaN without a reason";
    EXPECT_TRUE(std::isnan(note)) << "a failed row leaves nothing behind";
    const auto [first, end] = call_of(function, row);
    const bool own_fault =
        text == "fail" || std::any_of(samples_.rows.begin() + static_cast<std::ptrdiff_t>(first),
                                      samples_.rows.begin() + static_cast<std::ptrdiff_t>(end),
                                      [](const Sample& s) { return s.text == "crash" || s.text == "hang"; });
    if (plan_.faults.any() || function.spec.timeout_ms > 0 || plan_.stops || plan_.pauses) return;
    EXPECT_TRUE(own_fault) << "a row pays for the fault of another";
  }

  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  uint64_t seed_;
  std::mt19937_64 random_;
  SimClock clock_;
  PluginRegistry& backends_;
  const Tokenizer& tokenizer_;
  Plan plan_;
  PackInfo pack_;
  PluginInfo plugin_;
  std::atomic<bool> stop_ = false;
  std::vector<Function> functions_;
  PromptBatch prompts_;
  std::vector<std::string> planned_;  // the completions, by row
  SampleBatch samples_;
  bool sampled_ = true;
  int64_t num_turns_ = 0;
  int64_t step_ = 0;
  bool may_go_on_ = true;
};

TEST(WorkerSimulation, EveryRowSettlesOnceWhateverHappens) {
  const char* const only = std::getenv("MORTISE_SIM_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t count = only != nullptr ? 1 : std::getenv("MORTISE_LONG") != nullptr ? 2'000 : 200;
  LogOptions quiet;
  quiet.console_level = only != nullptr ? LogLevel::kDebug : LogLevel::kError;
  (void)log_init(quiet);
  PluginRegistry backends = open_registry({"sim_rollout"});
  const Tokenizer tokenizer = letters();
  ASSERT_TRUE(RolloutRunner::create(backends, "sim", Json::object(), RunKey()).ok());  // its pack stays open
  const size_t open = num_open_files();
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("replay: MORTISE_SIM_SEED=" + std::to_string(seed) +
                 " build/release/tests/test_plugin_worker --gtest_filter='WorkerSimulation.*'");
    try {
      Simulation(seed, backends, tokenizer).run();
    } catch (const SimStuck& stuck) {
      ADD_FAILURE() << stuck.what();
    }
    EXPECT_EQ(num_open_files(), open) << "a descriptor is left open";
  }
  (void)log_init({});
}

}  // namespace
}  // namespace mortise::test
