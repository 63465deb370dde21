// One call of a policy loss or KL estimator on plain vectors, and the aggregation weights that the engine would give
// it. With MORTISE_TEST_CUDA in the environment, the packs are those whose CUDA builds the emulator runs, and a plugin
// with a CUDA build gets its tensors on a device that the host cannot read. Each call is then made a second time in host
// memory, and must give the same.
#pragma once

#include <algorithm>
#include <numeric>

#include "support/fake_host.h"
#include "support/flat_tensor.h"

namespace mortise::test {

inline bool tests_cuda() { return std::getenv("MORTISE_TEST_CUDA") != nullptr; }

inline std::string pack_path(const std::string& kind) {
  const bool is_emulated = tests_cuda() && (kind == "policy_loss" || kind == "kl_estimator");
  const std::string folder = is_emulated ? "/tests/emulated_packs/emulated." : "/lib/mortise/packs/mortise.";
  return MORTISE_BINARY_DIR + folder + kind + ".so";
}

// Whether a test of this process gives the plugin tensors of a device.
inline bool is_on_device(const mortise_descriptor* plugin) {
  return tests_cuda() && plugin->get_extension != nullptr && plugin->get_extension(MORTISE_EXT_DEVICE) != nullptr;
}

inline const mortise_descriptor* policy_loss(const std::string& name) {
  return find_plugin(load_pack(pack_path("policy_loss")), MORTISE_KIND_POLICY_LOSS, name);
}

struct LossInput {
  std::vector<int64_t> row_offsets{0};
  std::vector<float> log_prob, old_log_prob, advantages, weight;
  std::vector<float> rollout_log_prob, rollout_is_weights;  // empty: not given
  std::vector<uint8_t> mask;
  std::vector<int64_t> row_id;       // empty: by place
  std::vector<int64_t> group_index;  // empty: every row is a group

