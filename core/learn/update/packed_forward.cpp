#include "learn/update/packed_forward.h"

#include <ATen/ops/index_select.h>

#include "model/layers/recompute.h"

namespace mortise {

Result<PackedForward> forward_rows(const Model& model, const TrainBatch& batch, std::span<const int64_t> rows,
                                   const PassOptions& options) {
  std::vector<PackRow> pack_list;
  pack_list.reserve(rows.size());
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    pack_list.push_back({batch.prompt_ids[r], batch.response_ids[r], batch.group_index[r]});
  }
  PackOptions pack;
  pack.share_prefix = options.share_prompts;
  pack.vocab_size = model.config().vocab_size;
  pack.max_positions = model.config().max_length();
  const PackedBatch packed = TRY(pack_rows(pack_list, pack));
  ForwardOptions forward;
  forward.path = options.path;
  if (options.activation_bytes) {
    const int64_t element = model.dtype() == at::kDouble ? 8 : 4;
    forward.recomputed_layers =
        layers_to_recompute(model.config(), element, packed.num_tokens(), *options.activation_bytes);
  }
  PackedForward out;
  out.selected_RH = at::index_select(model.forward_hidden(packed, forward), 0, packed.predict_index_R);
  out.hidden_RH = out.selected_RH.detach();
  out.targets_R = packed.targets_R;
  if (options.flops != nullptr) {
    const PassFlops cost = pass_flops(model, packed);
    options.flops->total += cost.forward;
    out.flops = options.flops;
    out.backward_flops = cost.backward;
  }
  return out;
}

}  // namespace mortise
