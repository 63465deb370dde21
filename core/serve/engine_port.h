// What the server asks of the model behind it, without libtorch: prompts in, tokens out, new weights.
//
// ServedModel is the model, on one thread. ServeLoop (serve_loop.h) is the only one that calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

// The process that sends weights, and this one's place among those that it sends them to.
struct WeightSender {
  std::string address;  // its store's, a TCPStore of torch.distributed
  int port = 0;
  int rank = 1;
  int size = 2;
};

struct IncomingWeight {
  std::string name;
  std::string dtype;  // torch's name: "float32", "bfloat16", "float16"
  std::vector<int64_t> shape;
};

// The server's end of a connection over which a trainer sends weights. Nothing of them reaches the model before all are
// there. Thread rule: the functions from one thread; they do not wait, and call `done` from a thread of their own. `done`
// must not call them.
class WeightReceiver {
 public:
  using Done = std::function<void(const Result<>&)>;
  // A folder for ServedModel::load_weights, which is removed with the pointer.
  using Folder = std::shared_ptr<const std::string>;

  virtual ~WeightReceiver() = default;
  // Connects. An earlier connection is given up, and who waits for it is told.
  virtual void join(const WeightSender& sender, Done done) = 0;
  // Forgets the weights that have come, and makes room for others.
  virtual Result<> begin() = 0;
  // Takes weights in this order. If that fails, the connection is given up, which the trainer notices at once.
  virtual void receive(std::vector<IncomingWeight> weights, Done done) = 0;
  // All that have come since begin().
  virtual Result<Folder> finish() = 0;
  // Answers who waits. No `done` is called afterwards.
  virtual void close() = 0;
};

}  // namespace mortise
