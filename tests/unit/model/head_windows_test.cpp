// Heads that are read in windows (ZeRO 3) give the bits of whole ones: log-probs, kept tokens, comparisons of two heads, and
// gradients, those of log-probs if the whole head is passed through in the same windows.
#include "model/head/head_windows.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "head_pair.h"
#include "model/head/divergence.h"
#include "model/head/kept_head.h"
#include "model/head/squared_probs.h"
#include "test_windows.h"

namespace mortise {
namespace {

// Three windows, the last of which is small; several chunks of tokens.
constexpr int64_t kWindowTokens = 80, kWindowWidth = 12, kWindowVocab = 4500;

at::Tensor targets_of_all_windows() {
  const at::Tensor targets = at::empty({kWindowTokens}, at::kLong);
  for (int64_t r = 0; r < kWindowTokens; ++r)
    targets.mutable_data_ptr<int64_t>()[r] = (r * 37 + 11) * 37 % kWindowVocab;
  return targets;
}

struct WindowGradients {
  explicit WindowGradients(const HeadSide& side)
      : d_hidden(at::empty_like(side.hidden_RH)), d_weight(at::zeros_like(side.head.weight_VH)) {}
  at::Tensor d_hidden, d_weight;
};

void expect_window_bits(const WindowGradients& got, const WindowGradients& want) {
  EXPECT_TRUE(got.d_hidden.equal(want.d_hidden));
  EXPECT_TRUE(got.d_weight.equal(want.d_weight));
  EXPECT_GT(want.d_weight.abs().sum().item<double>(), 0.0);
}

using PairRun = std::function<void(const HeadPair& pair)>;

void for_every_head(const PairRun& run) {
  for (const auto& [dtype, softcap] : {std::pair(at::kFloat, 0.0), std::pair(at::kDouble, 1.7)}) {
    SCOPED_TRACE(std::string(toString(dtype)) + ", cap " + std::to_string(softcap));
    run(make_head_pair(kWindowTokens, kWindowWidth, kWindowVocab, softcap, dtype, 0.5));
  }
}

TEST(HeadWindows, GradientsByLogProbsHaveTheBitsOfAWholeHeadInTheSameWindows) {
  const at::Tensor targets = targets_of_all_windows();
  for_every_head([&](const HeadPair& pair) {
    const at::Tensor& hidden = pair.policy.hidden_RH;
    const VocabularyHead& head = pair.policy.head;
    const HeadOptions options{.window_bytes = kWindowBytes};
    WindowGradients want(pair.policy), got(pair.policy), plain(pair.policy);
    TestWindows windows(head, got.d_weight);
    const auto loss = [](const HeadChunk& chunk) {
      for (size_t i = 0; i < chunk.grad_log_prob.size(); ++i) {
        chunk.grad_log_prob[i] = std::sin(chunk.log_prob[i]);
        chunk.grad_entropy[i] = 0.1 * chunk.entropy[i];
      }
    };
    const auto pass = [&](const VocabularyHead& one, const WindowGradients& to, const HeadOptions& with) {
      const at::Tensor d_weight = one.rows == nullptr ? to.d_weight : at::Tensor();
      head_one_pass(hidden, one, targets, 0.8, EntropyUse::kGradient, loss, to.d_hidden, d_weight, with);
    };
    pass(head, want, options);
    pass(windows.head(), got, {});
    expect_window_bits(got, want);
    pass(head, plain, {});
    const double tolerance = hidden.scalar_type() == at::kFloat ? 1e-5 : 1e-12;
    EXPECT_LT(relative_l2(want.d_hidden, plain.d_hidden), tolerance);
    EXPECT_LT(relative_l2(want.d_weight, plain.d_weight), tolerance);

    // In two passes, and added to what is there.
    const LogProbs probs = head_log_prob(hidden, head, targets, 0.8, true),
                   read = head_log_prob(hidden, windows.head(), targets, 0.8, true);
    EXPECT_TRUE(read.log_prob_R.equal(probs.log_prob_R));
    EXPECT_TRUE(read.entropy_R.equal(probs.entropy_R));
    head_backward(hidden, head, targets, 0.8, probs.log_prob_R, probs.entropy_R, want.d_hidden, want.d_weight,
                  probs.norms_R, options);
    head_backward(hidden, windows.head(), targets, 0.8, probs.log_prob_R, probs.entropy_R, got.d_hidden, {},
                  read.norms_R);
    expect_window_bits(got, want);
  });
}

// Between one and a few hundred tokens at each place, the target among them.
KeptTokens kept_in_all_windows(const at::Tensor& targets) {
  KeptTokens kept;
  kept.repetition_penalty = 1.3;
  for (int64_t r = 0; r < kWindowTokens; ++r) {
    const int64_t target = targets.const_data_ptr<int64_t>()[r];
    for (int64_t id = 0; id < kWindowVocab; ++id) {
      if (id != target && (r % 5 == 0 || (id * 31 + r) % (20 + r) != 0)) continue;
      kept.ids.push_back(static_cast<int32_t>(id));
      kept.is_seen.push_back(id % 3 == 0 ? 1 : 0);
      kept.shift.push_back(id % 5 == 0 ? 0.4F : 0.0F);
    }
    kept.offsets.push_back(static_cast<int64_t>(kept.ids.size()));
  }
  return kept;
}

TEST(HeadWindows, KeptTokensHaveTheBitsOfAWholeHead) {
  const at::Tensor targets = targets_of_all_windows();
  const KeptTokens kept = kept_in_all_windows(targets);
  for_every_head([&](const HeadPair& pair) {
    const at::Tensor& hidden = pair.policy.hidden_RH;
    const VocabularyHead& head = pair.policy.head;
    WindowGradients want(pair.policy), got(pair.policy);
    TestWindows windows(head, got.d_weight);
    const LogProbs probs = kept_log_prob(hidden, head, targets, 0.8, kept),
                   read = kept_log_prob(hidden, windows.head(), targets, 0.8, kept);
    EXPECT_TRUE(read.log_prob_R.equal(probs.log_prob_R));
    EXPECT_TRUE(read.entropy_R.equal(probs.entropy_R));
    kept_backward(hidden, head, targets, 0.8, kept, probs.log_prob_R, probs.entropy_R, want.d_hidden, want.d_weight);
    kept_backward(hidden, windows.head(), targets, 0.8, kept, probs.log_prob_R, probs.entropy_R, got.d_hidden, {});
    expect_window_bits(got, want);

    const std::vector<uint8_t> mask(kWindowTokens, 1);
    const Sampling sampling{.temperature = 0.8, .top_k = 40, .top_p = 0.9};
    int64_t missing = 0, read_missing = 0;
    const KeptTokens found = find_kept_tokens(hidden, head, targets, sampling, mask, {}, &missing),
                     read_found = find_kept_tokens(hidden, windows.head(), targets, sampling, mask, {}, &read_missing);
    EXPECT_EQ(read_found.ids, found.ids);
    EXPECT_EQ(read_missing, missing);
  });
}

TEST(HeadWindows, SumsOfSquaresHaveTheBitsOfAWholeHead) {
  for_every_head([&](const HeadPair& pair) {
    TestWindows windows(pair.policy.head, {});
    const at::Tensor want = head_sum_pi_squared(pair.policy.hidden_RH, pair.policy.head, 0.8);
    EXPECT_TRUE(head_sum_pi_squared(pair.policy.hidden_RH, windows.head(), 0.8).equal(want));
  });
}

// Both heads, or one of them, are read in windows.
TEST(HeadWindows, ComparisonsOfTwoHeadsHaveTheBitsOfWholeOnes) {
  for_every_head([&](const HeadPair& pair) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(beta);
      WindowGradients want(pair.policy), nothing(pair.policy);
      const std::vector<double> values =
          head_divergence(pair.policy, pair.other, beta, 0.8, pair.weight, want.d_hidden, want.d_weight);
      for (const auto& [reads_policy, reads_other] : {std::pair(true, true), {true, false}, {false, true}}) {
        WindowGradients got(pair.policy);
        TestWindows policy(pair.policy.head, got.d_weight), other(pair.other.head, {});
        policy.pair_with(other);
        const HeadSide own{pair.policy.hidden_RH, reads_policy ? policy.head() : pair.policy.head};
        const HeadSide partner{pair.other.hidden_RH, reads_other ? other.head() : pair.other.head};
        const at::Tensor d_weight = reads_policy ? at::Tensor() : got.d_weight;
        EXPECT_EQ(head_divergence(own, partner, beta, 0.8, pair.weight, got.d_hidden, d_weight), values);
        expect_window_bits(got, want);
        EXPECT_EQ(head_divergence(own, partner, beta, 0.8, pair.weight, {}, {}), values) << "no gradient is wanted";
        const std::vector<double> zeros(pair.weight.size(), 0.0);
        head_divergence(own, partner, beta, 0.8, zeros, nothing.d_hidden, {});
        EXPECT_EQ(nothing.d_hidden.abs().sum().item<double>(), 0.0);
      }
    }
  });
}

TEST(HeadWindows, HeadsThatAreNoPairAreRefused) {
  const HeadPair pair = make_head_pair(3, 4, 10);
  TestWindows policy(pair.policy.head, {}), other(pair.other.head, {});
  EXPECT_THROW(head_full_kl({pair.policy.hidden_RH, policy.head()}, {pair.other.hidden_RH, other.head()}, 1.0,
                            pair.weight, {}, {}),
               c10::Error);
}

}  // namespace
}  // namespace mortise
