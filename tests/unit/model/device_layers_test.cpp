// The layers of training by the kernels of core/cuda, which the emulator runs on CPU tensors: the numbers and gradients of the
// CPU's kernels for every family, whatever shares a prompt, is split or computed again; bfloat16; adapters; launches; memory.
#include <ATen/ops/cat.h>

#include "kept_memory.h"
#include "model/layers/kernel_layers.h"
#include "model/layers/recompute.h"
#include "model/layers/rotated_heads.h"
#include "model/padded_eval.h"
#include "stored_tensor.h"
#include "support/as_device.h"
#include "support/expert_check.h"
#include "support/golden_models.h"
#include "support/started_kernels.h"

namespace mortise {
namespace {

struct Learnt {
  at::Tensor log_prob;
  std::vector<at::Tensor> gradients;
};

Learnt learn(Model& model, const PackedBatch& batch, int64_t first_target = 0) {
  const Loss loss = forward_backward(model, batch, LayerPath::kFast, true, first_target);
  Learnt out{loss.log_prob, gradients_of(model.trainable())};
  model.zero_grad();
  return out;
}

PackedBatch packed(const Fixture& setup, bool shares = true) {
  return *pack_rows(setup.rows(), {.share_prefix = shares, .vocab_size = 23});
}

Fixture on_device(Family family, const std::string& dtype) {
  Fixture setup = make_setup(family, false, dtype);
  EXPECT_TRUE(setup.model.move_to(kAsDevice).ok());
  return setup;
}

void expect_close(const Learnt& got, const Learnt& want, double tolerance) {
  EXPECT_LT(max_difference(got.log_prob, want.log_prob), tolerance);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < want.gradients.size(); ++i)
    EXPECT_LT(relative_l2(got.gradients[i], want.gradients[i]), tolerance) << i;
}

class DeviceLayers : public testing::TestWithParam<Family> {};

TEST_P(DeviceLayers, EqualFloat64) {
  Fixture exact = make_setup(GetParam(), false);
  const Learnt want = learn(exact.model, packed(exact));
  const test::TrainingKernels kernels;
  Fixture setup = on_device(GetParam(), "float32");
  const int64_t norms = test::TrainingKernels::calls<&mortise_cuda_rms_norm_backward>(),
                heads = test::TrainingKernels::calls<&mortise_cuda_rotate_heads_backward>();
  const Learnt got = learn(setup.model, packed(setup));
  EXPECT_GE(test::TrainingKernels::calls<&mortise_cuda_rms_norm_backward>(), norms + 5);
  EXPECT_EQ(test::TrainingKernels::calls<&mortise_cuda_rotate_heads_backward>(), heads + 2);
  expect_close(got, want, 3e-5);
}

// Float64 has no kernels.
TEST_P(DeviceLayers, Float64IsByOperators) {
  Fixture setup = on_device(GetParam(), "float64");
  const Learnt want = learn(setup.model, packed(setup));
  const test::TrainingKernels kernels;
  const Learnt got = learn(setup.model, packed(setup));
  for (size_t i = 0; i < want.gradients.size(); ++i) EXPECT_TRUE(got.gradients[i].equal(want.gradients[i])) << i;
}

TEST_P(DeviceLayers, NeitherSharingNorSplittingChangesAGradient) {
  const test::TrainingKernels kernels;
  Fixture setup = on_device(GetParam(), "float32");
  const Learnt whole = learn(setup.model, packed(setup));
  expect_close(learn(setup.model, packed(setup, /*shares=*/false)), whole, 5e-6);
  int64_t first = 0;
  for (const PackRow& row : setup.rows()) {
    const PackedBatch one = *pack_rows(std::span(&row, 1), {.vocab_size = 23});
    forward_backward(setup.model, one, LayerPath::kFast, true, first);
    first += one.num_targets();
  }
  const auto summed = gradients_of(setup.model.trainable());
  for (size_t i = 0; i < summed.size(); ++i) EXPECT_LT(relative_l2(summed[i], whole.gradients[i]), 5e-6) << i;
}

// The second computation of a layer and a second pass have the bits of the first.
TEST_P(DeviceLayers, RecomputedLayersGiveTheSameBits) {
  const test::TrainingKernels kernels;
  for (const char* dtype : {"float32", "bfloat16"}) {
    Fixture setup = on_device(GetParam(), dtype);
    const PackedBatch batch = packed(setup);
    std::vector<std::vector<at::Tensor>> gradients;
    for (const int64_t recomputed : {0, 0, 1, 2}) {
      const at::Tensor hidden = setup.model.forward_hidden(batch, {.recomputed_layers = recomputed});
      (hidden * random_tensor(hidden.sizes().vec(), 4, at::kFloat)).sum().backward();
      gradients.push_back(gradients_of(setup.model.parameters()));
      setup.model.zero_grad();
    }
    for (size_t pass = 1; pass < gradients.size(); ++pass) {
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        if (!gradients[0][i].defined()) continue;  // an untied head
        EXPECT_TRUE(gradients[pass][i].equal(gradients[0][i])) << dtype << " " << setup.model.parameters()[i].name;
      }
    }
  }
}

