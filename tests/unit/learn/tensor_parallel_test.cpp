// Tensor parallel: updates of ranks that share the layers give the numbers of one rank. Losses of every coupling,
// supervised updates, every kind of layer that can be split, more ranks than key-value heads, recomputed layers, groups as
// large as a half and as the whole run; what a rank holds. What it saves: split_state_test.cpp.
#include <c10/core/GradMode.h>

#include <cstring>
#include <map>

#include "layer_variants.h"
#include "learn/optim/rounded_step.h"
#include "model/tensor/storage_memory.h"
#include "support/long_run.h"

namespace mortise {
namespace {

using test::on_ranks;
using Gradients = std::vector<at::Tensor>;

Mesh tensor_mesh(int num_ranks, int tensor_size, int sequence_size = 1) {
  return {num_ranks, sequence_size, 0, tensor_size};
}

// The model has four heads and two key-value heads: groups of four repeat them.
const std::vector<Mesh> kMeshes{tensor_mesh(2, 2), tensor_mesh(4, 4), tensor_mesh(4, 2, 2), tensor_mesh(4, 2)};

// Ranks with the same part share the optimizer's state, with stage 2 the gradients, and with stage 3 the weights. A case has
// every second mesh (half_of): always one of groups of four, and one whose ranks share tokens.
const std::vector<Mesh> kZeroMeshes{{4, 1, 1, 2}, {4, 1, 2, 2}, {8, 1, 2, 4}, {4, 2, 2, 2},
                                    {4, 2, 3, 2}, {8, 1, 3, 4}, {6, 1, 3, 2}, {4, 1, 3, 2}};

// For the variant of this number: groups of four, and a mesh of groups of two. MORTISE_LONG=1 takes all.
std::vector<Mesh> meshes_of_layers(size_t index) {
  if (test::is_long()) return kMeshes;
  return {kMeshes[1], index % 2 == 0 ? kMeshes[0] : kMeshes[2]};
}

TEST(TensorParallel, Float64UpdatesWithZeroAreEqualTo1e12) { expect_float64_updates_of_one_rank(kZeroMeshes); }

TEST(TensorParallel, Float64UpdatesAreEqualTo1e12) { expect_float64_updates_of_one_rank(kMeshes); }

TEST(TensorParallel, Float32GradientsAreEqualTo1e6) { expect_float32_gradients_of_one_rank(tensor_mesh(4, 2)); }

// One size of the groups: the same bits for any number of groups, also if ranks share tokens too.
TEST(TensorParallel, DeterministicUpdatesAreEqualToTheBit) {
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& one = cases()[i];
    const std::vector<Mesh> others{tensor_mesh(6, 2), tensor_mesh(4, 2), {4, 1, 1, 2}, {6, 1, 2, 2}, {4, 1, 3, 2}};
    expect_same_bits(one, "float32", tensor_mesh(2, 2), half_of(others, i));
    expect_same_bits(one, "float32", tensor_mesh(4, 2, 2), half_of({tensor_mesh(8, 2, 2), {8, 2, 2, 2}}, i));
  }
}

// With bfloat16 matrices, sums in another order turn over the rounding of some inputs of products.
TEST(TensorParallel, Bfloat16GradientsDifferFarLessThanByRounding) {
  const RandomRows data(false, kShape);
  const auto gradients = [&](const std::string& dtype, Communicator& communicator, const Mesh& mesh) {
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.02"});
    TestPolicy policy(dtype, kShape.vocab, 2, /*seed=*/5, {&communicator}, mesh.tensor_size);
    LearnerOptions options = cut_by(kCut);
    options.grad_clip = 0.0;
    share(options, communicator, false, mesh.sequence_size, mesh.tensor_size);
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    EXPECT_TRUE(learner.update(data.batch, all_rows(data.batch), {}).ok());
    return gradients_of(policy.model, policy.optimizer);
  };
  const Gradients expected = gradients("bfloat16", alone(), {});
  const double rounding = relative_l2_of_all(expected, gradients("float32", alone(), {}));
  EXPECT_GT(rounding, 1e-3);
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(name_of(mesh));
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      EXPECT_LT(relative_l2_of_all(gradients("bfloat16", communicator, mesh), expected), 0.25 * rounding);
    });
  }
}

