// The fused head: its memory for numbers of tokens and vocabularies, and its time next to plain torch, in one run.
//
//   bench_head [memory|time|windows|all] [rounds]
// memory: what a pass (one-pass and two-pass, gradients included) takes on top of its inputs, outputs and the weight's
// gradient: the peak of the process's resident memory (VmHWM, reset before each pass) less what it held. Width 32: the
// head's own memory has nothing to do with it beyond the parts of d_hidden.
// time: hidden 896, vocabulary 151,936, 4,096 tokens: log-probs and both gradients, by log_softmax and autograd over
// all logits, by the head in one pass and in two; interleaved, minima over the rounds. Threads: OMP_NUM_THREADS,
// else 2.
// windows: one pass over a head of 512 MiB at once, and by windows of 32 MiB as trainer.deterministic takes it (head_windows.h);
// for a narrow head, whose windows have four blocks of columns, and a wide one, whose windows have one.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "foundation/base/memory.h"
#include "foundation/base/rng.h"
#include "measure.h"
#include "model/head/log_prob_head.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

struct Inputs {
  at::Tensor hidden, weight, targets, d_hidden, d_weight, grad;
};

// Writes every page, so that none counts later.
Inputs make_inputs(int64_t tokens, int64_t width, int64_t vocab) {
  Inputs in;
  const auto fill = [](const at::Tensor& out, uint64_t seed, float scale) {
    float* data = out.mutable_data_ptr<float>();
    at::parallel_for(0, out.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      RandomStream stream({seed, RandomPurpose::kTest, static_cast<uint64_t>(begin), 0, 0});
      for (int64_t i = begin; i < end; ++i) data[i] = scale * static_cast<float>(stream.next_double() - 0.5);
    });
  };
  in.hidden = at::empty({tokens, width}, at::kFloat);
  in.weight = at::empty({vocab, width}, at::kFloat);
  fill(in.hidden, 1, 2.0F);
  fill(in.weight, 2, 0.2F);
  in.targets = at::empty({tokens}, at::kLong);
  RandomStream stream({3, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t t = 0; t < tokens; ++t)
    in.targets.mutable_data_ptr<int64_t>()[t] = static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(vocab)));
  in.d_hidden = at::zeros_like(in.hidden);
  in.d_weight = at::zeros_like(in.weight);
  in.d_hidden.add_(1.0);
  in.d_weight.add_(1.0);
  in.grad = at::full({tokens}, 1e-3, at::kFloat);
  return in;
}

void one_pass(const Inputs& in, const HeadOptions& options) {
  const auto loss = [](const HeadChunk& chunk) {
    std::fill(chunk.grad_log_prob.begin(), chunk.grad_log_prob.end(), 1e-3);
  };
  head_one_pass(in.hidden, in.weight, in.targets, 1.0, EntropyUse::kNone, loss, in.d_hidden, in.d_weight, options);
}

void whole(const Inputs& in) { one_pass(in, {}); }

void two_passes(const Inputs& in) {
  const LogProbs first = head_log_prob(in.hidden, in.weight, in.targets, 1.0, false);
  head_backward(in.hidden, in.weight, in.targets, 1.0, in.grad, {}, in.d_hidden, in.d_weight, first.norms_R);
}

void plain(const Inputs& in) {
  const at::Tensor hidden = in.hidden.detach().set_requires_grad(true);
  const at::Tensor weight = in.weight.detach().set_requires_grad(true);
  const at::Tensor log_p = at::log_softmax(at::linear(hidden, weight), -1);
  const at::Tensor log_prob = log_p.gather(1, in.targets.unsqueeze(1)).squeeze(1);
  (log_prob * in.grad).sum().backward();
}

template <class Pass>
double extra_mib(const Inputs& in, const Pass& pass) {
  const double before = resident_memory_gib();
  if (!reset_peak_memory() || before == 0.0) {
    std::fprintf(stderr, "this system does not let a process reset its peak memory (/proc/self/clear_refs)\n");
    std::exit(1);
  }
  pass(in);
  return (peak_memory_gib() - before) * 1024.0;
}

