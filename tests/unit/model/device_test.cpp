// The code of a device on CPU tensors: operators in place of the kernels give the kernels' numbers and gradients, for
// every family, every packing, and heads of several blocks.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "gradient_fixture.h"
#include "head_pair.h"
#include "model/head/divergence.h"
#include "model/head/kept_head.h"
#include "model/tensor/torch_guard.h"
#include "model/weights/rounded_matrices.h"
#include "support/as_device.h"

namespace mortise {
namespace {

std::vector<at::Tensor> gradients_and_zero(Model& model) {
  std::vector<at::Tensor> out = gradients_of(model.parameters());
  model.zero_grad();
  return out;
}

class DeviceFamily : public testing::TestWithParam<std::pair<Family, bool>> {
 protected:
  Fixture setup() const { return make_setup(GetParam().first, GetParam().second); }
  // The gradients of the loss by the kernels, and then by operators.
  static void expect_equal(Fixture& setup, const PackedBatch& batch, double tolerance) {
    const Loss kernels = forward_backward(setup.model, batch, LayerPath::kFast);
    const auto want = gradients_and_zero(setup.model);
    ASSERT_TRUE(setup.model.move_to(kAsDevice).ok());
    const Loss operators = forward_backward(setup.model, batch, LayerPath::kFast);
    const auto got = gradients_and_zero(setup.model);
    EXPECT_NEAR(operators.value, kernels.value, tolerance);
    EXPECT_CLOSE(operators.log_prob, kernels.log_prob, tolerance);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LT(relative_l2(got[i], want[i]), tolerance) << setup.model.parameters()[i].name;
  }
};

TEST_P(DeviceFamily, OperatorsEqualKernels) {
  Fixture setup = this->setup();
  expect_equal(setup, *pack_rows(setup.rows(), {.vocab_size = 23}), 1e-10);
}

TEST_P(DeviceFamily, Float32IsClose) {
  Fixture setup = make_setup(GetParam().first, GetParam().second, "float32");
  expect_equal(setup, *pack_rows(setup.rows(), {.vocab_size = 23}), 3e-5);
}

TEST_P(DeviceFamily, NeitherSharingNorSplittingChangesAGradient) {
  Fixture setup = this->setup();
  ASSERT_TRUE(setup.model.move_to(kAsDevice).ok());
  const PackedBatch shared = *pack_rows(setup.rows(), {.vocab_size = 23});
  const Loss whole = forward_backward(setup.model, shared, LayerPath::kFast);
  const auto want = gradients_and_zero(setup.model);
  const PackedBatch apart = *pack_rows(setup.rows(), {.share_prefix = false, .vocab_size = 23});
  EXPECT_CLOSE(forward_backward(setup.model, apart, LayerPath::kFast).log_prob, whole.log_prob, 1e-12);
  const auto unshared = gradients_and_zero(setup.model);
  int64_t first = 0;
  for (const PackRow& row : setup.rows()) {
    const PackedBatch one = *pack_rows(std::span(&row, 1), {.vocab_size = 23});
    forward_backward(setup.model, one, LayerPath::kFast, true, first);
    first += one.num_targets();
  }
  const auto summed = gradients_and_zero(setup.model);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(relative_l2(unshared[i], want[i]), 1e-12) << setup.model.parameters()[i].name;
    EXPECT_LT(relative_l2(summed[i], want[i]), 1e-12) << setup.model.parameters()[i].name;
  }
}

TEST_P(DeviceFamily, RecomputedLayersGiveTheSameBits) {
  Fixture setup = this->setup();
  ASSERT_TRUE(setup.model.move_to(kAsDevice).ok());
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  std::vector<std::vector<at::Tensor>> gradients;
  for (const int64_t recomputed : {0, 1, 2}) {
    const at::Tensor hidden = setup.model.forward_hidden(batch, {.recomputed_layers = recomputed});
    (hidden * random_tensor(hidden.sizes().vec(), 4)).sum().backward();
    gradients.push_back(gradients_and_zero(setup.model));
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    if (!gradients[0][i].defined()) continue;  // an untied head
    EXPECT_TRUE(gradients[1][i].equal(gradients[0][i])) << setup.model.parameters()[i].name;
    EXPECT_TRUE(gradients[2][i].equal(gradients[0][i])) << setup.model.parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceFamily,
                         testing::Values(std::pair{Family::kQwen2, true}, std::pair{Family::kQwen3, false},
                                         std::pair{Family::kLlama, false}, std::pair{Family::kMistral, false},
                                         std::pair{Family::kGemma2, true}, std::pair{Family::kGemma3, false},
                                         std::pair{Family::kPhi3, false}, std::pair{Family::kQwen2Moe, false},
                                         std::pair{Family::kQwen3Moe, true}, std::pair{Family::kMixtral, false},
                                         std::pair{Family::kGptOss, false}));

// The kernels keep attention and the head in float32. A device rounds the inputs and the result of attention to bfloat16, and the
// matrices of the head, which has tests of its own (training_kernels_test.cpp).
TEST(Device, Bfloat16IsAsFarFromFloat32AsTheKernels) {
  Fixture exact = make_setup(Family::kQwen3, true, "float32");
  Fixture kernels = make_setup(Family::kQwen3, true, "bfloat16");
  const PackedBatch batch = *pack_rows(exact.rows(), {.vocab_size = 23});
  const Loss want = forward_backward(exact.model, batch, LayerPath::kFast);
  const Loss by_kernels = forward_backward(kernels.model, batch, LayerPath::kFast);
  const auto plain = gradients_of(exact.model.parameters()), of_kernels = gradients_of(kernels.model.parameters());
  const double far = max_difference(by_kernels.log_prob, want.log_prob);
  EXPECT_GT(far, 1e-4);
  Loss before = by_kernels;  // each step rounds more: attention, then the head too
  for (const bool rounds_head : {false, true}) {
    Fixture device = make_setup(Family::kQwen3, true, "bfloat16");
    ASSERT_TRUE(device.model.move_to(kAsDevice).ok());
    const Loss loss = forward_backward(device.model, batch, LayerPath::kFast, true, 0, rounds_head);
    EXPECT_LT(max_difference(loss.log_prob, want.log_prob), 2.5 * far);
    EXPECT_GT(max_difference(loss.log_prob, before.log_prob), 0.0);
    before = loss;
    const auto gradients = gradients_of(device.model.parameters());
    for (size_t i = 0; i < gradients.size(); ++i) {
      // The head rounds three factors of its products, each by 0.2 % or less.
      const double tolerance =
          2.5 * std::max(0.01, relative_l2(of_kernels[i], plain[i])) + (rounds_head ? 3 * 0.002 : 0.0);
      EXPECT_LT(relative_l2(gradients[i], plain[i]), tolerance) << exact.model.parameters()[i].name << rounds_head;
    }
  }
}

// ---- the head, in chunks of tokens and blocks of the vocabulary ----

struct HeadCase {
  int64_t tokens, width, vocab;
  double softcap;
};

class DeviceHead : public testing::TestWithParam<HeadCase> {
 protected:
  void SetUp() override {
    const HeadCase c = GetParam();
    hidden_ = random_tensor({c.tokens, c.width}, 1);
    weight_ = random_tensor({c.vocab, c.width}, 2);
    targets_ = at::zeros({c.tokens}, at::kLong);
    for (int64_t i = 0; i < c.tokens; ++i)  // they fall into all blocks, and on the last column
      targets_.mutable_data_ptr<int64_t>()[i] = i == 0 ? c.vocab - 1 : i * 7919 % c.vocab;
    grad_ = random_tensor({c.tokens}, 3);
    grad_entropy_ = random_tensor({c.tokens}, 4);
  }
  [[nodiscard]] VocabularyHead head() const {
    VocabularyHead out{weight_, GetParam().softcap};
    out.by_operators = true;
    return out;
  }
  // By autograd over all logits.
  void plain(LogProbs& out, at::Tensor& d_hidden, at::Tensor& d_weight) const {
    const at::Tensor h = hidden_.clone().requires_grad_(true), w = weight_.clone().requires_grad_(true);
    out = head_log_prob_plain(h, {w, GetParam().softcap}, targets_, kTemperature);
    ((out.log_prob_R * grad_).sum() + (out.entropy_R * grad_entropy_).sum()).backward();
    d_hidden = h.grad();
    d_weight = w.grad();
  }

  static constexpr double kTemperature = 0.8;
  const HeadOptions small_{.chunk_bytes = 1};  // 64 tokens
  at::Tensor hidden_, weight_, targets_, grad_, grad_entropy_;
};

TEST_P(DeviceHead, BothPassesEqualAutograd) {
  LogProbs want;
  at::Tensor d_hidden, d_weight;
  plain(want, d_hidden, d_weight);
  const LogProbs got = head_log_prob(hidden_, head(), targets_, kTemperature, true, small_);
  EXPECT_CLOSE(got.log_prob_R, want.log_prob_R, 1e-11);
  EXPECT_CLOSE(got.entropy_R, want.entropy_R, 1e-11);
  for (const bool has_norms : {false, true}) {
    const at::Tensor dh = at::zeros(hidden_.sizes(), at::kDouble), dw = at::zeros(weight_.sizes(), at::kDouble);
    const std::span<const TokenNorm> norms = has_norms ? std::span(got.norms_R) : std::span<const TokenNorm>();
    head_backward(hidden_, head(), targets_, kTemperature, grad_, grad_entropy_, dh, dw, norms, small_);
    EXPECT_LT(relative_l2(dh, d_hidden), 1e-11);
    EXPECT_LT(relative_l2(dw, d_weight), 1e-11);
  }
}

TEST_P(DeviceHead, OnePassCallsInOrderAndAddsToTheWeightsGradient) {
  LogProbs want;
  at::Tensor d_hidden, d_weight;
  plain(want, d_hidden, d_weight);
  const at::Tensor dh = at::zeros(hidden_.sizes(), at::kDouble), dw = weight_.clone();
  int64_t next = 0;
  const auto on_chunk = [&](const HeadChunk& chunk) {
    EXPECT_EQ(chunk.begin, next);
    next = chunk.end;
    for (int64_t t = chunk.begin; t < chunk.end; ++t) {
      const auto i = static_cast<size_t>(t - chunk.begin);
      EXPECT_NEAR(chunk.log_prob[i], want.log_prob_R[t].item<double>(), 1e-11);
      EXPECT_NEAR(chunk.entropy[i], want.entropy_R[t].item<double>(), 1e-11);
      chunk.grad_log_prob[i] = grad_[t].item<double>();
      chunk.grad_entropy[i] = grad_entropy_[t].item<double>();
    }
  };
  head_one_pass(hidden_, head(), targets_, kTemperature, EntropyUse::kGradient, on_chunk, dh, dw, small_);
  EXPECT_EQ(next, GetParam().tokens);
  EXPECT_LT(relative_l2(dh, d_hidden), 1e-11);
  EXPECT_LT(relative_l2(dw - weight_, d_weight), 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceHead,
                         testing::Values(HeadCase{5, 8, 23, 0.0}, HeadCase{130, 3, 16390, 0.0},
                                         HeadCase{65, 3, 16384, 3.0}));

// ---- two heads, and stochastic rounding ----

// The divergences of full_kl.h and divergence.h, in one chunk and in several; a token of weight 0 has no gradient.
TEST(DeviceDivergence, EqualsTheKernels) {
  for (const double softcap : {0.0, 1.7}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      for (const int64_t rows : {1, 130}) {
        SCOPED_TRACE(std::to_string(beta) + " cap " + std::to_string(softcap));
        HeadPair pair = make_head_pair(rows, 5, 2300, softcap);
        const auto compute = [&](at::Tensor& d_hidden, at::Tensor& d_weight) {
          d_hidden = at::empty_like(pair.policy.hidden_RH);
          d_weight = random_tensor({2300, 5}, 9);  // is added to
          return head_divergence(pair.policy, pair.other, beta, 0.8, pair.weight, d_hidden, d_weight,
                                 {.chunk_bytes = 1});
        };
        at::Tensor want_hidden, want_weight, d_hidden, d_weight;
        const std::vector<double> want = compute(want_hidden, want_weight);
        pair.policy.head.by_operators = pair.other.head.by_operators = true;
        const std::vector<double> got = compute(d_hidden, d_weight);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-11) << i;
        EXPECT_CLOSE(d_hidden, want_hidden, 1e-11);
        EXPECT_CLOSE(d_weight, want_weight, 1e-11);
        EXPECT_GT(want_hidden.abs().max().item<double>(), 1e-3);
      }
    }
  }
}

// Log-probs over the kept tokens alone, with penalties and without.
TEST(DeviceKeptHead, EqualsTheKernels) {
  const at::Tensor hidden = random_tensor({90, 6}, 1), weight = random_tensor({300, 6}, 2);
  const at::Tensor targets = at::zeros({90}, at::kLong);
  for (int64_t i = 0; i < 90; ++i) targets.mutable_data_ptr<int64_t>()[i] = i * 37 % 300;
  Sampling sampling;
  sampling.temperature = 0.8;
  sampling.top_k = 12;
  sampling.top_p = 0.9;
  std::vector<uint8_t> mask(90, 1);
  mask[4] = 0;
  const at::Tensor grad = random_tensor({90}, 3), grad_entropy = random_tensor({90}, 4);
  for (const double penalty : {1.0, 1.3}) {
    sampling.repetition_penalty = penalty;
    const std::vector<PlaceEdits> edits(penalty == 1.0 ? 0 : 90, PlaceEdits{{7}, {{3, 1}, {40, 2}}});
    std::vector<at::Tensor> numbers[2];
    for (const bool by_operators : {false, true}) {
      VocabularyHead head{weight, 1.7};
      head.by_operators = by_operators;
      int64_t num_missing = 0;
      const KeptTokens kept = find_kept_tokens(hidden, head, targets, sampling, mask, edits, &num_missing);
      EXPECT_EQ(kept.num_places(), 90);
      const LogProbs out = kept_log_prob(hidden, head, targets, sampling.temperature, kept);
      const at::Tensor d_hidden = at::empty_like(hidden), d_weight = weight.clone();
      kept_backward(hidden, head, targets, sampling.temperature, kept, grad, grad_entropy, d_hidden, d_weight);
      numbers[by_operators ? 1 : 0] = {out.log_prob_R, out.entropy_R, d_hidden, d_weight};
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_CLOSE(numbers[1][i], numbers[0][i], 1e-11);
    EXPECT_GT((numbers[0][3] - weight).abs().max().item<double>(), 1e-3);
  }
}

TEST(DeviceRounding, OperatorsHaveTheBitsOfTheKernel) {
  const at::Tensor numbers = random_tensor({37, 53}, 5, at::kFloat);
  numbers[0][0] = std::numeric_limits<float>::infinity();
  numbers[0][1] = -0.0F;
  numbers[36][52] = std::numeric_limits<float>::quiet_NaN();
  DecoderWeights weights;
  weights.layers.resize(1);
  weights.layers[0].o_weight_HQ = numbers.clone();
  allocate_rounded(weights);
  const PhiloxKey key = derive_philox_key(3, RandomPurpose::kRounding, 7);
  round_stochastically(weights, 0, key);
  const at::Tensor want = weights.rounded[0].o_HQ;
  EXPECT_FALSE(want.equal(numbers.to(at::kBFloat16)));
  for (const int64_t most : {64, 640, 1 << 20}) {
    const at::Tensor got = at::empty_like(want);
    round_by_operators(numbers, got, {0, 0, 1, 0}, key, most);                           // the second matrix of a layer
    EXPECT_TRUE(got[36][52].isnan().item<bool>() && want[36][52].isnan().item<bool>());  // whatever its bits
    got[36][52] = want[36][52];
    EXPECT_TRUE(got.view(at::kShort).equal(want.view(at::kShort))) << most;
  }
}

// Also of passes that name what they do, such as sampling.
TEST(Device, AGpuWithoutMemorySaysWhatToLower) {
  const Result<> full = guard_torch("sampling", []() -> Result<> {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2 GiB");
    return {};
  });
  ASSERT_FALSE(full.ok());
  EXPECT_NE(full.error().what.find("sampling: the GPU has no memory left: CUDA out of memory"), std::string::npos);
  EXPECT_NE(full.error().next.find("actor.ppo_max_token_len_per_gpu"), std::string::npos);
}

// The prediction of what the device did when its memory was full, its largest parts, and the keys of those that have one.
TEST(Device, AFullMemorySaysWhatTheRunWasToNeed) {
  constexpr double kGiB = 1 << 30;
  MemoryNeed need;
  need.start = {{"weights", kGiB, ""}};
  need.sampling = {{"weights", kGiB, ""}, {"KV cache", 2 * kGiB, "lower rollout.kv_cache_mib"}};
  need.learning = {{"weights", kGiB, ""},         {"optimizer", 2 * kGiB, "set actor.optim.offload = \"file\""},
                   {"teacher", 0, "no such key"}, {"head", kGiB / 2, "lower actor.ppo_max_token_len_per_gpu"},
                   {"graphs", kGiB / 4, ""},      {"activations", 5 * kGiB, "lower actor.ppo_max_token_len_per_gpu"}};
  tell_memory_need(need, [] { return DeviceMemory{uint64_t{3} << 20, uint64_t{8} << 30}; });
  const auto error = [](MemoryUse use) {
    const auto fill = []() -> Result<> { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory"); };
    return guard_torch("a pass", fill, use).error();
  };
  const std::string of_run =
      "a pass: the GPU has no memory left: no memory (--dry-run predicts 8.8 GiB of the GPU's "
      "memory for this run, and ";
  EXPECT_EQ(error(MemoryUse::kUpdates).what,
            of_run +
                "8.8 GiB in updates: activations 5.0 GiB, optimizer 2.0 GiB, weights 1.0 GiB; now 3.0 MiB of 8.0 "
                "GiB are free)");
  EXPECT_EQ(error(MemoryUse::kUpdates).next,
            "lower actor.ppo_max_token_len_per_gpu, or set actor.optim.offload = \"file\"");
  EXPECT_EQ(error(MemoryUse::kSampling).what,
            of_run + "3.0 GiB while it samples: KV cache 2.0 GiB, weights 1.0 GiB; now 3.0 MiB of 8.0 GiB are free)");
  EXPECT_EQ(error(MemoryUse::kSampling).next, "lower rollout.kv_cache_mib");
  EXPECT_NE(error(MemoryUse::kStart).what.find("1.0 GiB while the run starts: weights 1.0 GiB;"), std::string::npos);
  EXPECT_NE(error(MemoryUse::kStart).next.find("--dry-run"), std::string::npos) << "no key lowers it";
  tell_memory_need({}, {});
  EXPECT_EQ(error(MemoryUse::kUpdates).what, "a pass: the GPU has no memory left: no memory");
}

// Logits far apart: nothing overflows, and a probability of 1 has log-prob and entropy 0.
TEST(Device, HeadHandlesExtremeLogits) {
  const at::Tensor hidden = at::ones({1, 1}, at::kDouble), weight = at::zeros({20000, 1}, at::kDouble);
  weight.narrow(0, 19999, 1).fill_(1e4);
  weight.narrow(0, 3, 1).fill_(-1e4);
  VocabularyHead head{weight};
  head.by_operators = true;
  const at::Tensor targets = at::full({1}, 19999, at::kLong);
  const LogProbs out = head_log_prob(hidden, head, targets, 1.0, true);
  EXPECT_EQ(out.log_prob_R.item<double>(), 0.0);
  EXPECT_EQ(out.entropy_R.item<double>(), 0.0);
}

}  // namespace
}  // namespace mortise
