// Packs the rows, runs the decoder, and selects the predicting hidden states.
#include "learn/update/packed_forward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/layers/kernel_layers.h"
#include "model/layers/recompute.h"
#include "model/layers/select_rows.h"

namespace mortise {

namespace {

// How many rows each token belongs to.
at::Tensor row_counts(const PackedBatch& packed) {
  at::Tensor out = at::empty({packed.num_tokens()}, at::TensorOptions().dtype(at::kDouble));
  auto* const counts = out.mutable_data_ptr<double>();
  for (const PackedSegment& segment : packed.segments)
    std::fill_n(counts + segment.begin, segment.length, static_cast<double>(segment.num_rows));
  return out;
}

// The experts of the table's rows by packed token.
at::Tensor given_experts(const ModelConfig& config, const StepTable& table, std::span<const int64_t> rows,
                         const PackedBatch& packed) {
  const ExpertChoices& choices = table.experts();
  const int64_t k = config.moe.experts_per_token, layers = choices.width / k, tokens = packed.num_tokens();
  at::Tensor out = at::full({layers, tokens, k}, -1, at::kLong);
  auto* const given = out.mutable_data_ptr<int64_t>();
  for (size_t b = 0; b < rows.size(); ++b) {
    const PackedRow& place = packed.rows[b];
    const auto num_prompt = static_cast<int64_t>(table.row(rows[b]).prompt_ids.size());
    const std::span<const uint16_t> of_row = choices.of_row(rows[b]);
    for (int64_t i = 0; i < num_prompt + place.num_response; ++i) {
      const int64_t token = i < num_prompt ? place.prompt + i : place.response + i - num_prompt;
      for (int64_t layer = 0; layer < layers; ++layer) {
        const auto from = of_row.subspan(static_cast<size_t>(i * choices.width + layer * k), static_cast<size_t>(k));
        if (from[0] != kNoExpert) std::ranges::copy(from, given + (layer * tokens + token) * k);
      }
    }
  }
  return out;
}

// Response tokens that were not computed get no expert.
ExpertChoices taken_experts(const StepTable& table, std::span<const int64_t> rows, const PackedBatch& packed,
                            const RouterPass& pass) {
  ExpertChoices out;
  for (size_t b = 0; b < rows.size(); ++b) {
    const PackedRow& place = packed.rows[b];
    const TableRow& row = table.row(rows[b]);
    std::vector<uint16_t> of_row = experts_of(pass, place.prompt, static_cast<int64_t>(row.prompt_ids.size()));
    const std::vector<uint16_t> response = experts_of(pass, place.response, place.num_response);
    of_row.insert(of_row.end(), response.begin(), response.end());
    const auto num_tokens = static_cast<int64_t>(row.prompt_ids.size() + row.response_ids.size());
    of_row.resize(static_cast<size_t>(num_tokens * pass.taken_LNK.size(0) * pass.taken_LNK.size(2)), kNoExpert);
    out.append(of_row, num_tokens);
  }
  return out;
}

// This rank's part of what there is for every packed token.
at::Tensor own_tokens(const SequenceShard* shard, const at::Tensor& whole, int64_t dim = 0) {
  return shard == nullptr ? whole : shard->own(whole, dim);
}

// Null: the routers are told nothing, and tell nothing.
std::shared_ptr<RouterPass> router_pass(const Model& model, const StepTable& table, std::span<const int64_t> rows,
                                        const PackedBatch& packed, const SequenceShard* shard,
                                        const PassOptions& options) {
  const bool replays = options.replays_experts && !table.experts().empty();
  const bool records = options.records_experts && model.config().num_expert_layers() > 0;
  if (options.router == nullptr && !replays && !records) return nullptr;
  auto pass = std::make_shared<RouterPass>();
  if (options.router != nullptr || records)
    make_room(model.config(), shard != nullptr ? shard->count() : packed.num_tokens(), *pass);
  if (replays) pass->given_LNK = own_tokens(shard, given_experts(model.config(), table, rows, packed), 1);
  if (options.router == nullptr) return pass;
  pass->weight_N = own_tokens(shard, row_counts(packed));
  pass->balance_E = options.router->balance_E;
  pass->z_factor = options.router->z_factor;
  return pass;
}

// The same with the experts that the tokens of all ranks took.
RouterPass of_all_ranks(const RouterPass& pass, const SequenceShard& shard, SequenceGroup& group) {
  RouterPass out = pass;
  const at::Tensor& own = pass.taken_LNK;
  out.taken_LNK = at::zeros({own.size(0), shard.offsets.back(), own.size(2)}, own.options());
  out.taken_LNK.narrow(1, shard.begin(), shard.count()).copy_(own);
  group.sum(out.taken_LNK);
  return out;
}

// How the pass over the packed rows runs, but for its routers.
ForwardOptions forward_options(const Model& model, const PackedBatch& packed, const SequenceShard* shard,
                               const PassOptions& options) {
  ForwardOptions forward;
  forward.path = options.path;
  if (options.activation_bytes) {
    const int64_t element = model.dtype() == at::kDouble ? 8 : 4;
    NumberSizes sizes(element, model.has_rounded_matrices() ? 2 : element);
    sizes.by_operators = model.device().by_operators;
    sizes.by_kernels = sizes.by_operators && kernel_layers(model.weights().embedding_VH.options()) != nullptr;
    sizes.has_adapter = model.trains_lora();
    // As many on all ranks that share the tokens: a layer that is computed again exchanges them again.
    const int64_t num_tokens = shard != nullptr ? shard->largest() : packed.num_tokens();
    forward.recomputed_layers = layers_to_recompute(model.pass_config(), sizes, num_tokens, *options.activation_bytes);
  }
  if (options.dropout && model.lora_dropout() > 0.0) {
    const auto placed = [&](const at::Tensor& whole) { return own_tokens(shard, whole).to(model.device().device); };
    forward.lora_dropout = LoraDropout{model.lora_dropout(), options.dropout->seed, options.dropout->update,
                                       placed(packed.owners_N), placed(packed.positions_N)};
  }
  return forward;
}

// NEFTune's noise of rows that share no prompt. The length of a row is that of its prompt and response.
EmbeddingNoise noise_of(const Model& model, std::span<const PackRow> rows, const PackedBatch& packed,
                        const SequenceShard* shard, const PassOptions& options) {
  const at::Tensor row_N = at::zeros({packed.num_tokens()}, at::kLong);
  const at::Tensor bound_N = at::zeros({packed.num_tokens()}, at::kDouble);
  const auto width = static_cast<double>(model.config().hidden_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    const PackedRow& place = packed.rows[i];
    const int64_t prompt = std::ssize(rows[i].prompt_ids), response = std::ssize(rows[i].response_ids);
    const double bound = options.noise_alpha / std::sqrt(static_cast<double>(prompt + response) * width);
    for (const auto& [begin, count] :
         {std::pair{place.prompt, prompt}, std::pair{place.response, place.num_response}}) {
      row_N.narrow(0, begin, count).fill_(rows[i].row_id);
      bound_N.narrow(0, begin, count).fill_(bound);
    }
  }
  return {options.dropout->seed, options.dropout->update, own_tokens(shard, row_N),
          own_tokens(shard, packed.positions_N), own_tokens(shard, bound_N)};
}

// The hidden states that predict the targets which this rank has, and these.
Result<> select_targets(const PackedBatch& packed, const std::shared_ptr<const SequenceShard>& shard,
                        const PassOptions& options, const at::Tensor& hidden, PackedForward& out) {
  if (shard != nullptr) TRY(options.sequence->status());
  out.targets = shard != nullptr ? TargetShare(options.sequence, *shard, packed.predict_index_R)
                                 : TargetShare(packed.num_targets());
  out.targets_R = out.targets.own(packed.targets_R);
  at::Tensor place = out.targets.own(packed.predict_index_R);
  if (shard != nullptr) place = place - shard->begin();
  out.selected_RH = select_rows(hidden, place);
  out.hidden_RH = out.selected_RH.detach();
  return {};
}

}  // namespace

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
  pack.keep_last_token = options.router != nullptr;  // it counts in the losses of routers
  pack.vocab_size = model.config().vocab_size;
  pack.max_positions = model.config().max_length();
  const PackedBatch packed = TRY(pack_rows(pack_list, pack));
  const std::shared_ptr<const SequenceShard> shard =
      options.sequence != nullptr ? std::make_shared<SequenceShard>(options.sequence, packed.num_tokens()) : nullptr;
  ForwardOptions forward = forward_options(model, packed, shard.get(), options);
  forward.sequence = shard;
  if (options.dropout && options.noise_alpha > 0.0)
    forward.embedding_noise = noise_of(model, pack_list, packed, shard.get(), options);
  PackedForward out;
  if (options.sampled != nullptr && packed.num_tokens() > 0) {
    std::vector<int64_t> row_ids;
    for (const PackRow& row : pack_list) row_ids.push_back(row.row_id);
    forward.sampled = TRY(options.sampled->pass(packed, row_ids));
  }
  out.routing = forward.routing = router_pass(model, table, rows, packed, shard.get(), options);
  TRY(select_targets(packed, shard, options, model.forward_hidden(packed, forward), out));
  const TensorRanks* const tensor = model.model_part() != nullptr ? model.model_part()->ranks().get() : nullptr;
  TRY(check_tensor_ranks(model));
  if (options.records_experts && out.routing != nullptr) {
    out.experts = taken_experts(
        table, rows, packed, shard == nullptr ? *out.routing : of_all_ranks(*out.routing, *shard, *options.sequence));
  }
  if (options.flops != nullptr) {
    const double num_ranks =
        (options.sequence != nullptr ? options.sequence->size() : 1) * (tensor != nullptr ? tensor->size() : 1);
    const PassFlops cost = pass_flops(model, packed);
    options.flops->total += (options.sampled != nullptr ? cost.head : cost.forward) / num_ranks;
    out.flops = options.flops;
    out.backward_flops = cost.backward / num_ranks;
  }
  return out;
}

Result<> check_tensor_ranks(const Model& model) {
  return model.model_part() == nullptr ? Result<>() : model.model_part()->ranks()->status();
}

Result<> help_forward(const Model* model) {
  if (model == nullptr || model->gate() == nullptr) return {};
  model->gate()->finish_forward();
  return model->gate()->status();
}

Result<> finish_forward(std::initializer_list<const Model*> models) {
  // A rank walks over heads when the forward passes of all its models are over.
  for (const auto& finish : {&WeightGate::finish_forward, &WeightGate::help_walks}) {
    for (const Model* model : models) {
      if (model == nullptr || model->gate() == nullptr) continue;
      (model->gate()->*finish)();
      TRY(model->gate()->status());
    }
  }
  return {};
}

}  // namespace mortise
