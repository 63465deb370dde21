// What a device computes against numbers that are not Mortise's own: transformers' for the golden folders, and finite
// differences.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gmock/gmock.h>

#include "device/device_under_test.h"
#include "foundation/formats/safetensors.h"
#include "support/golden_models.h"
#include "support/temp_dir.h"
#include "support/this_build.h"
#include "unit/model/gradient_fixture.h"

namespace mortise {
namespace {

struct GoldenRows {
  std::vector<std::vector<int64_t>> ids;      // the real tokens of each row
  std::vector<std::vector<double>> log_prob;  // the first token has none
};

GoldenRows golden_rows(const SafetensorsFile& file) {
  const TensorView ids = file.get("in.input_ids").value(), mask = file.get("in.attention_mask").value(),
                   want = file.get("expected.log_prob").value();
  const int64_t width = ids.shape[1];
  const auto* const tokens = reinterpret_cast<const int64_t*>(ids.bytes.data());
  const auto* const is_real = reinterpret_cast<const int64_t*>(mask.bytes.data());
  const auto* const numbers = reinterpret_cast<const float*>(want.bytes.data());
  GoldenRows out;
  for (int64_t b = 0; b < ids.shape[0]; ++b) {
    std::vector<int64_t>& row = out.ids.emplace_back();
    std::vector<double>& log_prob = out.log_prob.emplace_back();
    for (int64_t t = 0; t < width; ++t) {
      if (is_real[b * width + t] == 0) continue;
      if (!row.empty()) log_prob.push_back(numbers[b * (width - 1) + t - 1]);
      row.push_back(tokens[b * width + t]);
    }
  }
  return out;
}

// Folders of classifiers have scores in place of log-probs.
std::vector<std::string> golden_decoders() {
  std::vector<std::string> names = test::golden_models("forward.safetensors");
  std::erase_if(names, [](const std::string& name) {
    const auto file = SafetensorsFile::open(default_env(), test::golden_model(name) / "forward.safetensors");
    return file.ok() && !file->get("expected.log_prob").ok();
  });
  return names;
}

class DeviceGolden : public testing::TestWithParam<std::string> {};

TEST_P(DeviceGolden, LogProbsAreThoseOfTransformers) {
  const Path folder = test::golden_model(GetParam());
  auto file = SafetensorsFile::open(default_env(), folder / "forward.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  auto model = Model::load(default_env(), folder, "float32");
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  ASSERT_OK(model->move_to(device_under_test));
  const GoldenRows golden = golden_rows(*file);
  std::vector<PackRow> rows;
  for (const std::vector<int64_t>& ids : golden.ids)
    rows.push_back({std::span(ids).first(1), std::span(ids).subspan(1), -1});
  const PackedBatch batch = *pack_rows(rows, {.share_prefix = false, .vocab_size = model->config().vocab_size});
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = model->forward_hidden(batch);
  const LogProbs got = head_log_prob(hidden.index_select(0, batch.predict_index_R.to(hidden.device())), model->head(),
                                     batch.targets_R, 1.0, false);
  const double drift = file->metadata().contains("float32_drift") ? std::stod(file->metadata().at("float32_drift")) : 0;
  const double tolerance = std::max(5e-5, 2.5 * drift);
  int64_t at = 0;
  for (const std::vector<double>& row : golden.log_prob) {
    for (const double want : row) ASSERT_NEAR(got.log_prob_R.const_data_ptr<float>()[at++], want, tolerance);
  }
  EXPECT_EQ(at, got.log_prob_R.numel());
}

INSTANTIATE_TEST_SUITE_P(All, DeviceGolden, testing::ValuesIn(golden_decoders()),
                         [](const auto& info) { return info.param; });

class DeviceDifferences : public testing::TestWithParam<Family> {};

// In float64, along one direction for each parameter.
TEST_P(DeviceDifferences, GradientsEqualFiniteDifferences) {
  constexpr double kStep = 1e-5;
  Fixture setup = make_setup(GetParam(), false);
  ASSERT_OK(setup.model.move_to(device_under_test));
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const auto loss = [&](bool records) {
    const at::AutoGradMode mode(records);
    const at::Tensor hidden = setup.model.forward_hidden(batch);
    return (hidden * random_tensor(hidden.sizes().vec(), 5).to(hidden.device())).sum();
  };
  loss(true).backward();
  const at::NoGradGuard no_grad;
  uint64_t seed = 100;
  for (const NamedParameter& parameter : setup.model.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;  // the head, which has no part in the loss
    const at::Tensor data = parameter.tensor.detach();
    at::Tensor direction = random_tensor(data.sizes().vec(), ++seed).to(data.device());
    direction = direction / at::linalg_vector_norm(direction);
    data.add_(direction, kStep);
    const double above = loss(false).item<double>();
    data.sub_(direction, 2 * kStep);
    const double below = loss(false).item<double>();
    data.add_(direction, kStep);
    const double numeric = (above - below) / (2 * kStep), want = (gradient * direction).sum().item<double>();
    EXPECT_NEAR(numeric, want, 1e-6 * std::max(1.0, std::abs(want))) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceDifferences,
                         testing::Values(Family::kQwen2, Family::kGemma2, Family::kQwen3Moe, Family::kGptOss));

}  // namespace
}  // namespace mortise
