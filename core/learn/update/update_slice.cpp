#include "learn/update/update_slice.h"

namespace mortise {

ObjectiveInput UpdateSlice::input(size_t begin, size_t end, const Layout& layout) const {
  const auto part = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    return values.empty() ? std::span<const T>{} : std::span<const T>(values).subspan(begin, end - begin);
  };
  ObjectiveInput in;
  in.layout = layout;
  in.log_prob = part(log_prob);
  in.old_log_prob = part(old_log_prob);
  in.advantages = part(advantages);
  in.response_mask = part(mask);
  in.weight = part(weight);
  in.ref_log_prob = part(ref_log_prob);
  in.rollout_log_prob = part(rollout_log_prob);
  in.rollout_is_weights = part(rollout_is_weights);
  in.entropy = part(entropy);
  in.step = step;
  in.update_index = update_index;
  return in;
}

Result<UpdateSlice> make_slice(const TrainBatch& batch, std::span<const int64_t> rows, std::span<const int64_t> row_id,
                               const TokenWeightOptions& aggregation, const UpdateCounts& counts) {
  UpdateSlice out;
  out.on_policy = batch.old_log_prob.empty();
  out.rows.assign(rows.begin(), rows.end());
  out.row_id.assign(row_id.begin(), row_id.end());
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    const auto begin = batch.row_offsets[r];
    const auto end = batch.row_offsets[r + 1];
    out.group_index.push_back(batch.group_index[r]);
    out.row_offsets.push_back(out.row_offsets.back() + end - begin);
    out.mask.insert(out.mask.end(), batch.response_mask.begin() + begin, batch.response_mask.begin() + end);
    for (auto [from, to] :
         {std::pair{&batch.advantages, &out.advantages}, std::pair{&batch.old_log_prob, &out.old_log_prob},
          std::pair{&batch.ref_log_prob, &out.ref_log_prob}, std::pair{&batch.rollout_log_prob, &out.rollout_log_prob},
          std::pair{&batch.rollout_is_weights, &out.rollout_is_weights}}) {
      if (!from->empty()) to->insert(to->end(), from->begin() + begin, from->begin() + end);
    }
  }
  const size_t tokens = out.num_tokens();
  out.weight.resize(tokens);
  TRY(token_weights(aggregation, counts, out.row_offsets, out.mask, out.group_index, out.weight));
  for (auto* values : {&out.log_prob, &out.entropy, &out.grad_log_prob, &out.grad_entropy}) values->resize(tokens);
  if (out.on_policy) out.old_log_prob.resize(tokens);
  return out;
}

}  // namespace mortise
