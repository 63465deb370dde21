// Every built-in policy loss with its gradient, through its plugin and as eager torch writes it, in one run on one
// core.
//
//   bench_losses [rounds] [loss ...]
// 4,096 rows of 1,024 tokens, the last fifth of some rows masked. First the numbers: loss and gradient of both sides
// must agree, or nothing is timed. Then both in turns, minima over the rounds; next to them the memory time, which is
// one core's pass over the same inputs and outputs. Losses of single tokens are wanted within 4 memory times, and all
// faster than eager torch. The plugin's time is that of the host's call: checks of sizes, zeroed outputs and the search
// for numbers that are not finite included.
//
// Last the price of isolation: one loss in the trainer's process and in a worker, for batches of all sizes; and what the
// guards cost that the trainer's process puts around every call.
#include <fmt/core.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>

#include "eager_losses.h"
#include "foundation/base/clock.h"
#include "foundation/base/rng.h"
#include "foundation/formats/json.h"
#include "foundation/metrics/registry.h"
#include "memory_pass.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/process_watch.h"
#include "plugin/host/registry.h"
#include "plugin/host/running_code.h"
#include "plugin/worker/isolated.h"

namespace mortise {
namespace {

constexpr int64_t kRows = 4096, kLength = 1024, kTokens = kRows * kLength, kRowsPerPrompt = 8;

std::span<const float> floats(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<size_t>(x.numel())};
}

// The same batch for all.
struct Batch {
  EagerBatch eager{at::empty({kRows, kLength}, at::kFloat), at::empty({kRows, kLength}, at::kFloat),
                   at::empty({kRows, kLength}, at::kFloat), at::empty({kRows, kLength}, at::kFloat),
                   at::empty({kRows, kLength}, at::kFloat), kRowsPerPrompt};
  at::Tensor weight = at::empty({kRows, kLength}, at::kFloat);
  at::Tensor response_mask = at::empty({kRows, kLength}, at::kByte);
  std::vector<int64_t> row_offsets, row_id, group_index;
  at::Tensor loss = at::empty({kRows, kLength}, at::kFloat), grad = at::empty({kRows, kLength}, at::kFloat);

  const uint8_t* mask() const { return response_mask.const_data_ptr<uint8_t>(); }

  Batch() {
    float* lp = eager.log_prob.mutable_data_ptr<float>();
    float* old = eager.old_log_prob.mutable_data_ptr<float>();
    float* rollout = eager.rollout_log_prob.mutable_data_ptr<float>();
    float* advantage = eager.advantages.mutable_data_ptr<float>();
    float* on = eager.mask.mutable_data_ptr<float>();
    uint8_t* mask = response_mask.mutable_data_ptr<uint8_t>();
    RandomStream stream({1, RandomPurpose::kTest, 0, 0, 0});
    const auto uniform = [&](double low, double high) {
      return static_cast<float>(low + (high - low) * stream.next_double());
    };
    for (int64_t row = 0; row < kRows; ++row) {
      const float a = uniform(-1.5, 1.5);
      const auto length = static_cast<int64_t>(uniform(0.8 * kLength, 1.2 * kLength));  // half of the rows are full
      for (int64_t t = row * kLength; t < (row + 1) * kLength; ++t) {
        const bool active = t - row * kLength < length;
        old[t] = uniform(-4.0, -0.3);
        lp[t] = old[t] + uniform(-0.29, 0.29);
        rollout[t] = old[t] + uniform(-0.1, 0.1);
        advantage[t] = a;
        on[t] = active ? 1.0F : 0.0F;
        mask[t] = active ? 1 : 0;
      }
    }
    weight.copy_(eager.mask / eager.mask.sum());
    row_id.resize(kRows);
    std::iota(row_id.begin(), row_id.end(), 0);
    for (int64_t row = 0; row <= kRows; ++row) row_offsets.push_back(row * kLength);
    for (int64_t row = 0; row < kRows; ++row) group_index.push_back(row / kRowsPerPrompt);
  }
};

// The first rows of the batch.
StepView view_of(const Batch& batch, int64_t rows) {
  const auto num = static_cast<size_t>(rows), tokens = static_cast<size_t>(rows * kLength);
  StepView in;
  in.layout = {std::span(batch.row_offsets).first(num + 1), std::span(batch.row_id).first(num),
               std::span(batch.group_index).first(num)};
  in.set<column::LogProb>(floats(batch.eager.log_prob).first(tokens));
  in.set<column::OldLogProb>(floats(batch.eager.old_log_prob).first(tokens));
  in.set<column::Advantages>(floats(batch.eager.advantages).first(tokens));
  in.set<column::ResponseMask>({batch.mask(), tokens});
  in.set<column::Weight>(floats(batch.weight).first(tokens));
  in.set<column::RolloutLogProb>(floats(batch.eager.rollout_log_prob).first(tokens));
  return in;
}

// The seconds of one call, as the mean over `calls`.
Result<double> plugin_seconds(PolicyLoss& plugin, Batch& batch, int64_t rows = kRows, int calls = 1) {
  const StepView in = view_of(batch, rows);
  const auto tokens = static_cast<size_t>(rows * kLength);
  PolicyLossOutput out;
  out.loss = {batch.loss.mutable_data_ptr<float>(), tokens};
  out.grad_log_prob = {batch.grad.mutable_data_ptr<float>(), tokens};
  MetricSet metrics;
  const Stopwatch watch;
  for (int call = 0; call < calls; ++call) TRY(plugin.compute(in, out, &metrics));
  return watch.elapsed_s() / calls;
}

struct EagerResult {
  at::Tensor loss, grad;
  double seconds = 0;
};
EagerResult run_eager(const EagerLoss& eager, const Batch& batch) {
  EagerBatch in = batch.eager;
  in.log_prob = in.log_prob.detach().set_requires_grad(true);
  EagerResult result;
  const Stopwatch watch;
  const at::Tensor loss = eager.loss(in) * in.mask;
  (loss * batch.weight).sum().backward();
  result.seconds = watch.elapsed_s();
  result.loss = loss.detach();
  result.grad = in.log_prob.grad();
  return result;
}

double memory_seconds(Batch& batch) {
  const Stopwatch watch;
  memory_pass(floats(batch.eager.log_prob).data(), floats(batch.eager.old_log_prob).data(),
              floats(batch.eager.advantages).data(), floats(batch.weight).data(), batch.mask(),
              batch.loss.mutable_data_ptr<float>(), batch.grad.mutable_data_ptr<float>(), kTokens);
  return watch.elapsed_s();
}

// Sum of |a - b| over sum of |b|.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double apart = (a - b).abs().sum(at::kDouble).item<double>(), size = b.abs().sum(at::kDouble).item<double>();
  return size > 0 ? apart / size : 1.0;
}

