// bench_device: one device, measured on request, so that torch can be timed in turns with it. One JSON object a line on
// standard input, one answer a line. device.py asks and compares. A request that fails is answered by {"error": TEXT};
// the program continues, so that a search for the largest batch may run out of memory. What a request took is free
// after it. The first line, before any request, is {"device": TEXT}.
//
//   {"do": "limits", "copy_bytes", "width", "launches", "repeats"}
//      -> {"copy_bytes_per_s": read and written, "flops_per_s": {dtype: of a product of square matrices},
//          "launch_us": of one small kernel, "graph_node_us": the same in a graph; null without graphs}
//   {"do": "head", "folder", "dtype", "tokens", "repeats"}: the head of the model, as its runs have it
//      -> {"weight_dtype", "forward", "one_pass", "two_passes": each {"seconds": [...], "extra_bytes"}}:
//          log-probs, and with their gradients
//   {"do": "head_check", "folder", "tokens", "hidden", "vocab"}: reads hidden.f32, weight.f32 and targets.i64 from there
//      -> {"log_probs": [...], "hidden_norm", "weight_norm": norms of the gradients, if each log-prob has the gradient 1}
//   {"do": "optimizer", "shapes": [[...] ...], "repeats"}: whole updates of AdamW (norm, clipping, step) with float32
//      numbers
//      -> {"seconds": [...], "bytes_a_step": 32 for each number, of which 4 are for the norm, "sums": of each
//          parameter, after all steps}
//   {"do": "losses", "names": [...], "rows", "length", "repeats"}: calls of policy losses with gradients
//      -> {"losses": [{"name", "seconds": [...] on the host, "device": null, or {"seconds": [...], "bytes", "difference"}}]}
//         "bytes" is what a call sends and receives. "difference" is the norm of the difference of both gradients, divided
//         by the norm of the host's.
//   {"do": "sample", "folder", "dtype", "prompts", "new_tokens": [...], "repeats"}: one sample for each prompt
//      -> {"seconds": [...], "kernels", "ids", "is_repeatable", "mean_prob_diff", "max_prob_diff": of the probabilities
//          that sampler and training have for the sampled tokens}
//   {"do": "train", "folder", "dtype", "rows": [[id ...] ...], "tokens": most of a micro-batch, "repeats", "deterministic",
//    "optimizer": "adamw_8bit", whose step follows each pass; null: none}
//      -> {"seconds": [...], "forward_seconds": [...], "loss", "grad_norm", "flops", "extra_bytes", "is_repeatable"}
//
// "seconds" has one number for each repeat, after one that is not counted. The device has done all its work when a
// clock is read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "foundation/formats/json.h"
#include "model/device/compute_device.h"
#include "model/model.h"

namespace mortise {

class BenchDevice {
 public:
  explicit BenchDevice(ComputeDevice device);
  [[nodiscard]] const ComputeDevice& device() const { return device_; }
  [[nodiscard]] at::TensorOptions floats() const {
    return at::TensorOptions().device(device_.device).dtype(at::kFloat);
  }
  void wait() const;
  // Seconds of each of `repeats` calls, after one that is not counted.
  [[nodiscard]] std::vector<double> times(int64_t repeats, const std::function<void()>& work) const;
  // Most bytes that the work holds above what is held before it. On the CPU: of the process.
  [[nodiscard]] double extra_bytes(const std::function<void()>& work) const;
  void free_memory() const;

 private:
  ComputeDevice device_;
  at::Tensor flag_;
};

using BenchPart = Result<Json> (*)(const BenchDevice& bench, const Json& request);
Result<Json> bench_limits(const BenchDevice& bench, const Json& request);
Result<Json> bench_head(const BenchDevice& bench, const Json& request);
Result<Json> bench_head_check(const BenchDevice& bench, const Json& request);
Result<Json> bench_losses(const BenchDevice& bench, const Json& request);
Result<Json> bench_optimizer(const BenchDevice& bench, const Json& request);
Result<Json> bench_sample(const BenchDevice& bench, const Json& request);
Result<Json> bench_train(const BenchDevice& bench, const Json& request);

// Loads the model in the request's "folder", with weights in its "dtype".
Result<Model> load_model(const BenchDevice& bench, const Json& request);

}  // namespace mortise
