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
  const size_t n = log_prob.size();
  LossInput in;
  for (int64_t i = 1; i <= rows; ++i) in.row_offsets.push_back(i * (int64_t(n) / rows));
  in.log_prob = log_prob;
  in.old_log_prob = old_log_prob.empty() ? log_prob : std::move(old_log_prob);
  in.weight.assign(n, weight);
  in.mask = mask.empty() ? std::vector<uint8_t>(n, 1) : std::move(mask);
  return call_in_both_places(plugin, [&](bool device) {
    const FlatTensor<float> reference(ref, device);
    return call_loss<mortise_kl_estimator_in>(
        plugin, in, &mortise_kl_estimator_out::kl, true, device,
        [&](mortise_kl_estimator_in& args) { args.ref_log_prob = reference.view(); });
  });
}

}  // namespace mortise::test