struct Tally {
  bool all_faster = true, all_within = true;
};

Result<> bench(PluginRegistry& registry, const EagerLoss& eager, Batch& batch, int rounds, Tally& tally) {
  Json params = Json::object();
  if (eager.name == "dro") params["dro_beta"] = 0.3;
  PolicyLoss plugin = TRY(PolicyLoss::create(registry, eager.name, params, RunKey{}));
  TRY(plugin_seconds(plugin, batch));
  const EagerResult theirs = run_eager(eager, batch);
  const double off = std::max(difference(batch.loss, theirs.loss), difference(batch.grad, theirs.grad));
  if (!(off <= eager.tolerance)) {
    return Error{ErrorKind::kInternal,
                 fmt::format("{}: the numbers differ by {}, allowed is {}", eager.name, off, eager.tolerance),
                 "bench_losses",
                 fmt::format("compare plugins/policy_loss/{}.cpp with apps/bench/eager_losses.cpp", eager.name)};
  }
  double ours = 1e9, torch = 1e9, memory = 1e9;
  for (int round = 0; round < rounds; ++round) {
    memory = std::min(memory, memory_seconds(batch));
    ours = std::min(ours, TRY(plugin_seconds(plugin, batch)));
    torch = std::min(torch, run_eager(eager, batch).seconds);
  }
  const bool local = plugin.coupling() == Coupling::kToken;
  std::printf("%-12s %-7s %9.2f %9.2f %9.2f %9.1fx %9.2f%s %10.1e\n", eager.name.c_str(), local ? "token" : "coupled",
              ours * 1e3, memory * 1e3, torch * 1e3, torch / ours, ours / memory,
              local && ours > 4 * memory ? "!" : " ", off);
  std::fflush(stdout);
  tally.all_faster = tally.all_faster && ours < torch;
  tally.all_within = tally.all_within && (!local || ours <= 4 * memory);
  return {};
}

int calls_for(int64_t rows) { return static_cast<int>(std::max<int64_t>(1, 1024 / rows)); }

// Whether both give the same bits.
Result<bool> agree(PolicyLoss& one, PolicyLoss& other, Batch& batch, int64_t rows) {
  const auto bytes = static_cast<size_t>(rows * kLength) * sizeof(float);
  TRY(plugin_seconds(one, batch, rows));
  const at::Tensor loss = batch.loss.clone(), grad = batch.grad.clone();
  TRY(plugin_seconds(other, batch, rows));
  return std::memcmp(loss.const_data_ptr(), batch.loss.const_data_ptr(), bytes) == 0 &&
         std::memcmp(grad.const_data_ptr(), batch.grad.const_data_ptr(), bytes) == 0;
}

