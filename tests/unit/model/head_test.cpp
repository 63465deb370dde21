// The fused head against ATen over all logits: values, gradients, one-pass mode, extremes.
#include "model/head/log_prob_head.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <utility>

#include "model/head/row_softmax.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

struct Case {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor targets;
  at::Tensor g;
  at::Tensor gh;
};

Case make_case(int64_t rows, int64_t width, int64_t vocab, at::ScalarType dtype, double scale = 1.0) {
  Case c{random_tensor({rows, width}, 1, dtype, scale), random_tensor({vocab, width}, 2, dtype, scale),
         at::empty({rows}, at::kLong), random_tensor({rows}, 3, dtype), random_tensor({rows}, 4, dtype)};
  RandomStream stream({5, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t r = 0; r < rows; ++r) {
    c.targets.mutable_data_ptr<int64_t>()[r] = static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(vocab)));
  }
  return c;
}

struct Gradients {
  LogProbs out;
  at::Tensor hidden;
  at::Tensor weight;
};

Gradients judge(const Case& c, double temperature, bool use_entropy) {
  const at::Tensor hidden = c.hidden.to(at::kDouble).clone().requires_grad_(true);
  const at::Tensor weight = c.weight.to(at::kDouble).clone().requires_grad_(true);
  Gradients result;
  result.out = head_log_prob_plain(hidden, weight, c.targets, temperature);
  at::Tensor loss = (result.out.log_prob_R * c.g.to(at::kDouble)).sum();
  if (use_entropy) loss = loss + (result.out.entropy_R * c.gh.to(at::kDouble)).sum();
  loss.backward();
  result.hidden = hidden.grad();
  result.weight = weight.grad();
  return result;
}

// Vocabularies around the block of 2,048 columns, rows around the chunk of 64.
struct HeadShape {
  int64_t rows, width, vocab;
};
constexpr HeadShape kShapes[] = {{1, 3, 2}, {5, 8, 17}, {65, 4, 2048}, {70, 6, 2049}, {130, 5, 4500}};

TEST(Head, LogProbAndEntropyEqualAten) {
  for (const HeadShape& s : kShapes) {
    for (const double temperature : {1.0, 0.7}) {
      const Case c = make_case(s.rows, s.width, s.vocab, at::kDouble);
      const LogProbs got = head_log_prob(c.hidden, c.weight, c.targets, temperature, true, {.chunk_bytes = 1});
      const LogProbs want = head_log_prob_plain(c.hidden, c.weight, c.targets, temperature);
      EXPECT_CLOSE(got.log_prob_R, want.log_prob_R, 1e-12) << s.vocab;
      EXPECT_CLOSE(got.entropy_R, want.entropy_R, 1e-12) << s.vocab;
    }
  }
  const Case c = make_case(3, 4, 5, at::kDouble);
  EXPECT_FALSE(head_log_prob(c.hidden, c.weight, c.targets, 1.0, false).entropy_R.defined());
}

TEST(Head, Float32LogProbIsWithinAMillionthOfDouble) {
  const Case c = make_case(40, 16, 40000, at::kFloat, 0.5);
  const LogProbs got = head_log_prob(c.hidden, c.weight, c.targets, 1.0, true);
  const LogProbs want = head_log_prob_plain(c.hidden.to(at::kDouble), c.weight.to(at::kDouble), c.targets, 1.0);
  const double largest = want.log_prob_R.abs().max().item<double>();
  EXPECT_CLOSE(got.log_prob_R, want.log_prob_R, 1e-6 * largest);
  EXPECT_CLOSE(got.entropy_R, want.entropy_R, 1e-6 * largest);
}

TEST(Head, BackwardEqualsAutograd) {
  for (const HeadShape& s : kShapes) {
    for (const bool use_entropy : {false, true}) {
      for (const double temperature : {1.0, 1.3}) {
        const Case c = make_case(s.rows, s.width, s.vocab, at::kDouble);
        const Gradients want = judge(c, temperature, use_entropy);
        const at::Tensor d_hidden = at::empty_like(c.hidden);
        const at::Tensor d_weight = random_tensor({s.vocab, s.width}, 9);  // is added to
        const at::Tensor before = d_weight.clone();
        head_backward(c.hidden, c.weight, c.targets, temperature, c.g, use_entropy ? c.gh : at::Tensor(), d_hidden,
                      d_weight);
        EXPECT_CLOSE(d_hidden, want.hidden, 1e-10) << s.vocab << " entropy " << use_entropy;
        EXPECT_CLOSE(d_weight - before, want.weight, 1e-10) << s.vocab << " entropy " << use_entropy;
      }
    }
  }
}