// The same of an adapter's merged matrices, and of its base as the reference.
TEST(TensorParallel, Bfloat16GradientsOfAnAdapterDifferFarLessThanByRounding) {
  const RandomRows data(false, kShape);
  const auto gradients = [&](const std::string& dtype, Communicator& communicator, const Mesh& mesh) {
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla", "actor.use_kl_loss=true",
                                         "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"});
    Model model = Model::random(small_config(kShape.vocab, 2), 5, dtype).value();
    EXPECT_TRUE(
        model.train_lora({.rank = 3, .alpha = 6.0, .target_modules = {"q_proj", "v_proj", "down_proj"}}, 4).ok());
    for (const NamedParameter& factor : model.trainable()) factor.tensor.detach().add_(0.05);
    model.weights_changed();
    if (mesh.tensor_size > 1) model.split_layers(std::make_shared<TensorGroup>(communicator, mesh.tensor_size));
    const Model base = model.base_view();
    AdamW optimizer(TestPolicy::parameters(model), AdamWOptions{}, "actor.optim", {&communicator});
    LearnerOptions options = cut_by(kCut);
    options.grad_clip = 0.0;
    options.reference = &base;
    share(options, communicator, false, mesh.sequence_size, mesh.tensor_size);
    ActorLearner learner(model, optimizer, objective->objective, options);
    EXPECT_TRUE(learner.update(data.batch, all_rows(data.batch), {}).ok());
    Gradients out = gradients_of(model, optimizer);
    const auto whole = WholeWeights::gather({&model}).value();
    for (const LayerMatrices& layer : model.weights().rounded) out.push_back(layer.qkv_QH.to(at::kFloat));
    return out;
  };
  const Gradients expected = gradients("bfloat16", alone(), {});
  Gradients exact = gradients("float32", alone(), {});
  exact.insert(exact.end(), expected.end() - 2, expected.end());
  const double rounding = relative_l2_of_all(expected, exact);
  EXPECT_GT(rounding, 1e-4);
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(name_of(mesh));
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      EXPECT_LT(relative_l2_of_all(gradients("bfloat16", communicator, mesh), expected), 0.25 * rounding);
    });
  }
}

TEST(TensorParallel, DeterministicBfloat16UpdatesAreEqualToTheBit) {
  expect_same_bits(cases().front(), "bfloat16", tensor_mesh(2, 2), {tensor_mesh(6, 2), {4, 1, 1, 2}, {4, 1, 2, 2}});
}

// A frozen copy needs no masters. The whole model comes back with both.
TEST(TensorParallel, Bfloat16MatricesComeAndGoWithTheirMasters) {
  on_ranks(2, [](Communicator& communicator) {
    TestPolicy policy("bfloat16", kShape.vocab, 2, 5, {&communicator}, 2), whole("bfloat16", kShape.vocab, 2, 5);
    const DecoderWeights& rounded = policy.model.weights();
    const auto is_freed = [&] {
      return !has_memory(rounded.rounded[1].down_HI) && !has_memory(rounded.rounded[0].qkv_QH);
    };
    EXPECT_TRUE(is_freed());
    Model copy = policy.model.clone_frozen();
    copy.drop_masters();
    const ModelPart& part = *copy.model_part();
    const size_t down = part.find("model.layers.1.mlp.down_proj.weight");
    EXPECT_FALSE(has_memory(part.parameters()[down].tensor));
    EXPECT_EQ(part.numbers()[down].tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(policy.model.model_part()->numbers()[down].tensor.to(at::kBFloat16).equal(part.numbers()[down].tensor));
    {
      const auto gathered = WholeWeights::gather({&policy.model}).value();
      const std::vector<at::Tensor> weights = weights_of(policy.model), expected = weights_of(whole.model);
      for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(expected[i])) << i;
      for (size_t layer = 0; layer < rounded.rounded.size(); ++layer) {
        EXPECT_TRUE(rounded.rounded[layer].down_HI.equal(whole.model.weights().rounded[layer].down_HI));
        EXPECT_TRUE(rounded.rounded[layer].qkv_QH.equal(whole.model.weights().rounded[layer].qkv_QH));
      }
    }
    EXPECT_TRUE(is_freed());
  });
}

