// See padded_eval.h.
#include "model/padded_eval.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "model/head/log_prob_head.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

// The real tokens of each row, and their positions in it.
struct RealTokens {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<int64_t>> columns;
};

RealTokens real_tokens(const at::Tensor& ids_BT, const at::Tensor& mask_BT) {
  const at::Tensor ids = ids_BT.to(at::kLong).contiguous();
  const at::Tensor mask = mask_BT.to(at::kLong).contiguous();
  RealTokens out;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    std::vector<int64_t>& row = out.ids.emplace_back();
    std::vector<int64_t>& columns = out.columns.emplace_back();
    for (int64_t t = 0; t < ids.size(1); ++t) {
      if (mask.const_data_ptr<int64_t>()[b * ids.size(1) + t] == 0) continue;
      row.push_back(ids.const_data_ptr<int64_t>()[b * ids.size(1) + t]);
      columns.push_back(t);
    }
  }
  return out;
}

// Flat (B x T) places of tensors to be filled.
at::Tensor as_index(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

Result<PackedBatch> pack_whole_rows(const Model& model, std::span<const std::vector<int64_t>> all_ids) {
  std::vector<PackRow> rows;
  for (const std::vector<int64_t>& ids : all_ids) {
    const std::span<const int64_t> row(ids);
    rows.push_back({row.first(std::min<size_t>(1, row.size())), row.subspan(std::min<size_t>(1, row.size())), -1});
  }
  return pack_rows(rows, {.share_prefix = false, .keep_last_token = true, .vocab_size = model.config().vocab_size});
}

at::Tensor score_rows(const Model& model, std::span<const std::vector<int64_t>> all_ids, std::optional<int64_t> pad_id,
                      const at::Tensor& hidden_NH) {
  std::vector<int64_t> last;
  std::vector<int64_t> rows;
  int64_t begin = 0;
  for (size_t b = 0; b < all_ids.size(); ++b) {
    const std::vector<int64_t>& ids = all_ids[b];
    auto place = static_cast<int64_t>(ids.size()) - 1;
    while (place > 0 && pad_id && ids[static_cast<size_t>(place)] == *pad_id) --place;
    if (place >= 0) {
      last.push_back(begin + place);
      rows.push_back(static_cast<int64_t>(b));
    }
    begin += static_cast<int64_t>(ids.size());
  }
  const at::Tensor scores_BC =
      at::zeros({static_cast<int64_t>(all_ids.size()), model.config().num_labels}, hidden_NH.options());
  const at::Device device = hidden_NH.device();
  const at::Tensor last_CH = hidden_NH.index_select(0, as_index(last).to(device));
  scores_BC.index_copy_(0, as_index(rows).to(device), head_logits(last_CH, model.head()));
  return scores_BC;
}

PaddedEval probability_rows(const Model& model, const RealTokens& real, const PackedBatch& batch,
                            const at::Tensor& hidden_NH, int64_t width) {
  const VocabularyHead head = model.head();
  const int64_t num_rows = batch.num_rows();
  std::vector<int64_t> all_places;
  std::vector<int64_t> pair_places;  // into [B, T-1]
  for (size_t b = 0; b < real.columns.size(); ++b) {
    const std::vector<int64_t>& columns = real.columns[b];
    for (size_t i = 0; i < columns.size(); ++i) {
      all_places.push_back(static_cast<int64_t>(b) * width + columns[i]);
      if (i > 0) pair_places.push_back(static_cast<int64_t>(b) * (width - 1) + columns[i] - 1);
    }
  }
  PaddedEval out;
  const auto options = hidden_NH.options();
  out.logits_BTV = at::zeros({num_rows * width, model.config().vocab_size}, options);
  out.logits_BTV.index_copy_(0, as_index(all_places), head_logits(hidden_NH, head));
  out.logits_BTV = out.logits_BTV.view({num_rows, width, -1});
  const LogProbs found =
      head_log_prob(hidden_NH.index_select(0, batch.predict_index_R).contiguous(), head, batch.targets_R, 1.0, true);
  const int64_t pairs = std::max<int64_t>(0, width - 1);
  out.log_prob_BT1 = at::zeros({num_rows * pairs}, options);
  out.entropy_BT1 = at::zeros({num_rows * pairs}, options);
  out.log_prob_BT1.index_copy_(0, as_index(pair_places), found.log_prob_R);
  out.entropy_BT1.index_copy_(0, as_index(pair_places), found.entropy_R);
  out.log_prob_BT1 = out.log_prob_BT1.view({num_rows, pairs});
  out.entropy_BT1 = out.entropy_BT1.view({num_rows, pairs});
  return out;
}

}  // namespace

Result<PaddedEval> evaluate_padded(const Model& model, const at::Tensor& ids_BT, const at::Tensor& mask_BT,
                                   const ForwardOptions& options) {
  return guard_torch("evaluating a batch", [&]() -> Result<PaddedEval> {
    if (ids_BT.dim() != 2 || mask_BT.sizes() != ids_BT.sizes()) {
      return Error{ErrorKind::kData, "input_ids and attention_mask must both be (B, T)", {}, {}};
    }
    const at::NoGradGuard no_grad;
    const RealTokens real = real_tokens(ids_BT, mask_BT);
    const PackedBatch batch = TRY(pack_whole_rows(model, real.ids));
    const at::Tensor hidden = model.forward_hidden(batch, options);
    if (!model.config().is_classifier) return probability_rows(model, real, batch, hidden, ids_BT.size(1));
    PaddedEval out;
    out.scores_BC = score_rows(model, real.ids, model.config().pad_token_id, hidden);
    return out;
  });
}

Result<at::Tensor> classifier_scores(const Model& model, std::span<const std::vector<int64_t>> rows,
                                     std::optional<int64_t> pad_id, const ForwardOptions& options) {
  return guard_torch("scoring rows", [&]() -> Result<at::Tensor> {
    const at::NoGradGuard no_grad;
    const PackedBatch batch = TRY(pack_whole_rows(model, rows));
    return score_rows(model, rows, pad_id, model.forward_hidden(batch, options));
  });
}

}  // namespace mortise
