// How to compute updates: settings that change numbers (temperature, clipping), and settings that change only memory
// and speed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "learn/update/micro_batches.h"
#include "learn/update/pass_flops.h"
#include "learn/update/rank_share.h"
#include "model/head/log_prob_head.h"
#include "model/layers/decoder.h"

namespace mortise {

// What the losses of routers add to the gradient (RouterPass). `balance_E` may be filled in until backward runs.
struct RouterTerms {
  at::Tensor balance_E;
  double z_factor = 0.0;
};

// Coefficients of the routers' losses (router_losses.h). aux_coef not set: the model's own.
struct RouterLossOptions {
  std::optional<double> aux_coef = 0.0;
  double z_coef = 0.0;
};

// One pass of rows through the model. Except for dropout and noise, no gradient depends on it.
struct PassOptions {
  bool share_prompts = true;  // false: every row has its own prompt, as the reference for the other form
  // Bytes of activations that a pass may keep for backward; layers that do not fit are computed again. Not set: all are
  // kept.
  std::optional<int64_t> activation_bytes;
  LayerPath path = LayerPath::kFast;
  // LoRA dropout, if the model's adapter has it. Only updates do: the policy that samples has none.
  struct Dropout {
    uint64_t seed = 0;
    uint64_t update = 0;  // in the run
  };
  std::optional<Dropout> dropout;
  // NEFTune's alpha: the noise in the embeddings of updates, which have `dropout`. 0: none. Every row then has its own
  // prompt.
  double noise_alpha = 0.0;
  std::shared_ptr<const RouterTerms> router = {};  // the routers of the policy have losses; null: they have none
  bool replays_experts = false;                    // takes the experts of the table again, if it has them
  bool records_experts = false;                    // PackedForward::experts
  std::shared_ptr<SequenceGroup> sequence = {};    // shares the tokens of the pass; null: this rank has all
  const SampledForward* sampled = nullptr;         // has what layers and attention give; null: the pass computes it
  FlopCount* flops = nullptr;                      // every pass adds its operations; null: no count
};

// Draws the policy to a teacher at every completion token (model/head/divergence.h).
struct TeacherLoss {
  const Model* teacher = nullptr;  // borrowed; null: there is no such term
  double coef = 0.0, beta = 0.5;
};

struct LearnerOptions {
  double temperature = 1.0;  // divides the logits of every log-prob; sft has none
  double grad_clip = 1.0;    // L2 norm; 0 = no clipping
  MicroBatchOptions micro_batch;
  PassOptions pass;
  HeadOptions head;
  const Model* reference = nullptr;  // for a KL over the whole vocabulary; borrowed
  TeacherLoss teacher_loss;
  RouterLossOptions router_losses;
  RankOptions ranks;
  std::shared_ptr<SequenceGroup> reference_sequence = {};  // as RankOptions::sequence, for log-probs of the reference
  uint64_t seed = 0;                                       // the run's seed; for dropout and noise
  SampledForward* sampled = nullptr;  // what sampling has computed of the step's rows; borrowed; null: it keeps nothing
  // Computes it of these rows of the table, which are not in `sampled`. Set if that is.
  std::function<Result<>(const StepTable&, std::span<const int64_t> rows)> sample_again = {};

  // Passes share their tokens in this group from now on.
  void share_tokens(std::shared_ptr<SequenceGroup> group) { ranks.sequence = pass.sequence = std::move(group); }
  // The passes of an update: the run's n-th.
  [[nodiscard]] PassOptions update_pass(int64_t update) const {
    PassOptions out = pass;
    out.dropout = {seed, static_cast<uint64_t>(update)};
    if (out.noise_alpha > 0.0) out.share_prompts = false;
    return out;
  }
};

}  // namespace mortise
