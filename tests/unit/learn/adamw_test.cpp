// AdamW against its definition written out in double (Loshchilov and Hutter 2019), clipping, and its saved state.
#include "learn/optim/adamw.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/temp_dir.h"

namespace mortise {
namespace {

at::Tensor leaf(std::vector<double> values) {
  at::Tensor tensor = at::tensor(values, at::TensorOptions().dtype(at::kDouble));
  return tensor.set_requires_grad(true);
}

void set_grad(const at::Tensor& tensor, std::vector<double> values) {
  tensor.mutable_grad() = at::tensor(values, at::TensorOptions().dtype(at::kDouble));
}

struct PlainAdamW {
  double m = 0, v = 0;
  int t = 0;
  double step(double p, double g, double lr, const AdamWOptions& o, double decay) {
    ++t;
    p -= lr * decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, t));
    const double v_hat = v / (1 - std::pow(o.beta2, t));
    return p - lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

TEST(AdamW, FollowsItsDefinition) {
  const AdamWOptions options{0.9, 0.99, 1e-6, 0.1};
  const at::Tensor weight = leaf({1.0, -2.0}), bias = leaf({0.5});
  AdamW optimizer({{"w", weight, true}, {"bias", bias, false}}, options);
  PlainAdamW plain[3];
  double expected[3] = {1.0, -2.0, 0.5};
  for (int step = 1; step <= 5; ++step) {
    const double g[3] = {0.3 * step, -0.7, 0.01 * step};
    set_grad(weight, {g[0], g[1]});
    set_grad(bias, {g[2]});
    ASSERT_OK(optimizer.step(0.01, 0.5));  // gradients count half
    for (int i = 0; i < 3; ++i) expected[i] = plain[i].step(expected[i], 0.5 * g[i], 0.01, options, i < 2 ? 0.1 : 0.0);
    EXPECT_NEAR(weight[0].item<double>(), expected[0], 1e-12);
    EXPECT_NEAR(weight[1].item<double>(), expected[1], 1e-12);
    EXPECT_NEAR(bias[0].item<double>(), expected[2], 1e-12);
  }
  EXPECT_EQ(optimizer.num_updates(), 5);
}

TEST(AdamW, ResumedStateGivesTheSameBits) {
  const AdamWOptions options;
  const auto run = [&](AdamW& optimizer, const at::Tensor& p, int from, int to) {
    for (int step = from; step < to; ++step) {
      set_grad(p, {0.1 * step, -0.2});
      ASSERT_OK(optimizer.step(0.1));
    }
  };
  const at::Tensor straight = leaf({1.0, 2.0});
  AdamW whole({{"p", straight, true}}, options);
  run(whole, straight, 0, 6);

  const at::Tensor first = leaf({1.0, 2.0});
  AdamW before({{"p", first, true}}, options);
  run(before, first, 0, 3);
  StatefulRegistry saved;
  ASSERT_TRUE(saved.add(before).ok());
  const StateSnapshot snapshot = saved.save().value();

  const at::Tensor second = leaf({first[0].item<double>(), first[1].item<double>()});
  AdamW after({{"p", second, true}}, options);
  StatefulRegistry loaded;
  ASSERT_TRUE(loaded.add(after).ok());
  ASSERT_TRUE(loaded.load(snapshot, "test").ok());
  run(after, second, 3, 6);
  EXPECT_EQ(second[0].item<double>(), straight[0].item<double>());
  EXPECT_EQ(second[1].item<double>(), straight[1].item<double>());
}

TEST(AdamW, RefusesStateOfAnotherShape) {
  const at::Tensor two = leaf({1.0, 2.0}), three = leaf({1.0, 2.0, 3.0});
  AdamW before({{"p", two, true}}, {});
  AdamW after({{"p", three, true}}, {});
  StatefulRegistry saved, loaded;
  ASSERT_TRUE(saved.add(before).ok());
  ASSERT_TRUE(loaded.add(after).ok());
  const StateSnapshot snapshot = saved.save().value();
  const auto result = loaded.load(snapshot, "test");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().to_string().find("exp_avg.p"), std::string::npos) << result.error().to_string();
}

TEST(GradNorm, CountsAllParametersAndClipsAsTorchDoes) {
  const at::Tensor a = leaf({0.0, 0.0}), b = leaf({0.0}), c = leaf({1.0});
  set_grad(a, {3.0, 0.0});
  set_grad(b, {4.0});
  EXPECT_DOUBLE_EQ(global_grad_norm({{"a", a}, {"b", b}, {"c", c}}), 5.0);
  EXPECT_DOUBLE_EQ(clip_factor(5.0, 1.0), 1.0 / (5.0 + 1e-6));
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(5.0, 0.0), 1.0);
  set_grad(b, {std::nan("")});
  EXPECT_FALSE(std::isfinite(global_grad_norm({{"a", a}, {"b", b}})));
}

}  // namespace
}  // namespace mortise
