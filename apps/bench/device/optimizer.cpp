// Updates of AdamW on tensors of the requested shapes, as a run does them: the norm of the gradients, clipping, the
// step.
#include <ATen/ops/linspace.h>

#include <string>

#include "device/parts.h"
#include "learn/optim/adamw.h"

namespace mortise {

Result<Json> bench_optimizer(const BenchDevice& bench, const Json& request) {
  std::vector<OptimizedParameter> parameters;
  int64_t count = 0;
  for (const auto& shape : request.at("shapes").get<std::vector<std::vector<int64_t>>>()) {
    const int64_t size = c10::multiply_integers(shape);
    at::Tensor tensor = at::linspace(-1.0, 1.0, size, bench.floats()).view(shape);
    tensor.mutable_grad() = at::linspace(0.01, -0.02, size, bench.floats()).view(shape);
    tensor.set_requires_grad(true);
    parameters.push_back({std::to_string(parameters.size()), std::move(tensor)});
    count += size;
  }
  AdamW optimizer(std::move(parameters), {});
  const auto repeats = request.at("repeats").get<int64_t>();
  Result<> failed;
  std::vector<double> steps = bench.times(repeats, [&] {
    const Result<ClippedStep> done = optimizer.step_clipped(1e-3, 1.0);
    if (!done.ok()) failed = done.error();
  });
  TRY(std::move(failed));
  std::vector<double> sums;
  for (const OptimizedParameter& p : optimizer.parameters()) sums.push_back(p.tensor.sum(at::kDouble).item<double>());
  // Weights and both moments are read and written, gradients are read twice: float32.
  return Json{{"seconds", std::move(steps)}, {"bytes_a_step", 32 * count}, {"sums", sums}};
}

}  // namespace mortise