// Without masters a rank has bfloat16 matrices of its part alone, and so have the gathered layers.
TEST(TensorParallel, Bfloat16MatricesComeAndGoWithoutMasters) {
  on_ranks(2, [](Communicator& communicator) {
    TestPolicy policy("bfloat16", kShape.vocab, 2, 5, {&communicator}, 2), whole("bfloat16", kShape.vocab, 2, 5);
    policy.model.drop_masters();
    whole.model.drop_masters();
    const auto expect_whole_numbers = [&](bool are_equal) {
      const auto gathered = WholeWeights::gather({&policy.model}).value();
      const std::vector<NamedParameter> numbers = policy.model.numbers(), expected = whole.model.numbers();
      for (size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(numbers[i].tensor.scalar_type(), expected[i].tensor.scalar_type()) << numbers[i].name;
        const bool is_equal = numbers[i].tensor.detach().equal(expected[i].tensor.detach());
        if (are_equal || numbers[i].tensor.scalar_type() == at::kBFloat16) {
          EXPECT_EQ(is_equal, are_equal) << numbers[i].name;
        }
      }
      EXPECT_FALSE(has_memory(policy.model.weights().layers[1].down_weight_HI));
    };
    expect_whole_numbers(true);
    EXPECT_FALSE(has_memory(policy.model.weights().rounded[1].down_HI));
    // Ranks that sample together cut their parts out of whole ones.
    const auto cut = whole.model.part_of_layers(policy.model.model_part()->ranks());
    const std::vector<NamedParameter> numbers = cut->numbers(), of_policy = policy.model.model_part()->numbers();
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (is_split_by_tokens(numbers[i].name)) continue;  // whole while ranks sample
      EXPECT_TRUE(numbers[i].tensor.detach().equal(of_policy[i].tensor.detach())) << numbers[i].name;
    }
    const RoundedStep step(policy.model, policy.optimizer.parameters(), {3});
    for (size_t group = 0; group < step.groups().size(); ++group) {
      step.open(group);
      for (const size_t i : step.groups()[group]) policy.optimizer.parameters()[i].tensor.detach().mul_(1.25);
      step.close(group, 1);
    }
    const ModelPart& part = *policy.model.model_part();
    EXPECT_FALSE(has_memory(part.parameters()[part.find("model.layers.1.mlp.down_proj.weight")].tensor));
    expect_whole_numbers(false);
  });
}

TEST(TensorParallel, SupervisedUpdatesAreEqualToo) {
  const auto weights_after = [](Communicator& communicator, bool deterministic, const Mesh& mesh) {
    TestPolicy policy("float64", kShape.vocab, 2, /*seed=*/5, {&communicator}, mesh.tensor_size);
    return weights_after_sft_of(policy, communicator, deterministic, mesh.sequence_size, mesh.tensor_size);
  };
  const std::vector<at::Tensor> expected = weights_after(alone(), false, {});
  for (const bool deterministic : {false, true}) {
    for (const Mesh& mesh : kMeshes) {
      SCOPED_TRACE(name_of(mesh));
      on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
        const std::vector<at::Tensor> weights = weights_after(communicator, deterministic, mesh);
        for (size_t i = 0; i < weights.size(); ++i)
          EXPECT_LE((weights[i] - expected[i]).norm().item<double>(), 1e-12 * expected[i].norm().item<double>());
      });
    }
  }
}