TEST(Head, Float32BackwardIsCloseToDouble) {
  for (const bool use_entropy : {false, true}) {
    const Case c = make_case(100, 32, 5000, at::kFloat, 0.3);
    const Gradients want = judge(c, 1.0, use_entropy);
    const at::Tensor d_hidden = at::empty_like(c.hidden);
    const at::Tensor d_weight = at::zeros_like(c.weight);
    head_backward(c.hidden, c.weight, c.targets, 1.0, c.g, use_entropy ? c.gh : at::Tensor(), d_hidden, d_weight);
    EXPECT_LT(relative_l2(d_hidden, want.hidden), 2e-6);
    EXPECT_LT(relative_l2(d_weight, want.weight), 2e-6);
  }
}

// Around the second pass's own borders: blocks of columns, whose size changes at the width 256, and waves of them,
// chunks of tokens, slices of d_hidden.
struct SecondPassShape {
  int64_t rows, width, vocab, chunk_bytes;
};
constexpr SecondPassShape kSecondPassShapes[] = {
    {1, 3, 2, 1},
    {5, 8, 1024, 1},
    {70, 6, 2049, 1},
    {130, 5, 4500, int64_t{56} << 20},
    {300, 7, 1025, 1},
    {300, 520, 1030, int64_t{56} << 20},
    {20, 255, 2100, 1},
    {20, 256, 2100, 1},
    {40, 4, 9000, 40 * 8 * 11 * 1040},  // waves of eight blocks
};

Gradients second_pass(const Case& c, const VocabularyHead& head, double temperature, bool use_entropy,
                      int64_t chunk_bytes) {
  Gradients result;
  result.out = head_log_prob(c.hidden, head, c.targets, temperature, true, {.chunk_bytes = chunk_bytes});
  result.hidden = random_tensor(c.hidden.sizes().vec(), 8, c.hidden.scalar_type());  // is written over
  result.weight = random_tensor(c.weight.sizes().vec(), 9, c.weight.scalar_type());  // is added to
  const at::Tensor before = result.weight.clone();
  head_backward(c.hidden, head, c.targets, temperature, c.g, use_entropy ? c.gh : at::Tensor(), result.hidden,
                result.weight, result.out.norms_R, {.chunk_bytes = chunk_bytes});
  result.weight -= before;
  return result;
}

// The head skips chunks without a gradient, and still overwrites d_hidden there.
TEST(Head, SecondPassOverTokensWithoutAGradient) {
  const Case c = make_case(130, 5, 2100, at::kDouble);
  c.g.narrow(0, 0, 64).zero_();
  c.gh.narrow(0, 0, 64).zero_();
  for (const bool use_entropy : {false, true}) {
    const Gradients want = judge(c, 1.1, use_entropy);
    const Gradients got = second_pass(c, c.weight, 1.1, use_entropy, /*chunk_bytes=*/1);
    EXPECT_CLOSE(got.hidden, want.hidden, 1e-10);
    EXPECT_CLOSE(got.weight, want.weight, 1e-10);
    EXPECT_EQ(got.hidden.narrow(0, 0, 64).abs().max().item<double>(), 0.0);
  }
}

TEST(Head, SecondPassEqualsAutograd) {
  for (const SecondPassShape& s : kSecondPassShapes) {
    const Case c = make_case(s.rows, s.width, s.vocab, at::kDouble, s.width > 100 ? 0.1 : 1.0);
    for (const double cap : {0.0, 1.7}) {
      for (const bool use_entropy : {false, true}) {
        const double temperature = use_entropy ? 1.3 : 0.6;
        const at::Tensor hidden = c.hidden.clone().requires_grad_(true);
        const at::Tensor weight = c.weight.clone().requires_grad_(true);
        const LogProbs want = head_log_prob_plain(hidden, {weight, cap}, c.targets, temperature);
        at::Tensor loss = (want.log_prob_R * c.g).sum();
        if (use_entropy) loss = loss + (want.entropy_R * c.gh).sum();
        loss.backward();
        const Gradients got = second_pass(c, {c.weight, cap}, temperature, use_entropy, s.chunk_bytes);
        EXPECT_CLOSE(got.hidden, hidden.grad(), 1e-10) << s.rows << " x " << s.vocab << " cap " << cap;
        EXPECT_CLOSE(got.weight, weight.grad(), 1e-10) << s.rows << " x " << s.vocab << " cap " << cap;
      }
    }
  }
}

