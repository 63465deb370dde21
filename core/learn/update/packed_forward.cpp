// Packs the rows, runs the decoder, and selects the predicting hidden states.
#include "learn/update/packed_forward.h"

#include <ATen/ops/index_select.h>

#include "model/layers/recompute.h"

namespace mortise {

Result<PackedForward> forward_rows(const Model& model, const StepTable& table, std::span<const int64_t> rows,
                                   const PassOptions& options) {
  std::vector<PackRow> pack_list;
  pack_list.reserve(rows.size());
  for (const int64_t row : rows) {
    const TableRow& from = table.row(row);
    pack_list.push_back(
        {from.prompt_ids, from.response_ids, from.group, table.layout().row_id[static_cast<size_t>(row)]});
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
    const NumberSizes sizes(element, model.has_rounded_matrices() ? 2 : element);
    forward.recomputed_layers =
        layers_to_recompute(model.config(), sizes, packed.num_tokens(), *options.activation_bytes);
  }
  if (options.dropout && model.lora_dropout() > 0.0) {
    forward.lora_dropout = LoraDropout{model.lora_dropout(), options.dropout->seed, options.dropout->update,
                                       packed.owners_N, packed.positions_N};
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

Result<> finish_forward(std::initializer_list<const Model*> models) {
  for (const Model* model : models) {
    if (model == nullptr || model->gate() == nullptr) continue;
    model->gate()->finish_forward();
    TRY(model->gate()->status());
  }
  return {};
}

}  // namespace mortise