TEST(TensorParallel, EveryKindOfLayerGivesTheSameGradient) {
  const std::vector<Variant> all = variants();
  for (size_t index = 0; index < all.size(); ++index) {
    const Variant& variant = all[index];
    const Update expected = update_of(variant, alone(), {});
    for (const at::Tensor& gradient : expected.gradients) ASSERT_GT(gradient.norm().item<double>(), 0.0);
    for (const Mesh& mesh : meshes_of_layers(index)) {
      SCOPED_TRACE(variant.name + ", " + name_of(mesh));
      on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
        const Update got = update_of(variant, communicator, mesh);
        expect_same_reports(got.report, expected.report, 1e-10);
        for (size_t i = 0; i < got.gradients.size(); ++i)
          EXPECT_LE((got.gradients[i] - expected.gradients[i]).norm().item<double>(),
                    1e-11 * (1.0 + expected.gradients[i].norm().item<double>()))
              << i;
        expect_same_weights(got, expected);
      });
    }
  }
}

// Ranks with the same part share the weights, also the base of an adapter.
TEST(TensorParallel, EveryKindOfLayerGivesTheSameWeightsWithZero) {
  for (const Variant& variant : variants()) expect_numbers_of_one_rank(variant, {4, 1, 3, 2});
}

// On devices, each rank has the whole embedding and head.
TEST(TensorParallel, TheCodeOfADeviceGivesTheNumbersOfOneRank) {
  size_t index = 0;
  for (const Variant& variant : variants()) {
    if (variant.name == "a teacher") continue;  // not on the device
    const bool has_groups = index++ % 4 == 0;
    if (!has_groups && index % 2 == 0 && !test::is_long()) continue;
    Mesh mesh = tensor_mesh(has_groups ? 4 : 2, 2);
    mesh.zero_stage = has_groups ? 3 : 0;
    mesh.device = &kAsDevice;
    expect_numbers_of_one_rank(variant, mesh);
  }
}

// The memory of what is split is this rank's part alone, also for gradients and moments; between gathers nothing else.
TEST(TensorParallel, ARankHoldsItsPartOfTheLayers) {
  on_ranks(4, [](Communicator& communicator) {
    TestPolicy policy("float32", kShape.vocab, 2, 5, {&communicator}, 4), whole("float32", kShape.vocab, 2, 5);
    const ModelPart& part = *policy.model.model_part();
    int64_t own = 0, of_others = 0;
    for (size_t i = 0; i < part.parameters().size(); ++i) {
      const NamedParameter& parameter = part.parameters()[i];
      const at::Tensor& all = policy.model.parameters()[i].tensor;
      if (!part.split(i).is_split()) {
        EXPECT_TRUE(parameter.tensor.is_same(all)) << parameter.name;
        continue;
      }
      EXPECT_FALSE(has_memory(all)) << parameter.name;
      if (is_split_by_tokens(parameter.name))  // 17 tokens: 4, 4, 4 and 5
        EXPECT_EQ(parameter.tensor.size(0), 5) << parameter.name;
      else
        EXPECT_EQ(parameter.tensor.numel() * 4 / part.split(i).ranges.front().repeats, all.numel()) << parameter.name;
      own += parameter.tensor.numel();
      of_others += all.numel() - parameter.tensor.numel();
    }
    EXPECT_GT(of_others, 2 * own);
    EXPECT_EQ(policy.optimizer.parameters().size(), part.parameters().size());
    StateSnapshot snapshot;
    StateWriter writer("actor.optim", &snapshot);
    ASSERT_OK(policy.optimizer.save_state(writer));
    {
      const auto gathered = WholeWeights::gather({&policy.model}).value();
      EXPECT_TRUE(policy.model.is_whole());
      const std::vector<at::Tensor> weights = weights_of(policy.model), expected = weights_of(whole.model);
      for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(expected[i])) << i;
    }
    EXPECT_FALSE(policy.model.is_whole());
    for (size_t i = 0; i < part.parameters().size(); ++i)
      EXPECT_EQ(has_memory(policy.model.parameters()[i].tensor), !part.split(i).is_split());
  });
}

