// A rank as a process: joins its group, runs steps of collectives, and ends as `mortise train` does. For failures_test.
//
//   rank_program STEPS SLOW_RANK SLOW_MS: the rank SLOW_RANK sleeps so long in 'rollout' of each step. STEPS 0: for ever.
// FAIL_RANK in the environment: that rank ends with an error of its own in step 3. GROUP_SIZE: so many neighbours exchange
// numbers in each step, and SLOW_RANK sleeps before that, in 'layers', from step 2 on; the others say when they begin.
#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "dist/join.h"
#include "foundation/base/cpus.h"

namespace mortise {
namespace {

Result<> run_step(Communicator& ranks, int64_t step, int slow_rank, int slow_ms) {
  ranks.enter("rollout", step);
  if (ranks.rank() == slow_rank && std::getenv("GROUP_SIZE") == nullptr)
    std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
  if (const char* failing = std::getenv("FAIL_RANK");
      failing != nullptr && step == 3 && ranks.rank() == std::atoi(failing))
    return Error{ErrorKind::kData, "row 7 has no prompt", "data.jsonl:7", {}};
  if (const char* size = std::getenv("GROUP_SIZE"); size != nullptr) {
    ranks.enter("layers", step);
    if (ranks.rank() == slow_rank && step > 1) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
    Communicator& group = *TRY(ranks.neighbours(std::atoi(size)));
    fmt::print("exchanges in step {}\n", step);
    std::fflush(stdout);
    const at::Tensor sent = at::full({group.size() * 1000}, ranks.rank(), at::kDouble);
    const at::Tensor received = at::full({group.size() * 1000}, -1.0, at::kDouble);
    const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), 1000);
    TRY(group.all_to_all(sent, sizes, received, sizes, "sequence parallel"));
    if (received[-1].item<double>() != ranks.rank() - group.rank() + group.size() - 1.0)
      return Error{ErrorKind::kInternal, "wrong numbers of the group", {}, {}};
  }
  const at::Tensor gradient = at::full({10007}, ranks.rank() + 1.0, at::kDouble);
  auto pending = TRY(ranks.start_all_reduce_sum(gradient, "gradients"));
  const auto texts = TRY(ranks.exchange(std::string(1000, 'x'), "metrics"));
  TRY(pending->wait());
  const double expected = ranks.size() * (ranks.size() + 1) / 2.0;
  if (gradient[10006].item<double>() != expected || texts.size() != static_cast<size_t>(ranks.size()))
    return Error{ErrorKind::kInternal, "wrong numbers", {}, {}};
  return ranks.check("step");
}

Result<> run(int steps, int slow_rank, int slow_ms) {
  RanksConfig config;
  config.join_timeout = std::chrono::seconds(300);
  if (const char* answer = std::getenv("ANSWER_MS"))
    config.answer_timeout = std::chrono::milliseconds(std::atoi(answer));
  if (const char* wait = std::getenv("WAIT_MS")) config.wait_timeout = std::chrono::milliseconds(std::atoi(wait));
  if (const char* file = std::getenv("STORE_FILE")) config.store_file = file;
  if (const char* join = std::getenv("JOIN_MS")) config.join_timeout = std::chrono::milliseconds(std::atoi(join));
  const auto ranks = TRY(join_ranks(config));
  fmt::print("joined {} of {}, processors: {}\n", ranks->rank(), ranks->size(), own_cpus());
  std::fflush(stdout);
  for (int64_t step = 1; steps == 0 || step <= steps; ++step) {
    const Result<> done = run_step(*ranks, step, slow_rank, slow_ms);
    if (done.ok()) continue;
    ranks->fail(done.error());
    return done.error();
  }
  return ranks->leave();
}

}  // namespace
}  // namespace mortise

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // as mortise does
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  const int slow_rank = argc > 2 ? std::atoi(argv[2]) : -1;
  const int slow_ms = argc > 3 ? std::atoi(argv[3]) : 0;
  const mortise::Result<> done = mortise::run(steps, slow_rank, slow_ms);
  if (done.ok()) {
    fmt::print("done\n");
    return 0;
  }
  fmt::print("error: {}\n", done.error().to_string());
  return static_cast<int>(done.error().kind);
}
