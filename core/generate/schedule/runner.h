// One decode step of all running samples: the part in which the fast path and its plain reference implementation
// differ.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "foundation/base/result.h"
#include "foundation/base/rng.h"
#include "generate/decode/shared_weights.h"
#include "generate/schedule/scheduler.h"
#include "model/model.h"

namespace mortise {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // out[i] becomes the next token of samples[i], or kNotDrawn if its prompt has not entered yet. Thread rule: one thread at
  // a time.
  virtual Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples,
                               std::span<SampledToken> out) = 0;
  virtual void weights_changed(uint64_t state) = 0;  // what was derived from them in another state is stale
  virtual void free_caches() = 0;
  virtual std::string_view name() const = 0;
};

struct RunnerOptions {
  RandomPurpose purpose = RandomPurpose::kSampling;
  Isa isa = Isa::kAuto;
  int num_threads = 1;
  int64_t max_batch_tokens = 256;                 // rows of one pass of new prompts; a longer prompt takes several
  std::shared_ptr<SharedWeights> shared_weights;  // null: the runner's own
  WeightFormat weights = WeightFormat::kFloat32;  // how the fast path stores weights
  bool records_experts = false;                   // sequences tell the experts that their tokens took
  bool keeps_forward = false;                     // the fast path fills the model's SampledForward
  bool deterministic = false;                     // the plain path: each sample alone on one thread
  bool has_graphs = true;                         // a device: by graphs where they can be made
  std::shared_ptr<TensorRanks> ranks = {};        // that sample together, each with its part of the layers; null: none
};

// Kernels of this room, KV cache, prompts computed once. Needs a float32 CPU model.
Result<std::unique_ptr<StepRunner>> make_fast_runner(const Model& model, KvCache& kv, const RunnerOptions& options);
// The model's plain layers on whole sequences, sample_plain.
std::unique_ptr<StepRunner> make_plain_runner(const Model& model, const RunnerOptions& options);

// For a model with the code of a device, which does all its passes. It has no `deterministic`. With kernels (paged_kernels())
// its keys and values are in the pages of `kv`, which are kOnDevice.
std::unique_ptr<StepRunner> make_device_runner(const Model& model, KvCache& kv, const RunnerOptions& options);

// The random key of a sample's next token.
inline RngKey key_of(const RunningSample& sample, RandomPurpose purpose) {
  const GenerateRequest& request = sample.group->request;
  return {request.seed, purpose, static_cast<uint64_t>(request.step),
          static_cast<uint64_t>(request.first_row_id + sample.sequence.sample_index),
          static_cast<uint32_t>(sample.sequence.ids.size())};
}

}  // namespace mortise