TEST(Head, Float32SecondPassIsCloseToDouble) {
  // With scale 4, logits are in the hundreds, and their own rounding shows.
  for (const auto& [scale, tolerance] : {std::pair(0.3, 2e-6), std::pair(4.0, 5e-5)}) {
    for (const bool use_entropy : {false, true}) {
      const Case c = make_case(100, 32, 5000, at::kFloat, scale);
      const Gradients want = judge(c, 1.0, use_entropy);
      const Gradients got = second_pass(c, c.weight, 1.0, use_entropy, HeadOptions{}.chunk_bytes);
      EXPECT_LT(relative_l2(got.hidden, want.hidden), tolerance) << scale;
      EXPECT_LT(relative_l2(got.weight, want.weight), tolerance) << scale;
    }
  }
}

TEST(Head, SecondPassGivesWhatIsAskedForOnly) {
  const Case c = make_case(20, 6, 1500, at::kDouble);
  const std::vector<TokenNorm> norms = head_log_prob(c.hidden, c.weight, c.targets, 1.0, false).norms_R;
  const Gradients both = second_pass(c, c.weight, 1.0, false, HeadOptions{}.chunk_bytes);
  const at::Tensor hidden = at::empty_like(c.hidden);
  head_backward(c.hidden, c.weight, c.targets, 1.0, c.g, {}, hidden, {}, norms);
  EXPECT_CLOSE(hidden, both.hidden, 1e-14);
  const at::Tensor weight = at::zeros_like(c.weight);
  head_backward(c.hidden, c.weight, c.targets, 1.0, c.g, {}, {}, weight, norms);
  EXPECT_CLOSE(weight, both.weight, 1e-14);
  EXPECT_THROW(head_backward(c.hidden, c.weight, c.targets, 1.0, c.g, {}, hidden, {}, std::span(norms).first(19)),
               c10::Error);
}

TEST(Head, SecondPassGivesTheSameBitsForAnyNumberOfThreads) {
  const Case c = make_case(300, 520, 3000, at::kFloat, 0.1);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Gradients one = second_pass(c, c.weight, 1.0, false, HeadOptions{}.chunk_bytes);
  at::set_num_threads(3);
  const Gradients three = second_pass(c, c.weight, 1.0, false, HeadOptions{}.chunk_bytes);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one.hidden, three.hidden));
  EXPECT_TRUE(at::equal(one.weight, three.weight));
}

TEST(Head, OnePassGivesGradientsOfATokenLocalLoss) {
  const Case c = make_case(150, 6, 2100, at::kDouble);
  for (const EntropyUse use : {EntropyUse::kNone, EntropyUse::kValue, EntropyUse::kGradient}) {
    const at::Tensor hidden = c.hidden.clone().requires_grad_(true);
    const at::Tensor weight = c.weight.clone().requires_grad_(true);
    const LogProbs plain = head_log_prob_plain(hidden, weight, c.targets, 1.0);
    // loss = sum exp(log_prob) [+ 0.5 H^2]
    at::Tensor loss = plain.log_prob_R.exp().sum();
    if (use == EntropyUse::kGradient) loss = loss + (plain.entropy_R * plain.entropy_R * 0.5).sum();
    loss.backward();
    const at::Tensor d_hidden = at::empty_like(c.hidden);
    const at::Tensor d_weight = at::zeros_like(c.weight);
    int64_t seen = 0;
    double entropy_sum = 0.0;
    const auto on_chunk = [&](const HeadChunk& chunk) {
      EXPECT_EQ(chunk.begin, seen);
      seen = chunk.end;
      for (size_t i = 0; i < chunk.log_prob.size(); ++i) {
        chunk.grad_log_prob[i] = std::exp(chunk.log_prob[i]);
        if (use != EntropyUse::kNone) entropy_sum += chunk.entropy[i];
        if (use == EntropyUse::kGradient) chunk.grad_entropy[i] = chunk.entropy[i];
      }
    };
    head_one_pass(c.hidden, c.weight, c.targets, 1.0, use, on_chunk, d_hidden, d_weight);
    EXPECT_EQ(seen, 150);
    EXPECT_CLOSE(d_hidden, hidden.grad(), 1e-10);
    EXPECT_CLOSE(d_weight, weight.grad(), 1e-10);
    const double want_entropy = use == EntropyUse::kNone ? 0.0 : plain.entropy_R.sum().item<double>();
    EXPECT_NEAR(entropy_sum, want_entropy, 1e-9);
  }
}