// A pass without gradients, as of old log-probs and the reference, has the bits of one with them.
TEST_P(DeviceLayers, APassWithoutGradientsHasTheSameBits) {
  const test::TrainingKernels kernels;
  for (const char* dtype : {"float32", "bfloat16"}) {
    Fixture setup = on_device(GetParam(), dtype);
    const PackedBatch batch = packed(setup);
    const at::Tensor want = setup.model.forward_hidden(batch, {}).detach();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(setup.model.forward_hidden(batch, {}).equal(want)) << dtype;
  }
}

// With bfloat16 matrices the kernels are as far from float32 as the operators, which keep all gradients between products in
// float32. Without a head that rounds, whose roundings could hide those of the layers, and with it.
TEST_P(DeviceLayers, Bfloat16IsAsFarFromFloat32AsTheOperators) {
  Fixture exact = make_setup(GetParam(), false, "float32"), setup = on_device(GetParam(), "bfloat16");
  const PackedBatch batch = packed(exact);
  for (const bool rounds_head : {false, true}) {
    const auto pass = [&](Model& model) {
      const Loss loss = forward_backward(model, batch, LayerPath::kFast, true, 0, rounds_head);
      Learnt out{loss.log_prob, gradients_of(model.parameters())};
      model.zero_grad();
      return out;
    };
    const Learnt want = pass(exact.model), by_operators = pass(setup.model);
    const test::TrainingKernels kernels;
    const Learnt got = pass(setup.model);
    EXPECT_LT(max_difference(got.log_prob, want.log_prob), 1.2 * max_difference(by_operators.log_prob, want.log_prob));
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      const double far = relative_l2(by_operators.gradients[i], want.gradients[i]);
      EXPECT_LT(relative_l2(got.gradients[i], want.gradients[i]), 1.5 * std::max(0.003, far))
          << exact.model.parameters()[i].name << ", " << rounds_head;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceLayers,
                         testing::Values(Family::kQwen2, Family::kQwen3, Family::kLlama, Family::kMistral,
                                         Family::kGemma2, Family::kGemma3, Family::kPhi3, Family::kQwen2Moe,
                                         Family::kQwen3Moe, Family::kMixtral, Family::kGptOss));

// The log-probs of transformers for each golden model.
TEST(DeviceLayersOfGoldenModels, EqualTransformers) {
  const test::TrainingKernels kernels;
  int num_compared = 0;
  for (const std::string& name : test::golden_models("forward.safetensors")) {
    SCOPED_TRACE(name);
    const auto file = SafetensorsFile::open(default_env(), test::golden_model(name) / "forward.safetensors");
    ASSERT_TRUE(file.ok());
    auto model = Model::load(default_env(), test::golden_model(name), "float32");
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    if (model->config().is_classifier) continue;
    ASSERT_TRUE(model->move_to(kAsDevice).ok());
    const int64_t before = test::TrainingKernels::calls<&mortise_cuda_rotate_heads>();
    const auto got =
        evaluate_padded(*model, stored_tensor(*file, "in.input_ids"), stored_tensor(*file, "in.attention_mask"), {});
    ASSERT_TRUE(got.ok()) << got.error().to_string();
    EXPECT_EQ(test::TrainingKernels::calls<&mortise_cuda_rotate_heads>(), before + model->config().num_layers);
    EXPECT_CLOSE(got->log_prob_BT1, stored_tensor(*file, "expected.log_prob"), 1e-4);
    ++num_compared;
  }
  EXPECT_GE(num_compared, 16);
}

// Adapters read float32, and get the gradients of operators.
TEST(DeviceLayersOfAdapters, EqualTheOperators) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    Fixture setup = make_setup(Family::kQwen3, false, dtype);
    ASSERT_TRUE(setup.model.move_to(kAsDevice).ok());
    start_adapter(setup.model, {.rank = 3, .alpha = 6.0});
    const Learnt want = learn(setup.model, packed(setup));
    const test::TrainingKernels kernels;
    expect_close(learn(setup.model, packed(setup)), want, dtype == std::string("float32") ? 3e-5 : 5e-3);
  }
}

