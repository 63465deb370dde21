// Policy losses with their gradients where a run computes them: on the host, and on a GPU if the pack has a CUDA build.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "device/parts.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/held_columns.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/registry.h"
#include "train/run/plugin_memory.h"

namespace mortise {
namespace {

// Memory of the device, which counts the bytes that go there and come back.
class CountedBytes final : public MirroredBytes {
 public:
  CountedBytes(std::unique_ptr<MirroredBytes> own, int64_t& moved) : own_(std::move(own)), moved_(moved) {}
  std::byte* host() override { return own_->host(); }
  std::byte* device() override { return own_->device(); }
  void* stream() override { return own_->stream(); }
  Result<> send(size_t size) override {
    moved_ += static_cast<int64_t>(size);
    return own_->send(size);
  }
  Result<> receive(size_t from, size_t size) override {
    moved_ += static_cast<int64_t>(size);
    return own_->receive(from, size);
  }

 private:
  std::unique_ptr<MirroredBytes> own_;
  int64_t& moved_;
};

class CountedDevice final : public PluginDevice {
 public:
  explicit CountedDevice(at::Device device) : own_(plugin_device(device)) {}
  int32_t type() const override { return own_->type(); }
  int32_t index() const override { return own_->index(); }
  Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) override {
    return std::unique_ptr<MirroredBytes>(std::make_unique<CountedBytes>(TRY(own_->mirror(size)), moved));
  }
  int64_t moved = 0;

 private:
  std::unique_ptr<PluginDevice> own_;
};

std::span<const float> floats(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<size_t>(x.numel())};
}

// Rows of one length, in groups of 8, with advantages of both signs and ratios on both sides of a clip of 0.2.
struct LossRows {
  LossRows(int64_t rows, int64_t length) : num_tokens(rows * length) {
    for (at::Tensor* const one : {&log_prob, &old_log_prob, &advantages, &weight, &rollout, &loss, &grad})
      *one = at::empty({num_tokens}, at::kFloat);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const double wave = std::sin(0.7 * static_cast<double>(t)), other = std::sin(1.3 * static_cast<double>(t));
      old_log_prob.mutable_data_ptr<float>()[t] = static_cast<float>(-2.0 + wave);
      log_prob.mutable_data_ptr<float>()[t] = static_cast<float>(-2.0 + wave + 0.3 * other);
      rollout.mutable_data_ptr<float>()[t] = static_cast<float>(-2.0 + wave - 0.1 * other);
      advantages.mutable_data_ptr<float>()[t] = static_cast<float>(std::cos(static_cast<double>(t / length)));
    }
    weight.fill_(1.0 / static_cast<double>(num_tokens));
    mask.assign(static_cast<size_t>(num_tokens), 1);
    for (int64_t row = 0; row <= rows; ++row) row_offsets.push_back(row * length);
    for (int64_t row = 0; row < rows; ++row) {
      row_id.push_back(row);
      group_index.push_back(row / 8);
    }
    view.layout = {row_offsets, row_id, group_index};
    view.set<column::LogProb>(floats(log_prob));
    view.set<column::OldLogProb>(floats(old_log_prob));
    view.set<column::Advantages>(floats(advantages));
    view.set<column::ResponseMask>(mask);
    view.set<column::Weight>(floats(weight));
    view.set<column::RolloutLogProb>(floats(rollout));
  }
  LossRows(const LossRows&) = delete;
  LossRows& operator=(const LossRows&) = delete;

  int64_t num_tokens;
  at::Tensor log_prob, old_log_prob, advantages, weight, rollout, loss, grad;
  std::vector<uint8_t> mask;
  std::vector<int64_t> row_offsets, row_id, group_index;
  StepView view;
};

Result<PolicyLoss> make_loss(PluginRegistry& registry, const std::string& name, PluginDevice* device) {
  Json params = Json::object();
  if (name == "dro") params["dro_beta"] = 0.3;
  RunKey key;
  key.device = device;
  return PolicyLoss::create(registry, name, params, key);
}

// One call after another, as a run makes it: all columns go to the device, outputs come back.
Result<std::vector<double>> time_calls(const BenchDevice& bench, PolicyLoss& loss, LossRows& rows, int64_t repeats) {
  const auto tokens = static_cast<size_t>(rows.num_tokens);
  PolicyLossOutput out;
  out.loss = {rows.loss.mutable_data_ptr<float>(), tokens};
  out.grad_log_prob = {rows.grad.mutable_data_ptr<float>(), tokens};
  Result<> failed;
  const std::vector<double> seconds = bench.times(repeats, [&] {
    MetricSet metrics;
    const Result<> done = loss.compute(rows.view, out, &metrics);
    if (!done.ok()) failed = done.error();
  });
  TRY(std::move(failed));
  return seconds;
}

Result<Json> bench_loss(const BenchDevice& bench, PluginRegistry& registry, const std::string& name, LossRows& rows,
                        int64_t repeats) {
  PolicyLoss here = TRY(make_loss(registry, name, nullptr));
  std::vector<double> seconds_here = TRY(time_calls(bench, here, rows, repeats));
  Json out = {{"name", name}, {"seconds", std::move(seconds_here)}, {"device", Json()}};
  if (!bench.device().device.is_cuda()) return out;
  CountedDevice device(bench.device().device);
  PolicyLoss there = TRY(make_loss(registry, name, &device));
  if (there.instance().device() == nullptr) return out;  // the pack has no CUDA build
  const at::Tensor want = rows.grad.clone();
  std::vector<double> seconds = TRY(time_calls(bench, there, rows, repeats));
  const double apart = (rows.grad - want).norm().item<double>() / std::max(want.norm().item<double>(), 1e-30);
  out["device"] = {{"seconds", std::move(seconds)}, {"bytes", device.moved / (repeats + 1)}, {"difference", apart}};
  return out;
}

}  // namespace

Result<Json> bench_losses(const BenchDevice& bench, const Json& request) {
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  LossRows rows(request.at("rows").get<int64_t>(), request.at("length").get<int64_t>());
  Json out = Json::array();
  for (const auto& name : request.at("names").get<std::vector<std::string>>())
    out.push_back(TRY(bench_loss(bench, registry, name, rows, request.at("repeats").get<int64_t>())));
  return Json{{"losses", std::move(out)}};
}

}  // namespace mortise
