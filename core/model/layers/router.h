// The router of a mixture of experts: probabilities = softmax(x W^T) over the experts, the largest of which a token
// takes (Shazeer et al. 2017). As in transformers, the softmax that chooses is float32, and torch.topk breaks ties; so
// a model in float64 takes the same experts, with weights of its own precision. The router of gpt-oss has a bias, and
// chooses by its logits.
//
// A pass may be told which experts to take (routing replay), and tells which were taken. The router's losses are
// functions of probabilities and counts over a whole update. The learner knows these, and backward adds its factors.
// Cost: 2 N H E flops with the logits. Thread rule: as libtorch; layers write to places of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/weights/model_config.h"

namespace mortise {

// What routers are told, and tell, in one pass over N tokens. L counts the layers with experts, K a token's experts, E all
// experts.
struct RouterPass {
  // What the routers are told; undefined: nothing.
  at::Tensor given_LNK;  // int64, any order; -1 as the first of a token: the router's own choice
  at::Tensor weight_N;   // float64: how often a token counts in the router's losses
  at::Tensor
      balance_E;  // float64: d loss / d (probability of the expert), of a token that counts once; backward reads it
  double z_factor = 0.0;  // d loss / d (logsumexp of the logits)^2, of a token that counts once
  // What they tell. Sums are over tokens by their weights.
  bool records = false;
  at::Tensor taken_LNK;  // int64, ascending
  at::Tensor count_LE;   // float64: how often each expert was taken
  at::Tensor probs_LE;   // float64: sums of probabilities
  at::Tensor z_L;        // float64: sums of (logsumexp of the logits)^2
};
// Room for what `num_tokens` tokens tell.
void make_room(const ModelConfig& config, int64_t num_tokens, RouterPass& pass);

// The experts that tokens [begin, begin + length) took, token by token (foundation/batch/expert_choices.h).
std::vector<uint16_t> experts_of(const RouterPass& pass, int64_t begin, int64_t length);

struct Routing {
  at::Tensor experts_NK;  // int64, ascending in a row
  at::Tensor weights_NK;
};

// `logits_NE`: x W^T and the bias. `layer` counts the layers with experts; `pass` may be null.
Routing route(at::Tensor logits_NE, const MoeConfig& moe, int64_t layer, RouterPass* pass);

}  // namespace mortise
