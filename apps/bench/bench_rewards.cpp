// The cost of rows that crash and hang for a reward in workers: rows per second without faults, with 1% crashes, and
// with 0.1% hangs as well, interleaved. Prints medians and the loss. It reports the time spent waiting for hangs
// separately, and how soon the row after a crash is scored.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "foundation/base/clock.h"
#include "plugin/worker/reward_function.h"

namespace mortise {
namespace {

struct Setting {
  int64_t rows = 10'000;
  int64_t work_us = 500;
  int64_t runs = 3;
  int64_t workers = 2;
  int64_t row_timeout_ms = 200;
};

RewardBatch make_rows(int64_t count, bool crashes, bool hangs) {
  RewardBatch batch;
  batch.num_rows = count;
  const std::string text(400, 'x');
  for (int64_t i = 0; i < count; ++i) {
    const bool crash = crashes && i % 100 == 37;
    const bool hang = hangs && i % 1000 == 551;
    batch.completion.append(crash ? "crash" : hang ? "hang" : text);
    batch.row_id.push_back(i);
  }
  return batch;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<double> seconds_of(RewardFunction& reward, const Setting& setting, const RewardBatch& rows, size_t faults) {
  const Stopwatch watch;
  const RewardOutput out = TRY(reward.score({rows.num_rows, 1, 600'000, setting.row_timeout_ms}, rows, nullptr));
  if (out.failed_rows.size() == faults) return watch.elapsed_s();
  return Error{ErrorKind::kReward, fmt::format("{} rows failed, not {}", out.failed_rows.size(), faults),
               "bench_rewards", ""};
}

// Two rows, of which the first crashes, against two that do not: what the crash and the change of workers add. It is
// promised to be at most 200 ms.
Result<> time_replacements(PluginRegistry& registry, IsolationOptions isolation) {
  constexpr int kRounds = 31;
  isolation.num_workers = 1;
  const auto reward = TRY(make_reward_function(registry, "bench.faults/busy", {{"work_us", 1}}, {}, isolation));
  RewardBatch crashing, good;
  for (const char* text : {"crash", "good"}) {
    crashing.completion.append(text);
    good.completion.append("good");
    crashing.row_id.push_back(crashing.num_rows++);
    good.row_id.push_back(good.num_rows++);
  }
  const Setting patient{.row_timeout_ms = 60'000};
  std::vector<double> added_ms;
  for (int round = 0; round < kRounds; ++round) {
    const double without = TRY(seconds_of(*reward, patient, good, 0));
    added_ms.push_back(1e3 * (TRY(seconds_of(*reward, patient, crashing, 1)) - without));
  }
  std::printf(
      "a crash delays the next row of its worker by %.1f ms (median of %d; slowest %.1f ms; promised: 200 ms)\n",
      median(added_ms), kRounds, *std::max_element(added_ms.begin(), added_ms.end()));
  return {};
}

Result<> run(const Setting& setting) {
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.paths = {std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib/mortise/bench_packs"};
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  IsolationOptions isolation;
  isolation.mode = Isolation::kProcess;
  isolation.num_workers = static_cast<int>(setting.workers);
  const auto reward =
      TRY(make_reward_function(registry, "bench.faults/busy", {{"work_us", setting.work_us}}, {}, isolation));
  const RewardBatch good = make_rows(setting.rows, false, false), crashing = make_rows(setting.rows, true, false),
                    hanging = make_rows(setting.rows, true, true);
  const auto crashes = static_cast<size_t>((setting.rows + 62) / 100);
  const auto hangs = static_cast<size_t>((setting.rows + 448) / 1000);
  std::vector<double> without, with_crashes, with_both;
  for (int64_t i = 0; i < setting.runs; ++i) {
    without.push_back(TRY(seconds_of(*reward, setting, good, 0)));
    with_crashes.push_back(TRY(seconds_of(*reward, setting, crashing, crashes)));
    with_both.push_back(TRY(seconds_of(*reward, setting, hanging, crashes + hangs)));
  }
  const auto rows = static_cast<double>(setting.rows);
  const double base = median(without), crash = median(with_crashes);
  // Each hang keeps one worker busy for its limit and the grace of 50 ms. The others continue.
  const double waited = static_cast<double>(hangs) * static_cast<double>(setting.row_timeout_ms + 50) * 1e-3 /
                        static_cast<double>(setting.workers);
  const double both = median(with_both) - waited;
  std::printf("%lld rows of %lld us in %lld workers, medians of %lld\n", static_cast<long long>(setting.rows),
              static_cast<long long>(setting.work_us), static_cast<long long>(setting.workers),
              static_cast<long long>(setting.runs));
  std::printf("%-28s %10s %12s %8s\n", "", "seconds", "rows/s", "loss");
  std::printf("%-28s %10.3f %12.0f\n", "without faults", base, rows / base);
  std::printf("%-28s %10.3f %12.0f %7.1f%%\n", "1% crash", crash, rows / crash, 100 * (1 - base / crash));
  std::printf("%-28s %10.3f %12.0f %7.1f%%\n", "1% crash, 0.1% hang (aside)", both, rows / both,
              100 * (1 - base / both));
  std::printf("waiting for hangs, taken out: %.3f s\n", waited);
  return time_replacements(registry, isolation);
}

}  // namespace
}  // namespace mortise

int main(int argc, char** argv) {
  mortise::Setting setting;
  const std::pair<const char*, int64_t*> options[] = {{"--rows", &setting.rows},
                                                      {"--work-us", &setting.work_us},
                                                      {"--runs", &setting.runs},
                                                      {"--workers", &setting.workers},
                                                      {"--row-timeout-ms", &setting.row_timeout_ms}};
  for (int i = 1; i < argc; i += 2) {
    const auto* found = std::find_if(std::begin(options), std::end(options),
                                     [&](const auto& option) { return std::strcmp(argv[i], option.first) == 0; });
    if (found == std::end(options) || i + 1 == argc || std::atoll(argv[i + 1]) <= 0) {
      std::fprintf(stderr, "bench_rewards [--rows N] [--work-us N] [--runs N] [--workers N] [--row-timeout-ms N]\n");
      return 2;
    }
    *found->second = std::atoll(argv[i + 1]);
  }
  const auto done = mortise::run(setting);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return static_cast<int>(done.error().kind);
}
