// What servers get: W + B A is the model that trains, whatever the adapter's scale, and rounded matrices are those that
// the passes multiply by.
#include "train/sampling/sent_adapter.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <map>

#include "support/temp_dir.h"
#include "tiny_model.h"

namespace mortise {
namespace {

TEST(SentAdapter, ItsMatricesHoldTheScale) {
  const Model base = tiny_model(1);
  Model policy = tiny_model(1);
  LoraChoice choice;
  choice.rank = 2;
  choice.alpha = 8;
  choice.target_modules = {"q_proj", "down_proj"};
  ASSERT_OK(policy.train_lora(choice, 3));
  for (const NamedParameter& parameter : policy.trainable()) parameter.tensor.detach().fill_(0.125);
  policy.weights_changed();
  ASSERT_OK_AND_ASSIGN(const auto sent, sent_tensors(policy));
  ASSERT_EQ(sent.size(), 4U);
  std::map<std::string, at::Tensor> tensors;
  for (const NamedParameter& one : sent) tensors[one.name] = one.tensor.detach();
  for (const std::string module : {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"}) {
    const std::string name = std::string(kLoraPrefix) + module;
    ASSERT_TRUE(tensors.contains(name + ".lora_A.weight")) << name;
    const at::Tensor sum = base.find_parameter(module + ".weight")->tensor.detach() +
                           tensors[name + ".lora_B.weight"].matmul(tensors[name + ".lora_A.weight"]);
    const at::Tensor trained = policy.find_parameter(module + ".weight")->tensor.detach();
    EXPECT_LT((sum - trained).abs().max().item<double>(), 1e-12) << module;
  }
  for (const NamedParameter& parameter : policy.trainable())
    EXPECT_EQ(parameter.tensor.max().item<double>(), 0.125) << "sending must not change what trains";
}

// With and without masters: synchronous runs have them, and the copy that samples ahead has not.
TEST(SampledNumbers, AreTheRoundedMatricesAndTheOtherWeightsAsTheyAre) {
  Model model = tiny_model(1, "bfloat16");
  model.weights_changed();
  std::vector<at::Tensor> want;
  for (const NamedParameter& parameter : model.parameters()) {
    const at::Tensor masters = parameter.tensor.detach();
    const bool is_rounded = parameter.name.ends_with("_proj.weight");
    want.push_back(is_rounded ? masters.to(at::kBFloat16).to(at::kFloat) : masters.clone());
    EXPECT_EQ(want.back().equal(masters), !is_rounded) << parameter.name << " would show nothing";
  }
  for (const bool has_masters : {true, false}) {
    if (!has_masters) model.drop_masters();
    const std::vector<NamedParameter> sent = sampled_numbers(model);
    ASSERT_EQ(sent.size(), want.size());
    for (size_t i = 0; i < sent.size(); ++i)
      EXPECT_TRUE(sent[i].tensor.detach().to(at::kFloat).equal(want[i])) << sent[i].name << " " << has_masters;
  }
}

}  // namespace
}  // namespace mortise
