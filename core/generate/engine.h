// GenerateEngine: completions from the weights that are being trained, in this process.
//
// Submit requests, then poll until none is outstanding. Call set_version after an update of the weights. poll does the
// work, on the caller's thread and the team's. The engine computes a prompt once for all its samples, and a common
// start of several prompts once for all of them. A finished sample leaves the batch at once, and a waiting one takes
// its place. A token is a function of (weights, prompt, seed, step, row id, position, sampling). It does not depend on
// other requests, slots, max_num_seqs or threads, bit for bit on one kind of CPU. The fast path is deterministic by
// construction. The plain path is deterministic only with `deterministic`, which computes each sample alone on one
// thread. Thread rule: one thread at a time. The model must outlive the engine, which only reads it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "foundation/base/result.h"
#include "generate/schedule/runner.h"
#include "generate/schedule/scheduler.h"
#include "model/model.h"
#include "text/guide/guide_shelf.h"

namespace mortise {

enum class GeneratePath { kFast, kPlain };

// A GPU reads all weights in each pass, so a pass with few tokens wastes its time.
[[nodiscard]] constexpr int64_t default_batch_tokens(bool by_operators) { return by_operators ? 2048 : 256; }

struct EngineOptions {
  int64_t max_num_seqs = 256;  // samples that decode at the same time
  // Rows of one pass of new prompts; a longer prompt takes several. null: default_batch_tokens() of the model's device.
  std::optional<int64_t> max_batch_tokens;
  int64_t kv_cache_bytes = int64_t{4} << 30;  // most that the KV cache may take
  bool has_graphs = true;                     // a GPU decodes by CUDA graphs where they can be made
  int64_t max_pending_requests = 65536;       // submit() accepts no more while so many wait
  int num_threads = 0;                        // 0: as libtorch uses
  GeneratePath path = GeneratePath::kFast;
  Isa isa = Isa::kAuto;
  WeightFormat weights = WeightFormat::kFloat32;  // what the fast path reads; bfloat16 changes numbers
  bool deterministic = false;                     // see above; has no cost on the fast path
  // Sequences tell the experts that their tokens took. Prompts that begin alike are then computed each by itself.
  bool records_experts = false;
  // Samples of the step for which the model's SampledForward is open put their numbers into it. The fast path alone.
  bool keeps_forward = false;
  RandomPurpose purpose = RandomPurpose::kSampling;
  std::shared_ptr<SharedWeights> shared_weights;   // for all engines on one model; null: this one's own
  int64_t prefix_cache_bytes = int64_t{64} << 20;  // most that unused prompts may keep of the KV cache
  // Finds stop strings, and says which tokens a pattern allows; outlives the engine. Null: both are refused.
  const Tokenizer* tokenizer = nullptr;
  std::string rollout_regex = {};  // the pattern of all requests of rollouts (generate/extension.h); empty: none
  // Ranks that sample the same requests together (tensor parallel): each has its part of the layers and of the KV cache,
  // and all get the same tokens. They make the same calls in the same order. Null: this process samples alone.
  std::shared_ptr<TensorRanks> ranks = {};
};

class GenerateEngine {
 public:
  // Takes one finished completion; false = this is enough for now, keep the rest (back-pressure).
  using Sink = std::function<bool(const GeneratedSequence&)>;

  static Result<std::unique_ptr<GenerateEngine>> create(const Model& model, const EngineOptions& options);

  // The weights now carry this version. An error while samples are half done: finish or abort them first.
  Result<> set_version(int64_t version);
  [[nodiscard]] int64_t version() const { return version_; }

  // Queues requests in order and returns how many it accepted. If too many wait, it accepts fewer: offer the rest again
  // after a poll. A request that cannot run is an error that names it, and then none of the span is accepted.
  Result<uint64_t> submit(std::span<const GenerateRequest> requests);
  // Delivers finished samples, then works until nothing is left, `timeout` has passed (0: no work; negative: no limit; else
  // at least one step, or several ranks: a fixed number), or the sink has enough. Returns how many samples are outstanding.
  Result<uint64_t> poll(const Sink& sink, std::chrono::nanoseconds timeout);
  // Aborts request_id (-1: all). The next poll delivers what there is.
  void abort(int64_t request_id);
  // The samples that run, to show completions while they grow. Borrowed until the next call.
  [[nodiscard]] std::span<const std::unique_ptr<RunningSample>> running() const { return scheduler_.running(); }
  // Frees packed weights and, unless samples are running, the KV cache. The engine makes both again when it needs them.
  void free_caches();

  // Name of what computes: "avx512bf16", "avx512", "avx2", "base" or "plain".
  [[nodiscard]] std::string_view path_name() const { return runner_->name(); }
  [[nodiscard]] uint64_t num_generated_tokens() const { return num_generated_tokens_; }
  // Number of computed prompt tokens, without those whose pages were already there.
  [[nodiscard]] uint64_t num_prefilled_tokens() const { return scheduler_.num_prefilled_tokens(); }

 private:
  GenerateEngine(const Model& model, const EngineOptions& options);
  Result<> check(const GenerateRequest& request) const;
  Result<std::shared_ptr<TokenGuide>> guide_of(const GenerateRequest& request);
  Result<> step();
  Result<> notice_changed_weights();
  [[nodiscard]] uint64_t weights_fingerprint() const;
  [[nodiscard]] bool has_weights() const;
  void tell_weights_state();

  const Model& model_;
  EngineOptions options_;
  KvCache kv_;
  GuideShelf guides_;
  Scheduler scheduler_;
  std::unique_ptr<StepRunner> runner_;
  int64_t version_ = 0;
  uint64_t fingerprint_ = 0;
  uint64_t num_generated_tokens_ = 0;
  std::vector<SampledToken> tokens_;
};

}  // namespace mortise