  int64_t num_rows() const { return int64_t(row_offsets.size()) - 1; }
  int64_t num_tokens() const { return row_offsets.back(); }
};

struct LossOutput {
  std::vector<float> loss, grad;
  // The aggregated loss of the input's weights.
  double total = 0;
};

// A call of either kind. In and Out are its structs, and `loss` is its output for the loss or the KL. `fill` sets the
// fields of one kind. Throws the plugin's error text.
template <class In, class Out, class Plugin, class Fill>
LossOutput call_loss(Plugin& plugin, const LossInput& in, const mortise_tensor* Out::*loss, bool with_grad, bool device,
                     const Fill& fill) {
  std::vector<int64_t> row_id = in.row_id;
  if (row_id.empty()) {
    row_id.resize(size_t(in.num_rows()));
    std::iota(row_id.begin(), row_id.end(), 0);
  }
  const std::vector<int64_t>& group = in.group_index.empty() ? row_id : in.group_index;
  const mortise_layout layout{sizeof layout, 0,           in.num_rows(), in.num_tokens(), in.row_offsets.data(),
                              row_id.data(), group.data()};
  plugin.call.stream = device ? const_cast<EmulatedStream*>(LockedArea::stream()) : nullptr;
  const FlatTensor<float> log_prob(in.log_prob, device), old(in.old_log_prob, device), weight(in.weight, device);
  const FlatTensor<uint8_t> mask(in.mask, device);
  FlatTensor<float> values(std::vector<float>(in.mask.size()), device),
      grad(std::vector<float>(in.mask.size()), device);
  In args{};
  args.struct_size = sizeof args;
  args.layout = &layout;
  args.log_prob = log_prob.view();
  args.old_log_prob = old.view();
  args.response_mask = mask.view();
  args.weight = weight.view();
  fill(args);
  Out out{};
  out.struct_size = sizeof out;
  out.*loss = values.view();
  out.grad_log_prob = with_grad ? grad.view() : nullptr;
  plugin.call.metrics.clear();
  const int32_t status = plugin.vtable->compute(plugin.self, &plugin.call, &args, &out);
  if (status != 0) throw std::runtime_error("compute: " + plugin.call.error);
  return {values.values(), grad.values()};
}

// The device's numbers may differ in their last bits, as sums have another order there.
inline void expect_same_bar_rounding(double device, double host, const std::string& name) {
  if (std::isnan(host) ? std::isnan(device) : device == host) return;
  if (std::abs(device - host) <= 4e-6 * std::abs(host) + 1e-7) return;
  throw std::runtime_error(name + " is " + std::to_string(device) + " on the device and " + std::to_string(host) +
                           " in host memory");
}

// call(device): where the plugin is tested, and in host memory too if that is a device.
template <class Plugin, class Call>
LossOutput call_in_both_places(Plugin& plugin, const Call& call) {
  const bool device = is_on_device(plugin.call.plugin);
  LossOutput result = call(device);
  if (!device) return result;
  const auto metrics = plugin.call.metrics;
  const LossOutput host = call(false);
  for (size_t i = 0; i < host.loss.size(); ++i) {
    expect_same_bar_rounding(result.loss[i], host.loss[i], "value " + std::to_string(i));
    expect_same_bar_rounding(result.grad[i], host.grad[i], "gradient " + std::to_string(i));
  }
  if (metrics.size() != plugin.call.metrics.size()) throw std::runtime_error("other metrics on the device");
  for (const auto& [name, m] : plugin.call.metrics) {
    expect_same_bar_rounding(metrics.at(name).sum / m.weight, m.sum / m.weight, name);
    expect_same_bar_rounding(metrics.at(name).weight, m.weight, "the weight of " + name);
  }
  plugin.call.metrics = metrics;
  return result;
}

using PolicyLoss = Instance<mortise_policy_loss_vtable>;

inline LossOutput compute_at(bool device, PolicyLoss& plugin, const LossInput& in, bool with_grad) {
  const FlatTensor<float> advantages(in.advantages, device), rollout(in.rollout_log_prob, device),
      is_weights(in.rollout_is_weights, device);
  return call_loss<mortise_policy_loss_in>(plugin, in, &mortise_policy_loss_out::loss, with_grad, device,
                                           [&](mortise_policy_loss_in& args) {
                                             args.advantages = advantages.view();
                                             if (!in.rollout_log_prob.empty()) args.rollout_log_prob = rollout.view();
                                             if (!in.rollout_is_weights.empty())
                                               args.rollout_is_weights = is_weights.view();
                                             args.step = args.update_index = 1;
                                           });
}

inline LossOutput compute(PolicyLoss& plugin, const LossInput& in, bool with_grad = true) {
  LossOutput result =
      call_in_both_places(plugin, [&](bool device) { return compute_at(device, plugin, in, with_grad); });
  for (size_t i = 0; i < in.mask.size(); ++i) {
    if (in.mask[i] != 0) result.total += double(in.weight[i]) * double(result.loss[i]);
  }
  return result;
}

// Token weights by verl's definitions of loss_agg_mode over the given rows, times the optional importance weights.
// seq-mean-token-sum-norm divides only by `factor` (January 2026).
inline std::vector<float> aggregation(const std::string& mode, const LossInput& in, double factor) {
  std::vector<double> per_row(size_t(in.num_rows()));
  double tokens = 0, rows = 0;
  for (size_t i = 0; i < per_row.size(); ++i) {
    for (int64_t t = in.row_offsets[i]; t < in.row_offsets[i + 1]; ++t) per_row[i] += in.mask[size_t(t)];
    tokens += per_row[i];
    rows += per_row[i] > 0;
  }
  std::vector<float> weight(in.mask.size());
  for (size_t i = 0; i < per_row.size(); ++i) {
    for (int64_t t = in.row_offsets[i]; t < in.row_offsets[i + 1]; ++t) {
      double w = 0;
      if (mode == "token-mean")
        w = 1 / tokens;
      else if (mode == "seq-mean-token-mean")
        w = 1 / (per_row[i] * rows);
      else if (mode == "seq-mean-token-sum")
        w = 1 / rows;
      else if (mode == "seq-mean-token-sum-norm")
        w = 1 / factor;
      else
        throw std::runtime_error("unknown loss_agg_mode " + mode);
      weight[size_t(t)] = in.mask[size_t(t)] != 0 ? float(w) : 0.0F;
    }
  }
  return weight;
}

}  // namespace mortise::test