void bench_memory() {
  constexpr int64_t kWidth = 32;
  {  // libraries and thread pools take what they keep
    const Inputs warm = make_inputs(2048, kWidth, 32768);
    whole(warm);
    two_passes(warm);
  }
  for (const char* mode : {"one pass", "two passes"}) {
    double least = 1e300, most = 0.0;
    for (const int64_t vocab : {32768, 151936}) {
      for (const int64_t tokens : {1024, 4096, 65536}) {
        if (tokens == 4096 && vocab == 151936) continue;
        const Inputs in = make_inputs(tokens, kWidth, vocab);
        const bool single = std::strcmp(mode, "one pass") == 0;
        const double extra = extra_mib(in, single ? whole : two_passes);
        least = std::min(least, extra);
        most = std::max(most, extra);
        std::printf(
            "{\"head_memory\":\"%s\",\"tokens\":%ld,\"vocab\":%ld,\"extra_mib\":%.1f,\"all_logits_mib\":%.1f}\n", mode,
            static_cast<long>(tokens), static_cast<long>(vocab), extra,
            static_cast<double>(tokens * vocab * 4) / (1 << 20));
        std::fflush(stdout);
      }
    }
    std::printf("head memory, %s: most over least %.3f (wanted: at most 1.1)\n", mode, most / least);
  }
}

void bench_time(int rounds) {
  constexpr int64_t kTokens = 4096, kWidth = 896, kVocab = 151936;
  {
    const Inputs warm = make_inputs(256, kWidth, 8192);
    plain(warm);
    whole(warm);
    two_passes(warm);
  }
  const Inputs in = make_inputs(kTokens, kWidth, kVocab);
  double best[3] = {1e9, 1e9, 1e9};
  void (*const passes[3])(const Inputs&) = {plain, whole, two_passes};
  const char* const names[3] = {"plain torch", "one pass", "two passes"};
  for (int round = 0; round < rounds; ++round) {
    for (int p = 0; p < 3; ++p) {
      const double start = clock_seconds();
      passes[p](in);
      const double taken = clock_seconds() - start;
      best[p] = std::min(best[p], taken);
      std::printf("{\"head_time\":\"%s\",\"round\":%d,\"threads\":%d,\"seconds\":%.3f}\n", names[p], round + 1,
                  at::get_num_threads(), taken);
      std::fflush(stdout);
    }
  }
  std::printf("head time / plain torch: one pass %.3f (wanted: at most 1.1), two passes %.3f (wanted: at most 1.3)\n",
              best[1] / best[0], best[2] / best[0]);
}

void bench_windows(int rounds) {
  constexpr int64_t kTokens = 1024, kHeadNumbers = int64_t{128} << 20, kWindowBytes = int64_t{32} << 20;
  for (const int64_t width : {896, 4096}) {
    const Inputs in = make_inputs(kTokens, width, kHeadNumbers / width);
    double best[2] = {1e9, 1e9};
    for (int round = 0; round < rounds; ++round) {
      for (const int windows : {0, 1}) {
        const double start = clock_seconds();
        one_pass(in, {.window_bytes = windows * kWindowBytes});
        best[windows] = std::min(best[windows], clock_seconds() - start);
      }
    }
    std::printf("{\"head_windows\":%ld,\"threads\":%d,\"at_once_s\":%.3f,\"windows_s\":%.3f,\"ratio\":%.3f}\n",
                static_cast<long>(width), at::get_num_threads(), best[0], best[1], best[1] / best[0]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(2);
  const std::string what = argc > 1 ? argv[1] : "all";
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  if (what != "memory" && what != "time" && what != "windows" && what != "all") {
    std::fprintf(stderr, "usage: bench_head [memory|time|windows|all] [rounds]\n");
    return 2;
  }
  if (what == "memory" || what == "all") bench_memory();
  if (what == "time" || what == "all") bench_time(rounds);
  if (what == "windows" || what == "all") bench_windows(rounds);
  return 0;
}