constexpr const char* kIsolated = "vanilla";

// A plugin as the trainer's process guards it, whose guards are installed for the rest of the program. Prints what they
// cost.
Result<PolicyLoss> bench_guards(PluginRegistry& registry, Batch& batch, int rounds) {
  constexpr int kCalls = 10'000;
  PolicyLoss bare = TRY(PolicyLoss::create(registry, kIsolated, Json::object(), RunKey{}));
  double without = 1e9, with = 1e9;
  for (int round = 0; round < rounds; ++round) without = std::min(without, TRY(plugin_seconds(bare, batch, 1, kCalls)));
  install_crash_reports();
  install_process_watch();
  RunKey key;
  key.call_timeout_ms = 3'600'000;
  PolicyLoss here = TRY(PolicyLoss::create(registry, kIsolated, Json::object(), key));
  for (int round = 0; round < rounds; ++round) with = std::min(with, TRY(plugin_seconds(here, batch, 1, kCalls)));
  std::printf(
      "\nthe guards around a call in the trainer's process (signals, locale, folder, descriptors, deadline): "
      "%.1f us\n",
      (with - without) * 1e6);
  return here;
}

Result<> bench_isolation(PluginRegistry& registry, Batch& batch, int rounds) {
  PolicyLoss here = TRY(bench_guards(registry, batch, rounds));
  IsolationOptions options;
  options.mode = Isolation::kProcess;
  options.limits.network = options.limits.write_files = options.limits.start_programs = false;
  PolicyLoss apart =
      TRY(PolicyLoss::create(registry, kIsolated, Json::object(), here.instance().key(), isolated(options)));
  std::printf("\n%s in a worker (isolation = \"process\"), us of a call\n%10s %12s %12s %12s %12s\n", kIsolated,
              "tokens", "in process", "isolated", "isolated -", "isolated/");
  std::printf("%10s %12s %12s %12s %12s\n", "", "", "", "in process", "in process");
  for (int64_t rows = 1; rows <= kRows; rows *= 8) {
    if (!TRY(agree(here, apart, batch, rows)))
      return Error{ErrorKind::kInternal, "isolation changes the bits", "bench_losses", ""};
    double in_process = 1e9, in_worker = 1e9;
    for (int round = 0; round < rounds; ++round) {
      in_process = std::min(in_process, TRY(plugin_seconds(here, batch, rows, calls_for(rows))));
      in_worker = std::min(in_worker, TRY(plugin_seconds(apart, batch, rows, calls_for(rows))));
    }
    std::printf("%10lld %12.1f %12.1f %12.1f %11.2fx\n", static_cast<long long>(rows * kLength), in_process * 1e6,
                in_worker * 1e6, (in_worker - in_process) * 1e6, in_worker / in_process);
    std::fflush(stdout);
  }
  return {};
}

Result<> run(int rounds, const std::vector<std::string>& names) {
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  set_plugin_threads(1);
  at::set_num_threads(1);
  Batch batch;
  std::printf("%lld tokens, one core, minima of %d rounds; ms of loss and gradient\n", static_cast<long long>(kTokens),
              rounds);
  std::printf("%-12s %-7s %9s %9s %9s %10s %10s %10s\n", "loss", "", "plugin", "memory", "eager", "eager/", "plugin/",
              "numbers");
  std::printf("%-12s %-7s %9s %9s %9s %10s %10s %10s\n", "", "", "", "", "torch", "plugin", "memory", "apart");
  Tally tally;
  for (const EagerLoss& eager : eager_losses()) {
    if (!names.empty() && std::find(names.begin(), names.end(), eager.name) == names.end()) continue;
    TRY(bench(registry, eager, batch, rounds, tally));
  }
  std::printf("faster than eager torch: %s; losses of single tokens within 4 memory times: %s\n",
              tally.all_faster ? "all" : "not all", tally.all_within ? "all" : "not all");
  return bench_isolation(registry, batch, rounds);
}

}  // namespace
}  // namespace mortise

int main(int argc, char** argv) {
  int rounds = 5, first = 1;
  if (argc > 1 && std::atoi(argv[1]) > 0) rounds = std::atoi(argv[first++]);
  const std::vector<std::string> names(argv + first, argv + argc);
  for (const std::string& name : names) {
    const std::vector<mortise::EagerLoss> known = mortise::eager_losses();
    if (std::none_of(known.begin(), known.end(), [&](const auto& loss) { return loss.name == name; })) {
      std::fprintf(stderr, "bench_losses: there is no loss '%s'\nusage: bench_losses [rounds] [loss ...]\n",
                   name.c_str());
      return 2;
    }
  }
  const auto done = mortise::run(rounds, names);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return static_cast<int>(done.error().kind);
}
