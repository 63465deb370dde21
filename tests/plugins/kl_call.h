// One call of a KL estimator on plain vectors.
#pragma once

#include "loss_call.h"

namespace mortise::test {

using Kl = Instance<mortise_kl_estimator_vtable>;

inline const mortise_descriptor* kl_estimator(const std::string& name) {
  return find_plugin(load_pack(pack_path("kl_estimator")), MORTISE_KIND_KL_ESTIMATOR, name);
}

// `rows` of equal length.
inline LossOutput compute_kl(Kl& plugin, const std::vector<float>& log_prob, const std::vector<float>& ref,
                             int64_t rows, float weight = 1, std::vector<uint8_t> mask = {},
                             std::vector<float> old_log_prob = {}) {
  if (old_log_prob.empty()) old_log_prob = log_prob;
  const auto n = int64_t(log_prob.size());
  if (mask.empty()) mask.assign(log_prob.size(), 1);
  std::vector<int64_t> offsets, id;
  for (int64_t i = 0; i <= rows; ++i) offsets.push_back(rows == 0 ? 0 : i * (n / rows)), id.push_back(i);
  const mortise_layout layout{sizeof layout, 0, rows, n, offsets.data(), id.data(), id.data()};
  const FlatTensor<float> x(log_prob), y(ref), z(old_log_prob), w(std::vector<float>(log_prob.size(), weight));
  const FlatTensor<uint8_t> m(mask);
  FlatTensor<float> kl(std::vector<float>(log_prob.size())), grad(std::vector<float>(log_prob.size()));
  mortise_kl_estimator_in in{};
  in.struct_size = sizeof in;
  in.layout = &layout;
  in.log_prob = x.view();
  in.ref_log_prob = y.view();
  in.response_mask = m.view();
  in.weight = w.view();
  in.old_log_prob = z.view();
  mortise_kl_estimator_out out{};
  out.struct_size = sizeof out;
  out.kl = kl.view();
  out.grad_log_prob = grad.view();
  if (plugin.vtable->compute(plugin.self, &plugin.call, &in, &out) != 0) throw std::runtime_error(plugin.call.error);
  return {kl.values(), grad.values()};
}

}  // namespace mortise::test
