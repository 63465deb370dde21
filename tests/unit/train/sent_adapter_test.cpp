// What servers get of an adapter: W + B A is the model that trains, whatever the adapter's scale.
#include "train/loop/sent_adapter.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <map>

#include "model/weights/model_config.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

Model tiny_lora_base() {
  const ModelConfig config = make_qwen2_config({.vocab_size = 11,
                                                .hidden_size = 8,
                                                .intermediate_size = 12,
                                                .num_layers = 1,
                                                .num_heads = 2,
                                                .num_kv_heads = 1,
                                                .initializer_range = 0.3})
                                 .value();
  return Model::random(config, 1, "float64").value();
}

TEST(SentAdapter, ItsMatricesHoldTheScale) {
  const Model base = tiny_lora_base();
  Model policy = tiny_lora_base();
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

}  // namespace
}  // namespace mortise