// Also adapters of one kind of matrix, which are as far from float32 as by operators.
TEST(DeviceLayersOfAdapters, OfOneMatrixAreAsFarFromFloat32AsTheOperators) {
  for (const char* target : {"q_proj", "o_proj", "up_proj", "down_proj"}) {
    SCOPED_TRACE(target);
    const LoraChoice choice{.rank = 3, .alpha = 6.0, .target_modules = {target}};
    Fixture exact = make_setup(Family::kQwen2, false, "float32"), setup = on_device(Family::kQwen2, "bfloat16");
    start_adapter(exact.model, choice);
    start_adapter(setup.model, choice);
    const Learnt want = learn(exact.model, packed(exact)), by_operators = learn(setup.model, packed(setup));
    const test::TrainingKernels kernels;
    const Learnt got = learn(setup.model, packed(setup));
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      const double far = relative_l2(by_operators.gradients[i], want.gradients[i]);
      EXPECT_LT(relative_l2(got.gradients[i], want.gradients[i]), 1.5 * std::max(0.003, far)) << i;
    }
  }
}

// A pass of one token, which two of three experts get.
TEST(DeviceLayersOfExperts, AnExpertWithoutTokensHasAGradientOfZeros) {
  const test::TrainingKernels kernels;
  const std::vector<int64_t> prompt{3}, response{5};
  const PackRow row{prompt, response, -1};
  const PackedBatch batch = *pack_rows(std::span(&row, 1), {.vocab_size = 23});
  ASSERT_EQ(batch.num_tokens(), 1);
  for (const char* dtype : {"float32", "bfloat16"}) {
    Fixture exact = make_setup(Family::kMixtral, false), setup = on_device(Family::kMixtral, dtype);
    const Learnt want = learn(exact.model, batch), got = learn(setup.model, batch);
    int num_zeros = 0;
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      if (want.gradients[i].abs().max().item<double>() > 0.0) {
        EXPECT_LT(relative_l2(got.gradients[i], want.gradients[i]), dtype == std::string("float32") ? 3e-5 : 0.1) << i;
        continue;
      }
      EXPECT_EQ(got.gradients[i].abs().max().item<double>(), 0.0) << setup.model.parameters()[i].name;
      ++num_zeros;
    }
    EXPECT_GE(num_zeros, 2 * 3) << "three matrices of an expert in each of two layers";
  }
}

// Tiles of both sizes, and rows that no tile fills.
TEST(DeviceLayersOfExperts, KernelsThatSampleEqualFloat64) {
  const test::TrainingKernels kernels;
  for (const int64_t num_tokens : {2, 30}) test::expect_kernels_compute_experts(at::kCPU, {80, 72, 3, 2}, num_tokens);
}

// ---- what a layer costs ----

// A dense layer starts so many kernels: a norm with its sum twice, the heads and the gate forward, and the same backward.
TEST(DeviceLayersCost, ADenseLayerStartsFourKernelsEachWay) {
  const test::TrainingKernels kernels;
  const auto calls = [] {
    using Kernels = test::TrainingKernels;
    return std::vector<int64_t>{
        Kernels::calls<&mortise_cuda_rms_norm>(),     Kernels::calls<&mortise_cuda_rms_norm_backward>(),
        Kernels::calls<&mortise_cuda_gated>(),        Kernels::calls<&mortise_cuda_gated_backward>(),
        Kernels::calls<&mortise_cuda_rotate_heads>(), Kernels::calls<&mortise_cuda_rotate_heads_backward>(),
        Kernels::calls<&mortise_cuda_head_norm>()};
  };
  for (const Family family : {Family::kQwen2, Family::kQwen3}) {
    Fixture setup = on_device(family, "bfloat16");
    const std::vector<int64_t> before = calls();
    learn(setup.model, packed(setup));
    std::vector<int64_t> started = calls();
    for (size_t i = 0; i < started.size(); ++i) started[i] -= before[i];
    EXPECT_EQ(started, (std::vector<int64_t>{5, 5, 2, 2, 2, 2, 0}));  // two layers, and the first norm
  }
}

// The experts of gpt-oss have a gate of their own: one kernel each way for each expert, in both layers. Those of others have that
// of dense layers.
TEST(DeviceLayersCost, EachExpertStartsItsGate) {
  const test::TrainingKernels kernels;
  using Kernels = test::TrainingKernels;
  const auto calls = [] {
    return std::vector<int64_t>{Kernels::calls<&mortise_cuda_clamped_gate>(),
                                Kernels::calls<&mortise_cuda_clamped_gate_backward>(),
                                Kernels::calls<&mortise_cuda_gated>(), Kernels::calls<&mortise_cuda_gated_backward>()};
  };
  for (const bool is_adapted : {false, true}) {
    for (const Family family : {Family::kGptOss, Family::kMixtral}) {
      Fixture setup = on_device(family, "bfloat16");
      if (is_adapted)
        start_adapter(setup.model,
                      {.rank = 1, .target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}});
      const std::vector<int64_t> before = calls();
      learn(setup.model, packed(setup));
      std::vector<int64_t> started = calls();
      for (size_t i = 0; i < started.size(); ++i) started[i] -= before[i];
      const int64_t gates = 2 * setup.model.config().moe.num_experts;
      EXPECT_EQ(started, family == Family::kGptOss ? (std::vector<int64_t>{gates, gates, 0, 0})
                                                   : (std::vector<int64_t>{0, 0, gates, gates}))
          << is_adapted;
    }
  }
}

