// What the device can do at most: the limits that the other numbers are compared with.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>

#include "device/parts.h"
#include "generate/device/step_graphs.h"

namespace mortise {
namespace {

double least(const std::vector<double>& seconds) { return *std::ranges::min_element(seconds); }

double copy_rate(const BenchDevice& bench, int64_t bytes, int64_t repeats) {
  const at::Tensor from = at::zeros({bytes / 4}, bench.floats()), to = at::zeros({bytes / 4}, bench.floats());
  return 2.0 * static_cast<double>(bytes) / least(bench.times(repeats, [&] { to.copy_(from); }));
}

// Random numbers: a device is faster on zeros.
double product_rate(const BenchDevice& bench, int64_t width, at::ScalarType dtype, int64_t repeats) {
  const at::Tensor a = at::randn({width, width}, bench.floats()).to(dtype);
  const at::Tensor b = at::randn({width, width}, bench.floats()).to(dtype);
  at::Tensor out = at::empty_like(a);
  const auto n = static_cast<double>(width);
  return 2.0 * n * n * n / least(bench.times(repeats, [&] { at::mm_out(out, a, b); }));
}

Json launch_times(const BenchDevice& bench, int64_t launches, int64_t repeats) {
  const at::Tensor number = at::zeros({1}, bench.floats());
  const auto work = [&] {
    for (int64_t i = 0; i < launches; ++i) number.add_(1.0);
  };
  const double each = 1e6 / static_cast<double>(launches);
  Json out = {{"launch_us", each * least(bench.times(repeats, work))}, {"graph_node_us", nullptr}};
  const std::unique_ptr<StepGraphs> graphs = open_step_graphs(bench.device().device);
  if (graphs == nullptr) return out;
  graphs->warm_up(work);
  const std::unique_ptr<StepGraph> graph = graphs->capture(work);
  out["graph_node_us"] = each * least(bench.times(repeats, [&] { graph->replay(); }));
  return out;
}

}  // namespace

Result<Json> bench_limits(const BenchDevice& bench, const Json& request) {
  const c10::InferenceMode inference;
  const auto repeats = request.at("repeats").get<int64_t>();
  const auto width = request.at("width").get<int64_t>();
  Json out = {{"copy_bytes_per_s", copy_rate(bench, request.at("copy_bytes").get<int64_t>(), repeats)},
              {"flops_per_s",
               {{"float32", product_rate(bench, width, at::kFloat, repeats)},
                {"bfloat16", product_rate(bench, width, at::kBFloat16, repeats)}}}};
  out.update(launch_times(bench, request.at("launches").get<int64_t>(), repeats));
  return out;
}

}  // namespace mortise
