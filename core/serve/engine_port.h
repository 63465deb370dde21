// What the server asks of the model behind it, without libtorch: prompts in, tokens out, new weights.
//
// ServedModel is the model, on one thread. ServeLoop (serve_loop.h) is the only one that calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/sampling.h"

namespace mortise {

inline constexpr int64_t kUnknownVersion = -1;  // new weights that nobody has named yet

// A prompt and how to complete it. Its tokens are a function of (weights, prompt, seed, step, first_row_id + sample).
struct ServedRequest {
  std::vector<int64_t> prompt_ids;
  int64_t num_samples = 1;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_row_id = 0;
  Sampling sampling;
  int64_t num_top_log_probs = 0;
};

// A completion, or its beginning while it runs.
struct ServedSequence {
  int64_t sample_index = 0;
  FinishReason finish_reason = FinishReason::kLength;
  int64_t weight_version = 0;
  std::vector<int64_t> ids;
  std::vector<float> log_prob;                 // at temperature, unfiltered
  std::vector<float> filtered_log_prob;        // empty if nothing was penalized, barred or filtered
  std::vector<std::pair<int64_t, float>> top;  // [tokens * num_top_log_probs], best first
};

struct ServedModelInfo {
  int64_t vocab_size = 0;
  int64_t max_length = 0;         // prompt and completion together; 0: no limit
  std::vector<int64_t> stop_ids;  // that end a completion
};

class ServedModel {
 public:
  using Take = std::function<void(int64_t id, const ServedSequence& sequence)>;

  virtual ~ServedModel() = default;
  [[nodiscard]] virtual const ServedModelInfo& info() const = 0;
  // Queues a request under a new id. An error is the client's fault.
  virtual Result<> submit(int64_t id, const ServedRequest& request) = 0;
  // One token for each running sample; finished ones go to `take`. Returns how many samples are outstanding.
  virtual Result<uint64_t> step(const Take& take) = 0;
  // What there is of the samples that run, for streams.
  virtual void visit_running(const Take& take) const = 0;
  // Ends a request (-1: all). The next step delivers what there is.
  virtual void abort(int64_t id) = 0;
  // Precondition of both: nothing is outstanding. After a failed load the weights are a mixture until one succeeds.
  virtual Result<> load_weights(const std::string& folder) = 0;
  virtual Result<> set_version(int64_t version) = 0;
  virtual void free_caches() = 0;
};

}  // namespace mortise
