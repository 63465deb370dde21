// Adapters by the code of a device, on CPU tensors: the kernels' log-probs and gradients, for every kind of adapter and every
// shape of matrix. Dropout by operators has the bits of the kernel.
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>

#include "gradient_fixture.h"
#include "model/layers/lora_dropout_operators.h"
#include "support/as_device.h"

namespace mortise {
namespace {

struct AdapterCase {
  const char* name;
  Family family;
  LoraChoice choice;
};

std::vector<AdapterCase> adapter_cases() {
  LoraChoice plain{.rank = 3, .alpha = 6.0}, dora = plain, pissa = plain, olora = plain, whole = plain, some = plain;
  dora.use_dora = true;
  pissa.init = LoraInit::kPissa;
  olora.init = LoraInit::kOlora;
  whole.modules_to_save = {"lm_head", "embed_tokens"};
  whole.bias = LoraBias::kAll;
  some.target_modules = {"q_proj", "v_proj", "down_proj"};  // rows between them have no adapter
  some.rank_pattern = {{"v_proj", 2}};
  LoraChoice experts = plain, gpt_oss = plain, down = plain;
  experts.target_modules = {"v_proj"};
  experts.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"};
  gpt_oss.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.router.weight"};
  down.target_parameters = {"mlp.experts.down_proj"};
  return {{"plain", Family::kQwen2, plain},
          {"dora", Family::kQwen3, dora},
          {"pissa", Family::kQwen2, pissa},
          {"olora", Family::kLlama, olora},
          {"whole", Family::kQwen2, whole},
          {"some", Family::kMistral, some},
          {"fused", Family::kPhi3, plain},
          {"sandwich", Family::kGemma2, dora},
          {"shared_expert", Family::kQwen2Moe, plain},
          {"qwen3_experts", Family::kQwen3Moe, experts},
          {"mixtral_experts", Family::kMixtral, experts},
          {"gpt_oss_experts", Family::kGptOss, gpt_oss},
          {"one_kind_of_experts", Family::kMixtral, down},
          {"one_kind_of_stacks", Family::kGptOss, down}};
}

class DeviceAdapter : public testing::TestWithParam<AdapterCase> {
 protected:
  static Fixture adapted(bool on_device, double dropout) {
    Fixture setup = make_setup(GetParam().family, false);
    EXPECT_TRUE(setup.model.move_to(on_device ? kAsDevice : ComputeDevice()).ok());
    LoraChoice choice = GetParam().choice;
    choice.dropout = dropout;
    start_adapter(setup.model, choice);
    return setup;
  }
  // Log-probs without dropout, and the gradients of a loss with it.
  static std::vector<at::Tensor> numbers(Fixture& setup, double dropout) {
    const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
    std::vector<at::Tensor> out{forward_backward(setup.model, batch, LayerPath::kFast, false).log_prob};
    setup.model.zero_grad();
    ForwardOptions options;
    if (dropout > 0.0) options.lora_dropout = LoraDropout{dropout, 17, 1, batch.owners_N, batch.positions_N};
    const at::Tensor hidden = setup.model.forward_hidden(batch, options);
    hidden.backward(random_tensor(hidden.sizes().vec(), 77));
    for (at::Tensor& gradient : gradients_of(setup.model.trainable())) out.push_back(std::move(gradient));
    return out;
  }
};

TEST_P(DeviceAdapter, NumbersAreThoseOfTheKernels) {
  for (const double dropout : {0.0, 0.3}) {
    if (dropout > 0.0 && !GetParam().choice.target_parameters.empty()) continue;  // PEFT has none for experts
    Fixture kernels = adapted(false, dropout), device = adapted(true, dropout);
    const auto want = numbers(kernels, dropout), got = numbers(device, dropout);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_CLOSE(got[0], want[0], 1e-10);
    int64_t num_compared = 0;
    for (size_t i = 1; i < want.size(); ++i) {
      ASSERT_EQ(got[i].defined(), want[i].defined()) << device.model.trainable()[i - 1].name;
      if (!want[i].defined()) continue;  // an untied head, which these passes do not read
      EXPECT_LT(relative_l2(got[i], want[i]), 1e-10) << device.model.trainable()[i - 1].name;
      EXPECT_GT(want[i].abs().max().item<double>(), 0.0) << device.model.trainable()[i - 1].name;
      ++num_compared;
    }
    EXPECT_GT(num_compared, 5);
  }
}

// The reference of a run with an adapter: the frozen base in the same memory, on the device too.
TEST_P(DeviceAdapter, ItsBaseIsTheModelBeforeIt) {
  Fixture before = make_setup(GetParam().family, false);
  Fixture device = adapted(true, 0.0);
  const PackedBatch batch = *pack_rows(before.rows(), {.vocab_size = 23});
  const at::NoGradGuard no_grad;
  Model base = device.model.base_view();
  EXPECT_TRUE(base.device().by_operators);
  const auto log_prob = [&](Model& model) { return forward_backward(model, batch, LayerPath::kFast, false).log_prob; };
  EXPECT_CLOSE(log_prob(base), log_prob(before.model), 1e-10);
  EXPECT_GT(max_difference(log_prob(device.model), log_prob(base)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceAdapter, testing::ValuesIn(adapter_cases()),
                         [](const auto& one) { return std::string(one.param.name); });

at::Tensor result_of_equal_passes(Family family, const std::string& dtype, const ComputeDevice& place) {
  Fixture setup = make_setup(family, false, dtype);
  EXPECT_TRUE(setup.model.move_to(place).ok());
  const std::vector<std::string> experts = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  start_adapter(setup.model, {.rank = 3, .alpha = 6.0, .target_parameters = experts});
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  ForwardOptions recomputes;
  recomputes.recomputed_layers = 2;
  std::vector<at::Tensor> results;
  std::vector<std::vector<at::Tensor>> gradients;
  for (const ForwardOptions& options : {ForwardOptions(), recomputes}) {
    setup.model.zero_grad();
    const at::Tensor hidden = setup.model.forward_hidden(batch, options);
    hidden.backward(random_tensor(hidden.sizes().vec(), 77, hidden.scalar_type()));
    results.push_back(hidden.detach());
    gradients.push_back(gradients_of(setup.model.trainable()));
  }
  const at::NoGradGuard no_grad;
  results.push_back(setup.model.forward_hidden(batch));
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(results[0])) << dtype;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const std::string& name = setup.model.trainable()[i].name;
    EXPECT_TRUE(gradients[0][i].defined() && gradients[1][i].defined()) << name;
    EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << name;
  }
  return results[0];
}

// Passes with gradients, without them, and with layers that are computed again; by the kernels and on a device.
TEST(AdaptedExperts, EveryPassHasTheSameBits) {
  for (const Family family : {Family::kMixtral, Family::kGptOss}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      std::vector<at::Tensor> places;  // the kernels' result, and the device's
      for (const ComputeDevice& place : {ComputeDevice(), kAsDevice})
        places.push_back(result_of_equal_passes(family, dtype, place));
      EXPECT_LT(relative_l2(places[1], places[0]), dtype == std::string("float32") ? 1e-5 : 2e-2) << dtype;
    }
  }
}

// A critic on the policy's base keeps the policy's device.
TEST(DeviceCritic, SharesThePolicysBase) {
  Fixture setup = make_setup(Family::kQwen2, false);
  ASSERT_TRUE(setup.model.move_to(kAsDevice).ok());
  start_adapter(setup.model, {.rank = 3, .alpha = 6.0});
  ModelConfig config = *as_classifier(setup.model.config(), 1);
  Model critic = setup.model.base_as_classifier(config, 7);
  EXPECT_TRUE(critic.device().by_operators);
  EXPECT_TRUE(critic.move_to(kAsDevice).ok());
  start_adapter(critic, {.rank = 2, .alpha = 2.0, .modules_to_save = {"score"}});
  EXPECT_FALSE(critic.head_weight().equal(setup.model.head_weight()));
}

// Rows in one block and in many; features that do not fill a block of words, and the later ones of a layer that ranks share;
// owners of more than 32 bits.
TEST(DeviceDropout, OperatorsHaveTheBitsOfTheKernel) {
  for (const int64_t width : {1, 31, 32, 203}) {
    const at::Tensor owners = at::randint(0, int64_t{1} << 40, {50}, at::kLong),
                     places = at::randint(0, 70, {50}, at::kLong);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = random_tensor({50, width}, 3, type);
      const LoraDropout dropout{0.3, 17, 4, owners, places};
      for (const auto& [module, first] : {std::pair{0, 0}, std::pair{5, 0}, std::pair{5, 64}, std::pair{0, 45}}) {
        const DropoutMask mask = dropout_mask(dropout, module, first);
        const at::Tensor want = lora_dropped(x, dropout, module, first),
                         change = lora_dropout_change(x, dropout, module, first);
        for (const int64_t most_blocks : {int64_t{1}, int64_t{100}, kDropoutBlocks}) {
          EXPECT_TRUE(masked_by_operators(x, dropout, mask, 1.0 / 0.7, 0.0, most_blocks).equal(want)) << width;
          EXPECT_TRUE(masked_by_operators(x, dropout, mask, 0.3 / 0.7, -1.0, most_blocks).equal(change)) << width;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mortise
