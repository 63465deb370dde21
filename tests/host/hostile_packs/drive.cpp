// A process for each use: the plugin may crash it, end it, or keep it.
#include "drive.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "foundation/base/clock.h"
#include "plugin/host/kinds/advantage_estimator.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/kinds/rollout_backend.h"
#include "plugin/host/process_watch.h"
#include "plugin/host/running_code.h"
#include "plugin/worker/isolated.h"
#include "plugin/worker/reward_function.h"

namespace mortise::test {
namespace {

const nlohmann::ordered_json kAtStep2 = {{"at_step", 2}};

// Two rows of three tokens.
struct Tokens {
  std::vector<int64_t> offsets = {0, 3, 6}, row_id = {0, 1}, group = {0, 0};
  std::vector<float> ones = std::vector<float>(6, 1.0F), minus = std::vector<float>(6);
  std::vector<uint8_t> mask = std::vector<uint8_t>(6, 1);
  std::vector<float> first = std::vector<float>(6), second = std::vector<float>(6);

  [[nodiscard]] StepView view(int64_t step) {
    minus.assign(6, static_cast<float>(-step));
    StepView in;
    in.layout = {offsets, row_id, group};
    in.step = step;
    in.set<column::LogProb>(minus).set<column::OldLogProb>(minus).set<column::RefLogProb>(minus);
    in.set<column::Advantages>(ones).set<column::TokenLevelRewards>(ones);
    in.set<column::ResponseMask>(mask).set<column::Weight>(ones);
    return in;
  }
};

// As for a checkpoint.
template <class Plugin>
Result<> save(Plugin& plugin) {
  TRY(plugin.instance().save_state());
  return {};
}

Result<> use_loss(PluginRegistry& registry, const RunKey& key, const RemoteMaker& remote) {
  PolicyLoss loss = TRY(PolicyLoss::create(registry, "hostile", kAtStep2, key, remote));
  Tokens tokens;
  for (const int64_t step : {1, 2}) TRY(loss.compute(tokens.view(step), {tokens.first, tokens.second, {}}, nullptr));
  return save(loss);
}

Result<> use_kl(PluginRegistry& registry, const RunKey& key, const RemoteMaker& remote) {
  KlEstimator kl = TRY(KlEstimator::create(registry, "hostile", kAtStep2, key, remote));
  Tokens tokens;
  for (const int64_t step : {1, 2}) TRY(kl.compute(tokens.view(step), {tokens.first, tokens.second}, nullptr));
  return save(kl);
}

Result<> use_advantage(PluginRegistry& registry, const RunKey& key, const RemoteMaker& remote) {
  AdvantageEstimator estimator = TRY(AdvantageEstimator::create(registry, "hostile", kAtStep2, key, remote));
  Tokens tokens;
  for (const int64_t step : {1, 2}) {
    AdvantageInput in;
    in.columns = tokens.view(step);
    TRY(estimator.compute(in, {tokens.first, tokens.second}, nullptr));
  }
  return save(estimator);
}

Result<> use_rollout(PluginRegistry& registry, const RunKey& key) {
  RolloutBackend backend = TRY(RolloutBackend::create(registry, "hostile", kAtStep2, key));
  TRY(backend.set_version(0));
  Sampling sampling;
  sampling.max_new_tokens = 4;
  const std::vector<int64_t> prompt = {1, 2};
  for (const int64_t step : {1, 2}) {
    RolloutRequest request;
    request.request_id = step;
    request.prompt_ids = prompt;
    request.num_samples = 2;
    request.step = step;
    request.sampling = &sampling;
    if (TRY(backend.submit({&request, 1})) != 1)
      return Error{ErrorKind::kPlugin, "did not take the request", "submit", ""};
    int64_t num = 0;
    const auto count = [&](const RolloutSequence& /*sequence*/) { return ++num > 0; };
    if (TRY(backend.poll(100, count, nullptr)) != 0 || num != 2)
      return Error{ErrorKind::kPlugin, "did not deliver two samples", "poll", ""};
  }
  return save(backend);
}

// Four rows, of which row 2 is the bad one.
Result<> use_reward(PluginRegistry& registry, const RunKey& key) {
  IsolationOptions options;
  options.mode = Isolation::kProcess;
  options.num_workers = 1;
  options.limits.memory_bytes = int64_t{1} << 30;
  auto reward = TRY(make_reward_function(registry, "hostile", {{"bad_only", true}}, key, options));
  RewardBatch rows;
  for (const char* text : {"good", "fine", "bad one", "well"}) {
    rows.completion.append(text);
    rows.row_id.push_back(rows.num_rows);
    rows.group_index.push_back(rows.num_rows++);
  }
  const RewardOutput out = TRY(reward->score({rows.num_rows, /*step=*/2, 0, kRowLimitMs}, rows, nullptr));
  std::printf("%s\n", reward->label().c_str());
  for (size_t row = 0; row < 4; ++row) {
    if (row != 2 && out.rewards[row] != 1) std::printf("row %zu lost its reward\n", row);
  }
  for (const FailedRow& failed : out.failed_rows)
    std::printf("step 2: row %d failed: %s\n", int(failed.row), failed.text.c_str());
  return {};
}

RemoteMaker in_worker() {
  IsolationOptions options;
  options.mode = Isolation::kProcess;
  options.limits.memory_bytes = int64_t{1} << 30;
  return isolated(options);
}

Result<> use(const Use& how, const Path& pack) {
  RegistryOptions options;
  options.use_environment = false;
  options.use_user_packs = false;
  options.builtin_dir = "/nonexistent/packs";
  options.files.emplace_back(pack);
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  RunKey key;
  key.check_writes = true;
  key.call_timeout_ms = kCallLimitMs;
  const RemoteMaker remote = how.is_isolated ? in_worker() : RemoteMaker();
  if (how.kind == "policy_loss") return use_loss(registry, key, remote);
  if (how.kind == "kl_estimator") return use_kl(registry, key, remote);
  if (how.kind == "advantage_estimator") return use_advantage(registry, key, remote);
  if (how.kind == "rollout_backend") return use_rollout(registry, key);
  return use_reward(registry, key);
}

[[noreturn]] void be_the_program(const Use& how, const Path& pack, const Path& mark, const Path& log) {
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (out < 0 || ::dup2(out, 1) != 1 || ::dup2(out, 2) != 2) ::_exit(99);
  ::setenv("MORTISE_TEST_MARK", mark.c_str(), 1);
  if (how.kind != "reward" && !how.is_isolated) {  // workers have limits of their own
    const rlimit memory{rlim_t{2} << 30, rlim_t{2} << 30};
    ::setrlimit(RLIMIT_AS, &memory);
  }
  install_crash_reports();
  install_process_watch();
  const auto ended = use(how, pack);
  if (!ended.ok()) std::printf("error: %s\n", ended.error().to_string().c_str());
  std::printf("the program ends\n");
  std::fflush(nullptr);
  ::_exit(ended.ok() ? 0 : static_cast<int>(ended.error().kind));
}

Path log_of(const Path& pack, const Use& use) {
  return pack.string() + "." + use.kind + (use.is_isolated ? ".isolated" : "") + ".log";
}

}  // namespace

std::string build_pack(const Misdeed& misdeed, const Path& folder) {
  const std::string name(misdeed.name), log = (folder / (name + ".log")).string();
  const std::string source = std::string(MORTISE_SOURCE_DIR) + "/tests/host/hostile_packs/hostile.c";
  const std::string command =
      std::string(MORTISE_C_COMPILER) + " -std=gnu11 -O0 -w -fexceptions -fPIC -shared -fvisibility=hidden -I " +
      MORTISE_SOURCE_DIR + "/sdk/include -Wl,-z,nodelete '-DMISDEED=\"" + name + "\"' '-DTICKS=\"" +
      (folder / (name + ".ticks")).string() + "\"' " + source + " " + std::string(misdeed.flags) + " -o " +
      (folder / (name + ".so")).string() + " > " + log + " 2>&1";
  if (std::system(command.c_str()) == 0) return "";
  return default_env().read_file(log).value();
}

std::map<Use, Ended> use_plugins(const Path& pack, const std::vector<Use>& uses, const Path& mark) {
  std::map<Use, pid_t> running;
  std::map<Use, Ended> all;
  const Stopwatch watch;
  for (const Use& how : uses) {
    running[how] = ::fork();
    if (running[how] == 0) be_the_program(how, pack, mark, log_of(pack, how));
  }
  while (!running.empty()) {
    for (auto it = running.begin(); it != running.end();) {
      int status = 0;
      const bool is_late = watch.elapsed_s() > 300;
      if (is_late) ::kill(it->second, SIGKILL);
      if (::waitpid(it->second, &status, is_late ? 0 : WNOHANG) == 0) {
        ++it;
        continue;
      }
      Ended& ended = all[it->first];
      ended.code = is_late ? kKilled : WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      ended.output = default_env().read_file(log_of(pack, it->first)).value();
      it = running.erase(it);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return all;
}

}  // namespace mortise::test