// Ranks that sample with their parts of the layers need the whole vocabulary, and nothing else of the whole model.
TEST(TensorParallel, TheVocabularyComesAndGoesAlone) {
  for (const bool has_adapter : {false, true}) {
    on_ranks(2, [&](Communicator& communicator) {
      Model model = Model::random(small_config(kShape.vocab, 2), 5, "float64").value();
      const std::vector<at::Tensor> expected = weights_of(model);
      if (has_adapter) {
        ASSERT_TRUE(model.train_lora({.rank = 3, .target_modules = {"v_proj"}}, 4).ok());
      }
      model.split_layers(std::make_shared<TensorGroup>(communicator, 2));
      const auto expect_memory = [&](bool is_there) {
        for (size_t i = 0; i < model.parameters().size(); ++i) {
          const at::Tensor& whole = model.parameters()[i].tensor;
          const bool is_of_tokens = is_split_by_tokens(model.parameters()[i].name);
          EXPECT_EQ(has_memory(whole), is_of_tokens ? is_there : !model.model_part()->split(i).is_split()) << i;
          if (is_of_tokens && is_there) {
            EXPECT_TRUE(whole.detach().equal(expected[i])) << i;
          }
        }
      };
      for (int i = 0; i < 2; ++i) {
        {
          const auto outer = WholeWeights::gather({&model}, GatheredLayers::kOwnLayers).value();
          { const auto inner = WholeWeights::gather({&model}, GatheredLayers::kOwnLayers).value(); }
          expect_memory(true);
          EXPECT_FALSE(model.is_whole());
        }
        expect_memory(false);
      }
    });
  }
}

// Matrices that an adapter does not change are there once, as part of the base. The others have memory of their own, merged.
TEST(TensorParallel, ARankHoldsUnadaptedMatricesOnce) {
  on_ranks(2, [](Communicator& communicator) {
    Model model = Model::random(small_config(kShape.vocab, 3), 5, "float64").value();
    ASSERT_TRUE(model.train_lora({.rank = 3, .alpha = 6.0, .target_modules = {"v_proj"}}, 4).ok());
    const std::vector<at::Tensor> expected = weights_of(model);
    model.split_layers(std::make_shared<TensorGroup>(communicator, 2));
    const ModelPart& part = *model.model_part();
    const auto is_same = [&](const std::string& name) {
      const size_t i = part.find("model.layers.1." + name + ".weight");
      return part.parameters()[i].tensor.is_same(part.base()->parameters()[i].tensor);
    };
    for (const char* name : {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      EXPECT_TRUE(is_same(name)) << name;
    EXPECT_FALSE(is_same("self_attn.v_proj"));
    const LayerLeaves& leaves = part.leaves().layers[1];
    EXPECT_TRUE(leaves.o_weight.is_same(part.base()->leaves().layers[1].o_weight));
    EXPECT_TRUE(part.weights().layers[1].down_weight_HI.is_alias_of(leaves.down_weight));
    for (int i = 0; i < 2; ++i) {  // they come and go with the base
      {
        const auto gathered = WholeWeights::gather({&model}).value();
        const std::vector<at::Tensor> weights = weights_of(model);
        for (size_t p = 0; p < weights.size(); ++p) EXPECT_TRUE(weights[p].equal(expected[p])) << p;
      }
      for (size_t p = 0; p < part.parameters().size(); ++p)
        EXPECT_EQ(has_memory(model.parameters()[p].tensor), !part.split(p).is_split()) << p;
    }
  });
}

// A frozen copy has the same numbers in memory of its own.
TEST(TensorParallel, AFrozenCopyIsSplitAlike) {
  const RandomRows data(false, kShape);
  on_ranks(2, [&](Communicator& communicator) {
    TestPolicy policy("float64", kShape.vocab, 2, 5, {&communicator}, 2);
    const Model copy = policy.model.clone_frozen();
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    LearnerOptions options = cut_by(kCut);
    share(options, communicator, false, 1, 2);
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    const std::vector<float> before = learner.log_probs(policy.model, data.batch).value();
    EXPECT_EQ(learner.log_probs(copy, data.batch).value(), before);
    EXPECT_TRUE(learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}).ok());
    EXPECT_NE(learner.log_probs(policy.model, data.batch).value(), before);
    EXPECT_EQ(learner.log_probs(copy, data.batch).value(), before);
    for (const NamedParameter& parameter : copy.trainable()) EXPECT_FALSE(parameter.tensor.requires_grad());
  });
}

}  // namespace
}  // namespace mortise