double kept_per_layer(const Model& model) {
  const PackedBatch batch = batch_of(2, 1);
  return (held_per_token(model, batch, kLayers / 2) - held_per_token(model, batch, kLayers)) / (kLayers / 2.0);
}

NumberSizes sizes_by_kernels(int64_t product_bytes, bool by_kernels, bool has_adapter) {
  NumberSizes out(4, product_bytes);
  out.by_operators = true;
  out.by_kernels = by_kernels;
  out.has_adapter = has_adapter;
  return out;
}

// A layer keeps less than by operators, and as much less as the dry run says. On CPU tensors attention keeps float32 copies of
// q, k and v either way, and no bfloat16 ones (recompute_test.cpp). The operators' copy of its result is not there either.
TEST(DeviceLayersCost, ALayerKeepsAsMuchLessAsTheEstimateSays) {
  for (const Family family : {Family::kQwen2, Family::kQwen3, Family::kGemma2, Family::kGptOss}) {
    for (const int64_t product_bytes : {4, 2}) {
      Model model = Model::random(config_of(family), 4, product_bytes == 2 ? "bfloat16" : "float32").value();
      ASSERT_TRUE(model.move_to(kAsDevice).ok());
      const auto estimated = [&](bool by_kernels) {
        return static_cast<double>(
            layer_memory(model.config(), sizes_by_kernels(product_bytes, by_kernels, false)).kept);
      };
      const double by_operators = kept_per_layer(model);
      const double of_result = product_bytes == 2 ? 2.0 * static_cast<double>(model.config().q_size()) : 0.0;
      const double less = estimated(false) - estimated(true) - of_result;
      EXPECT_GT(less, 2.0 * static_cast<double>(model.config().hidden_size) * 4.0);
      const test::TrainingKernels kernels;
      EXPECT_NEAR(by_operators - kept_per_layer(model), less, 0.12 * less)
          << static_cast<int>(family) << " " << product_bytes;
    }
  }
}

// With an adapter on all matrices products keep float32 inputs.
TEST(DeviceLayersCost, ALayerWithAnAdapterKeepsWhatTheEstimateSays) {
  const test::TrainingKernels kernels;
  for (const int64_t product_bytes : {4, 2}) {
    Model model = Model::random(config_of(Family::kQwen2), 4, product_bytes == 2 ? "bfloat16" : "float32").value();
    ASSERT_TRUE(model.move_to(kAsDevice).ok());
    start_adapter(model, {.rank = 1});
    const LayerMemory estimate = layer_memory(model.config(), sizes_by_kernels(product_bytes, true, true));
    const int64_t q = model.config().q_size(), kv = model.config().kv_size();
    const int64_t copies = product_bytes == 2 ? 3 * q * 4 - (2 * q + 2 * kv) * 2 : 0;
    const auto saved = static_cast<double>(estimate.kept - estimate.recomputed + copies);
    EXPECT_NEAR(kept_per_layer(model), saved, 0.15 * saved) << product_bytes;
  }
}

// ---- copies of keys ----

TEST(KeyCopiesTest, NameTheTokensOfEachSequence) {
  const std::vector<PackedSegment> segments{{0, 2}, {2, 1, 0}, {3, 1}, {4, 2, 0}};
  const KeyCopies copies = key_copies(segments, at::kCPU);
  const auto numbers = [](const at::Tensor& x) {
    const int32_t* const data = x.const_data_ptr<int32_t>();
    return std::vector<int32_t>(data, data + x.numel());
  };
  EXPECT_EQ(numbers(copies.sources_M), (std::vector<int32_t>{0, 1, 0, 1, 2, 3, 0, 1, 4, 5}));
  EXPECT_EQ(numbers(copies.begins_N1), (std::vector<int32_t>{0, 3, 6, 7, 8, 9, 10}));
  EXPECT_EQ(numbers(copies.places_M), (std::vector<int32_t>{0, 2, 6, 1, 3, 7, 4, 5, 8, 9}));
  EXPECT_FALSE(key_copies(std::vector<PackedSegment>{{0, 2}, {2, 3}}, at::kCPU).defined());
}

}  // namespace
}  // namespace mortise
