// Counts the floating-point operations of a pass from its shapes.
#include "learn/update/pass_flops.h"

#include <algorithm>

namespace mortise {

namespace {

// Pairs of a token and one that it sees, itself being one. window 0: all before it.
double visible_pairs(const PackedBatch& batch, int64_t window) {
  double pairs = 0.0;
  for (const PackedSegment& segment : batch.segments) {
    for (int64_t i = 0; i < segment.length; ++i) {
      const int64_t seen = segment.position + i + 1;
      pairs += static_cast<double>(window > 0 ? std::min(seen, window) : seen);
    }
  }
  return pairs;
}

// Share of the numbers of the layers' matrices that are trained themselves, not by an adapter.
double trained_share(const Model& model) {
  double trained = 0.0, all = 0.0;
  for (const NamedParameter& parameter : model.parameters()) {
    if (parameter.tensor.dim() < 2 || parameter.name.find(".layers.") == std::string::npos) continue;
    const auto size = static_cast<double>(parameter.tensor.numel());
    all += size;
    trained += parameter.tensor.requires_grad() ? size : 0.0;
  }
  return trained / all;
}

}  // namespace

PassFlops pass_flops(const Model& model, const PackedBatch& batch) {
  const ModelConfig& config = model.config();
  const auto size = [](int64_t value) { return static_cast<double>(value); };
  const MoeConfig& moe = config.moe;
  const double mixtures = size(config.num_expert_layers());
  const double units = (size(config.num_layers) - mixtures) * 3.0 * size(config.intermediate_size) +
                       mixtures * (3.0 * size(moe.experts_per_token * moe.expert_size + moe.shared_size) +
                                   size(moe.num_experts));  // each token passes these MLPs
  const double weights =
      size(config.hidden_size) * (size(config.num_layers) * size(config.qkv_size() + config.q_size()) + units);
  const int64_t outputs = config.is_classifier ? config.num_labels : config.vocab_size;
  const double in_layers = 2.0 * size(batch.num_tokens()) * weights;
  const double in_head = 2.0 * size(batch.num_targets()) * size(config.hidden_size) * size(outputs);
  const double all_pairs = visible_pairs(batch, 0);
  double attention = 0.0;  // scores and the sum of the values, by layer
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const int64_t window = config.window(layer);
    attention += 4.0 * size(config.q_size()) * (window > 0 ? visible_pairs(batch, window) : all_pairs);
  }
  // Backward needs the inputs' gradients in the layers that it reaches, and those of the weights that are trained.
  const double reached = size(config.num_layers + 1 - model.lowest_backward()) / size(config.num_layers);
  const double head_factor = model.head_weight().requires_grad() ? 2.0 : 1.0;
  return {in_layers + in_head + attention, in_head,
          (reached + trained_share(model)) * in_layers + head_factor * in_head + 2.0 * reached * attention};
}

}  // namespace mortise