TEST(Head, CappedLogitsEqualAutograd) {
  for (const HeadShape& s : kShapes) {
    for (const bool use_entropy : {false, true}) {
      const Case c = make_case(s.rows, s.width, s.vocab, at::kDouble);
      const at::Tensor hidden = c.hidden.clone().requires_grad_(true);
      const at::Tensor weight = c.weight.clone().requires_grad_(true);
      const LogProbs want = head_log_prob_plain(hidden, {weight, 1.7}, c.targets, 0.8);
      at::Tensor loss = (want.log_prob_R * c.g).sum();
      if (use_entropy) loss = loss + (want.entropy_R * c.gh).sum();
      loss.backward();
      const at::Tensor d_hidden = at::empty_like(c.hidden);
      const at::Tensor d_weight = at::zeros_like(c.weight);
      const VocabularyHead head(c.weight, 1.7);
      head_backward(c.hidden, head, c.targets, 0.8, c.g, use_entropy ? c.gh : at::Tensor(), d_hidden, d_weight);
      const LogProbs got = head_log_prob(c.hidden, head, c.targets, 0.8, true);
      EXPECT_CLOSE(got.log_prob_R, want.log_prob_R, 1e-12) << s.vocab;
      EXPECT_CLOSE(got.entropy_R, want.entropy_R, 1e-12) << s.vocab;
      EXPECT_CLOSE(d_hidden, hidden.grad(), 1e-10) << s.vocab << " entropy " << use_entropy;
      EXPECT_CLOSE(d_weight, weight.grad(), 1e-10) << s.vocab << " entropy " << use_entropy;
    }
  }
}

TEST(Head, ChunkSizeDoesNotChangeLogProbs) {
  const Case c = make_case(300, 16, 3000, at::kFloat);
  const LogProbs small = head_log_prob(c.hidden, c.weight, c.targets, 1.0, true, {.chunk_bytes = 1});
  const LogProbs large = head_log_prob(c.hidden, c.weight, c.targets, 1.0, true, {.chunk_bytes = int64_t{64} << 20});
  EXPECT_CLOSE(small.log_prob_R, large.log_prob_R, 2e-6);
}

TEST(RowSoftmax, HandlesExtremes) {
  const double inf = std::numeric_limits<double>::infinity();
  const double logits[] = {-inf, 3.0, 1e30, -inf};
  const RowStats stats = row_softmax_stats(logits, 4, 1.0);
  EXPECT_EQ(stats.log_prob(1e30, 1.0), 0.0);
  EXPECT_EQ(stats.entropy(), 0.0);
  float row[] = {1.0f, -std::numeric_limits<float>::infinity(), 1.0f};
  const RowStats half = row_softmax_exp_(row, 3, 2.0);
  EXPECT_DOUBLE_EQ(half.sum, 2.0);
  EXPECT_NEAR(half.entropy(), std::log(2.0), 1e-12);
  EXPECT_EQ(row[1], 0.0f);
  float poisoned[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(row_softmax_stats(poisoned, 2, 1.0).log_prob(1.0, 1.0)));
}

TEST(RowSoftmax, BlocksMergeToTheWholeRow) {
  const at::Tensor row = random_tensor({7001}, 1, at::kDouble, 3.0);
  const double* x = row.const_data_ptr<double>();
  const RowStats whole = row_softmax_stats(x, 7001, 0.8);
  const RowStats merged = row_softmax_stats(x, 2000, 0.8).merged(row_softmax_stats(x + 2000, 5001, 0.8), 0.8);
  EXPECT_DOUBLE_EQ(merged.max, whole.max);
  EXPECT_NEAR(merged.sum / whole.sum, 1.0, 1e-13);
  EXPECT_NEAR(merged.entropy(), whole.entropy(), 1e-12);
  EXPECT_NEAR(merged.lse(0.8), (row * 0.8).logsumexp(0).item<double>(), 1e-12);
}

}  // namespace
}  // namespace mortise
