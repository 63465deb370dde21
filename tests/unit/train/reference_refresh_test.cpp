// ref = (1 - alpha) ref + alpha policy, for every parameter.
#include "train/loop/reference_refresh.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "tiny_model.h"

namespace mortise {
namespace {

TEST(ReferenceRefresh, MovesEveryParameterByItsShare) {
  const Model policy = tiny_model(1), before = tiny_model(2);
  for (const double alpha : {0.0, 0.25, 0.6, 1.0}) {
    Model reference = before.clone_frozen();
    refresh_reference(policy, reference, alpha);
    ASSERT_FALSE(reference.parameters().empty());
    for (size_t i = 0; i < reference.parameters().size(); ++i) {
      const at::Tensor now = reference.parameters()[i].tensor;
      const at::Tensor expected =
          (1.0 - alpha) * before.parameters()[i].tensor.detach() + alpha * policy.parameters()[i].tensor.detach();
      EXPECT_LT((now - expected).abs().max().item<double>(), 1e-15) << policy.parameters()[i].name << " " << alpha;
      EXPECT_FALSE(now.requires_grad());
    }
  }
}

// As an optimizer does, which steps this rank's numbers of what is spread.
void scale_trained(const Model& policy, const WeightShards* shards) {
  const at::NoGradGuard no_grad;
  if (shards == nullptr || policy.trains_lora()) {
    for (const NamedParameter& parameter : policy.trainable()) parameter.tensor.detach().mul_(1.25);
    return;
  }
  for (size_t part = 0; part < shards->units().parts.size(); ++part) {
    if (!shards->units().parts[part].empty()) shards->numbers(static_cast<int64_t>(part)).mul_(1.25);
  }
  for (const size_t i : shards->units().whole) shards->parameters()[i].tensor.detach().mul_(1.25);
}

// A policy, with an adapter if `choice` is given, and the reference that has followed it twice. `ranks`: they share the
// weights of both; null: one process.
std::vector<at::Tensor> followed(const LoraChoice* choice, const std::string& dtype, Communicator* ranks) {
  Model policy = tiny_model(1, dtype);
  if (choice != nullptr) EXPECT_OK(policy.train_lora(*choice, 4));
  Model start = choice != nullptr ? policy.base_view() : tiny_model(1, dtype);
  std::shared_ptr<WeightShards> shards;
  if (ranks != nullptr) shards = WeightShards::spread(policy, *ranks, ShardCut::kBlocks);
  Model reference = ranks == nullptr ? start.clone_frozen() : start.frozen_shape();
  if (ranks != nullptr) shards->spread_copy(reference);
  for (int i = 0; i < 2; ++i) {
    scale_trained(policy, shards.get());
    policy.weights_changed();
    refresh_reference(policy, reference, 0.25);
    EXPECT_TRUE(ranks == nullptr || shards->status().ok());
  }
  const auto whole = WholeWeights::gather({&reference});
  EXPECT_OK(whole);
  std::vector<at::Tensor> out;
  for (const NamedParameter& parameter : reference.parameters()) out.push_back(parameter.tensor.detach().clone());
  for (const LayerMatrices& layer : reference.weights().rounded) out.push_back(layer.qkv_QH.clone());
  return out;
}

// The same bits as in one process, also if merged matrices are what it follows.
TEST(ReferenceRefresh, RanksThatShareTheWeightsMoveTheirParts) {
  const LoraChoice plain{.rank = 2, .alpha = 4.0};
  LoraChoice all{.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "down_proj"}, .use_dora = true};
  all.init = LoraInit::kPissa;
  all.modules_to_save = {"v_proj", "embed_tokens"};
  all.bias = LoraBias::kAll;
  for (const LoraChoice* choice :
       {static_cast<const LoraChoice*>(nullptr), &plain, static_cast<const LoraChoice*>(&all)}) {
    for (const std::string dtype : {"float64", "bfloat16"}) {
      SCOPED_TRACE(dtype + (choice == nullptr ? "" : choice == &plain ? ", LoRA" : ", DoRA and PiSSA"));
      const std::vector<at::Tensor> expected = followed(choice, dtype, nullptr);
      test::on_ranks(3, [&](Communicator& ranks) {
        const std::vector<at::Tensor> got = followed(choice, dtype, &ranks);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
      });
    }
  }
}

}  // namespace
}  // namespace mortise
