// The same loss and the same reward in C++ and in Rust, through the same host, on one core: bench_languages [rounds].
//
// The loss has 4.2 M tokens, with its gradient, in double. The C++ layer computes several tokens at once, as the
// processor allows; MORTISE_SDK_CPU=baseline shows it without. The reward has 4,096 completions of 4 KiB. First both
// must give the same numbers (rewards: the same bits; losses: to 1e-6, since exp differs), or nothing is timed. Then
// both run in turns; the times are minima over the rounds.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "foundation/base/clock.h"
#include "foundation/base/rng.h"
#include "foundation/formats/json.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/registry.h"

namespace mortise {
namespace {

constexpr size_t kRows = 4096, kLength = 1024, kTokens = kRows * kLength, kTextBytes = 4096;

struct Tokens {
  std::vector<float> log_prob, old_log_prob, advantages, weight, loss, grad;
  std::vector<uint8_t> mask;
  std::vector<int64_t> row_offsets, row_id, group_index;

  Tokens() : weight(kTokens, 1.0F / kTokens), loss(kTokens), grad(kTokens), mask(kTokens, 1), row_id(kRows) {
    RandomStream stream({1, RandomPurpose::kTest, 0, 0, 0});
    const auto uniform = [&](double low, double high) {
      return static_cast<float>(low + (high - low) * stream.next_double());
    };
    for (size_t row = 0; row < kRows; ++row) {
      const float advantage = uniform(-1.5, 1.5);
      for (size_t t = 0; t < kLength; ++t) {
        old_log_prob.push_back(uniform(-4.0, -0.3));
        log_prob.push_back(old_log_prob.back() + uniform(-0.29, 0.29));
        advantages.push_back(advantage);
      }
    }
    std::iota(row_id.begin(), row_id.end(), 0);
    group_index = row_id;
    for (size_t row = 0; row <= kRows; ++row) row_offsets.push_back(static_cast<int64_t>(row * kLength));
  }
  [[nodiscard]] StepView view() const {
    StepView in;
    in.layout = {row_offsets, row_id, group_index};
    in.set<column::LogProb>(log_prob).set<column::OldLogProb>(old_log_prob).set<column::Advantages>(advantages);
    in.set<column::ResponseMask>(mask).set<column::Weight>(weight);
    return in;
  }
};

RewardBatch make_rows() {
  RandomStream stream({1, RandomPurpose::kTest, 0, 0, 0});
  RewardBatch rows;
  std::string text(kTextBytes, ' ');
  for (size_t row = 0; row < kRows; ++row) {
    for (char& c : text) c = static_cast<char>('a' + stream.next_below(26));
    rows.completion.append(text);
    rows.row_id.push_back(rows.num_rows);
    rows.group_index.push_back(rows.num_rows++);
  }
  return rows;
}

Error differ(const std::string& what) {
  return {ErrorKind::kInternal, what + " of both languages differ", "bench_languages",
          "compare apps/bench/packs/languages.cpp with apps/bench/packs/rust/src/lib.rs"};
}

Result<double> loss_seconds(PolicyLoss& plugin, Tokens& tokens) {
  const StepView in = tokens.view();
  MetricSet metrics;
  const Stopwatch watch;
  TRY(plugin.compute(in, {tokens.loss, tokens.grad, {}}, &metrics));
  return watch.elapsed_s();
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) apart += std::abs(a[i] - b[i]), size += std::abs(b[i]);
  return apart / size;
}

void print_times(const char* what, double cpp, double rust) {
  std::printf("%-40s %10.2f %10.2f %9.2fx\n", what, cpp * 1e3, rust * 1e3, rust / cpp);
  std::fflush(stdout);
}

Result<> bench_losses(PluginRegistry& registry, int rounds) {
  PolicyLoss cpp = TRY(PolicyLoss::create(registry, "bench.cpp/clip", Json::object(), RunKey{}));
  PolicyLoss rust = TRY(PolicyLoss::create(registry, "bench.rust/clip", Json::object(), RunKey{}));
  Tokens tokens;
  TRY(loss_seconds(cpp, tokens));
  const std::vector<float> loss = tokens.loss, grad = tokens.grad;
  TRY(loss_seconds(rust, tokens));
  if (!(distance(tokens.loss, loss) < 1e-6 && distance(tokens.grad, grad) < 1e-6)) return differ("the losses");
  double cpp_s = 1e9, rust_s = 1e9;
  for (int round = 0; round < rounds; ++round) {
    cpp_s = std::min(cpp_s, TRY(loss_seconds(cpp, tokens)));
    rust_s = std::min(rust_s, TRY(loss_seconds(rust, tokens)));
  }
  print_times("token loss, 4.2 M tokens, with gradient", cpp_s, rust_s);
  return {};
}

Result<> bench_rewards(PluginRegistry& registry, int rounds) {
  Reward cpp = TRY(Reward::create(registry, "bench.cpp/vowels", Json::object(), {}));
  Reward rust = TRY(Reward::create(registry, "bench.rust/vowels", Json::object(), {}));
  const RewardBatch rows = make_rows();
  const RewardOutput a = TRY(cpp.score(rows, nullptr)), b = TRY(rust.score(rows, nullptr));
  if (a.rewards != b.rewards) return differ("the rewards");
  const auto seconds = [&](Reward& reward) -> Result<double> {
    const Stopwatch watch;
    TRY(reward.score(rows, nullptr));
    return watch.elapsed_s();
  };
  double cpp_s = 1e9, rust_s = 1e9;
  for (int round = 0; round < rounds; ++round) {
    cpp_s = std::min(cpp_s, TRY(seconds(cpp)));
    rust_s = std::min(rust_s, TRY(seconds(rust)));
  }
  print_times("reward, 4,096 completions of 4 KiB", cpp_s, rust_s);
  return {};
}

Result<> run(int rounds) {
  const Path packs = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib/mortise/bench_packs";
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.files = {packs / "bench.cpp.so", packs / "bench.rust.so"};
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  set_plugin_threads(1);
  std::printf("one core, minima of %d rounds; ms\n%-40s %10s %10s %10s\n", rounds, "", "C++", "Rust", "Rust/C++");
  TRY(bench_losses(registry, rounds));
  return bench_rewards(registry, rounds);
}

}  // namespace
}  // namespace mortise

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (rounds < 1 || argc > 2) {
    std::fprintf(stderr, "usage: bench_languages [rounds]\n");
    return 2;
  }
  const auto done = mortise::run(rounds);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return static_cast<int>(done.error().kind);
}
