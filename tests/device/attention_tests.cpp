// Attention on a device: libtorch's operators and cuDNN against the plain one in float64, and the choice between them.
#include <gmock/gmock.h>

#include <cstdio>
#include <optional>

#include "device/device_under_test.h"
#include "model/layers/attention_choice.h"
#include "support/plain_cudnn.h"
#include "unit/model/torch_helpers.h"

namespace mortise {
namespace {

// The result and the gradients of q, k and v, by the code that `choices` name. Longer sequences than a tile of the fused
// operators, with and without a prompt before them.
std::vector<at::Tensor> attend(at::Device device, at::ScalarType dtype, const AttentionShape& shape,
                               const AttentionChoices* choices = nullptr) {
  const SegmentLengths lengths{{150, 1, 70, 33}, {150, 200, 270, 33}};
  const auto input = [&](int64_t rows, int64_t heads, uint64_t seed) {
    return random_tensor({rows, heads, 32}, seed)
        .to(at::TensorOptions().device(device).dtype(dtype))
        .requires_grad_(true);
  };
  const at::Tensor q = input(254, 4, 1), k = input(653, 2, 2), v = input(653, 2, 3);
  use_attention_choices(choices);
  const at::Tensor out = training_attention(q, k, v, lengths, shape);
  use_attention_choices(nullptr);
  const at::Tensor probe = random_tensor({254, 4, 32}, 4).to(out.options().requires_grad(false));
  (out * probe).sum().backward();
  std::vector<at::Tensor> all{out, q.grad(), k.grad(), v.grad()};
  for (at::Tensor& one : all) one = on_host(one.detach()).to(at::kDouble);
  return all;
}

TEST(DeviceAttention, EqualsThePlainOneInFloat64WithTheSameBitsTwice) {
  for (const int64_t window : {0, 7, 40}) {
    AttentionShape shape{4, 2, 32, 0.17};
    shape.window = window;
    AttentionShape rounding = shape;
    rounding.rounds = true;
    const auto want = attend(at::kCPU, at::kDouble, shape);
    const auto single = attend(device_under_test.device, at::kFloat, shape);
    const auto rounded = attend(device_under_test.device, at::kFloat, rounding);
    const auto single_again = attend(device_under_test.device, at::kFloat, shape);
    const auto rounded_again = attend(device_under_test.device, at::kFloat, rounding);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LT(relative_l2(single[i], want[i]), 1e-5) << window << " " << i;
      EXPECT_LT(relative_l2(rounded[i], want[i]), 0.02) << window << " " << i;
      EXPECT_TRUE(single_again[i].equal(single[i])) << window << " " << i;
      EXPECT_TRUE(rounded_again[i].equal(rounded[i])) << window << " " << i;
    }
  }
}

// Attention by cuDNN, also with a window. On the CPU the same shapes take the plain path.
TEST(DeviceCudnn, EqualsThePlainOneWithTheSameBitsTwice) {
  std::optional<AttentionChoices> choices;
  if (device_under_test.device.is_cuda()) {
    const Result<CudnnAttention*> opened = open_cudnn_attention();
    if (!opened.ok()) GTEST_SKIP() << opened.error().to_string();
    choices = AttentionChoices::everywhere(**opened);
  }
  const AttentionChoices* const all = choices ? &*choices : nullptr;
  for (const int64_t window : {0, 40}) {
    AttentionShape shape{4, 2, 32, 0.17};
    shape.window = window;
    const auto want = attend(at::kCPU, at::kDouble, shape);
    shape.rounds = true;
    const auto got = attend(device_under_test.device, at::kFloat, shape, all);
    const auto again = attend(device_under_test.device, at::kFloat, shape, all);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LT(relative_l2(got[i], want[i]), 0.02) << window << " " << i;
      EXPECT_TRUE(again[i].equal(got[i])) << window << " " << i;
    }
  }
}

// What a run does before its first pass (model.attention_backend = "auto"): both compute the same numbers, and the clock of the
// device's events says which one is faster. On the CPU a stand-in plays cuDNN.
TEST(DeviceCudnn, IsMeasuredAgainstLibtorchs) {
  test::PlainCudnn stand_in;
  CudnnAttention* cudnn = &stand_in;
  const bool is_gpu = device_under_test.device.is_cuda();
  if (is_gpu) {
    const Result<CudnnAttention*> opened = open_cudnn_attention();
    if (!opened.ok()) GTEST_SKIP() << opened.error().to_string();
    cudnn = *opened;
  }
  for (const int64_t window : {0, 40}) {
    AttentionShape shape{14, 2, 64, 0.125};
    shape.window = window;
    AttentionTrial trial = attention_trial(shape, is_gpu ? 1024 : 24, *cudnn, device_under_test.device);
    trial.seconds = device_timer(device_under_test.device);
    const AttentionVerdict verdict = try_attention(trial);
    std::printf("window %ld: %s\n", static_cast<long>(window), verdict.why.c_str());
    EXPECT_THAT(verdict.why, testing::StartsWith("cuDNN takes ")) << "a path failed, or their numbers differ";
  }
}

}  // namespace
}  // namespace mortise
