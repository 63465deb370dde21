// The head needs memory for one chunk in addition to its inputs, outputs and the weight's gradient, whatever the number
// of tokens and the size of the vocabulary. The test counts the bytes that it allocates. `./dev bench head` measures
// the same at full size.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "model/head/full_kl.h"
#include "support/counting_allocator.h"
#include "support/counting_new.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

constexpr int64_t kWidth = 8;
// So much that the larger vocabulary gives a chunk more than its least number of tokens, the smaller one not the most.
constexpr HeadOptions kOptions{.chunk_bytes = 17 << 19};

struct Size {
  int64_t tokens, vocab;
};
constexpr Size kSizes[] = {{1024, 4096}, {4096, 4096}, {1024, 16384}};

struct HeadInputs {
  explicit HeadInputs(const Size& size)
      : hidden(random_tensor({size.tokens, kWidth}, 1, at::kFloat)),
        weight(random_tensor({size.vocab, kWidth}, 2, at::kFloat)),
        targets(at::full({size.tokens}, 7, at::kLong)),
        grad(at::full({size.tokens}, 1e-3, at::kFloat)),
        d_hidden(at::zeros_like(hidden)),
        d_weight(at::zeros_like(weight)),
        token_weight(static_cast<size_t>(size.tokens), 1e-3) {}
  at::Tensor hidden, weight, targets, grad, d_hidden, d_weight;
  std::vector<double> token_weight;
};

void one_pass(const HeadInputs& in) {
  const auto loss = [](const HeadChunk& chunk) {
    std::fill(chunk.grad_log_prob.begin(), chunk.grad_log_prob.end(), 1e-3);
  };
  head_one_pass(in.hidden, in.weight, in.targets, 1.0, EntropyUse::kNone, loss, in.d_hidden, in.d_weight, kOptions);
}

void one_pass_with_entropy(const HeadInputs& in) {
  const auto loss = [](const HeadChunk& chunk) {
    std::fill(chunk.grad_entropy.begin(), chunk.grad_entropy.end(), 1e-3);
  };
  head_one_pass(in.hidden, in.weight, in.targets, 1.0, EntropyUse::kGradient, loss, in.d_hidden, in.d_weight, kOptions);
}

void two_passes(const HeadInputs& in) {
  const LogProbs first = head_log_prob(in.hidden, in.weight, in.targets, 1.0, false, kOptions);
  head_backward(in.hidden, in.weight, in.targets, 1.0, in.grad, {}, in.d_hidden, in.d_weight, first.norms_R, kOptions);
}

void full_kl(const HeadInputs& in) {
  head_full_kl({in.hidden, in.weight}, {in.hidden, in.weight}, 1.0, in.token_weight, in.d_hidden, in.d_weight,
               kOptions);
}

double extra_bytes(void (*pass)(const HeadInputs&), const Size& size) {
  CountingAllocator& tensors = CountingAllocator::install();
  const HeadInputs in(size);
  tensors.reset_peak();
  CountingNew::reset_peak();
  const int64_t before = tensors.bytes() + CountingNew::bytes();
  pass(in);
  return static_cast<double>(tensors.peak() + CountingNew::peak() - before);
}

struct Pass {
  const char* name;
  void (*run)(const HeadInputs&);
};

TEST(HeadMemory, IsOneChunkForAnyNumberOfTokensAndAnyVocabulary) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);  // how many workers hold scratch at the same time is then known
  for (const Pass& pass : {Pass{"one pass", one_pass},
                           {"one pass, entropy", one_pass_with_entropy},
                           {"two passes", two_passes},
                           {"full KL", full_kl}}) {
    double least = 1e300, most = 0.0;
    for (const Size& size : kSizes) {
      const double extra = extra_bytes(pass.run, size);
      least = std::min(least, extra);
      most = std::max(most, extra);
    }
    EXPECT_LE(most / least, 1.1) << pass.name << ": " << least << " to " << most << " bytes";
    EXPECT_LE(most, 1.05 * static_cast<double>(kOptions.chunk_bytes)) << pass.name;
    EXPECT_GE(least, 0.5 * static_cast<double>(kOptions.chunk_bytes)) << pass.name << ": are all bytes counted?";
  }
  at::set_num_threads(num_threads);
}

// What a dry run says about it.
TEST(HeadMemory, IsWhatTheEstimateSays) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const Size& size : {Size{100, 3000}, {1024, 16384}}) {
    const auto near = [&](void (*pass)(const HeadInputs&), int64_t estimate) {
      const double extra = extra_bytes(pass, size);
      EXPECT_LE(extra, 1.05 * static_cast<double>(estimate)) << size.tokens << " tokens";
      EXPECT_GE(extra, 0.9 * static_cast<double>(estimate)) << size.tokens << " tokens";
    };
    near(one_pass, head_bytes(size.tokens, kWidth, size.vocab, 4, kOptions));
    near(full_kl, full_kl_bytes(size.tokens, kWidth, size.vocab, 4, size.vocab, kOptions));
  }
  at::set_num_threads(num_threads);
}

}  // namespace
}  // namespace mortise
