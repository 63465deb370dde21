// Samples with forced lengths (no token ends a row, so that no step edits logits), and what training says of the same
// tokens.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "device/parts.h"
#include "generate/engine.h"
#include "learn/update/packed_forward.h"
#include "model/head/log_prob_head.h"

namespace mortise {
namespace {

struct Prompts {
  std::vector<std::vector<int64_t>> ids;
  std::vector<int64_t> new_tokens;
};

struct Samples {
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<float>> log_prob;
  bool operator==(const Samples&) const = default;
};

Result<Samples> sample(GenerateEngine& engine, const Prompts& prompts, const SamplingParams& sampling) {
  std::vector<GenerateRequest> requests;
  for (const std::vector<int64_t>& ids : prompts.ids) {
    const auto row = static_cast<int64_t>(requests.size());
    requests.push_back({row, ids, 1, row, 1, 0, sampling});
    requests.back().sampling.max_new_tokens = prompts.new_tokens[requests.size() - 1];
  }
  Samples out;
  out.ids.resize(requests.size());
  out.log_prob.resize(requests.size());
  const auto keep = [&](const GeneratedSequence& sequence) {
    out.ids[static_cast<size_t>(sequence.request_id)] = sequence.ids;
    out.log_prob[static_cast<size_t>(sequence.request_id)] = sequence.log_prob;
    return true;
  };
  TRY(engine.submit(requests));
  TRY(engine.poll(keep, std::chrono::nanoseconds(-1)));
  return out;
}

// Adds the differences of probabilities to the answer.
Result<> compare_with_training(const Model& model, const Prompts& prompts, const Samples& samples, Json& out) {
  const at::NoGradGuard no_grad;
  std::vector<TableRow> rows;
  for (size_t i = 0; i < samples.ids.size(); ++i)
    rows.push_back({prompts.ids[i], samples.ids[i], static_cast<int64_t>(i)});
  const StepTable table(std::move(rows));
  std::vector<int64_t> order(samples.ids.size());
  std::iota(order.begin(), order.end(), 0);
  double sum = 0.0, most = 0.0;
  for (const std::vector<int64_t>& micro : plan_micro_batches(table, order, {.token_budget = 16384})) {
    const PackedForward forward = TRY(forward_rows(model, table, micro));
    const at::Tensor log_prob =
        on_host(head_log_prob(forward.hidden_RH, model.head(), forward.targets_R, 1.0, false).log_prob_R);
    const float* trained = log_prob.const_data_ptr<float>();
    for (const int64_t row : micro) {
      for (const float sampled : samples.log_prob[static_cast<size_t>(row)]) {
        const double diff = std::abs(std::exp(double{sampled}) - std::exp(double{*trained++}));
        sum += diff;
        most = std::max(most, diff);
      }
    }
  }
  out["mean_prob_diff"] = sum / static_cast<double>(table.num_tokens());
  out["max_prob_diff"] = most;
  return {};
}

}  // namespace

Result<Json> bench_sample(const BenchDevice& bench, const Json& request) {
  const Model model = TRY(load_model(bench, request));
  const Prompts prompts = {request.at("prompts").get<std::vector<std::vector<int64_t>>>(),
                           request.at("new_tokens").get<std::vector<int64_t>>()};
  if (prompts.ids.size() != prompts.new_tokens.size())
    return Error{ErrorKind::kConfig, "each prompt needs its number of new tokens", "request",
                 "give as many as prompts"};
  EngineOptions options;
  options.max_num_seqs = static_cast<int64_t>(prompts.ids.size());
  options.kv_cache_bytes = int64_t{64} << 30;
  options.prefix_cache_bytes = 0;
  const std::unique_ptr<GenerateEngine> engine = TRY(GenerateEngine::create(model, options));
  SamplingParams sampling;
  sampling.temperature = request.at("temperature").get<double>();
  Result<Samples> last = Samples{};
  Samples first;
  bool is_repeatable = true;
  const std::vector<double> seconds = bench.times(request.at("repeats").get<int64_t>(), [&] {
    if (!last.ok()) return;
    last = sample(*engine, prompts, sampling);
    if (!last.ok()) return;
    if (first.ids.empty()) first = *last;
    is_repeatable = is_repeatable && first == *last;
  });
  TRY(std::move(last));
  Json out = {
      {"seconds", seconds}, {"kernels", engine->path_name()}, {"ids", first.ids}, {"is_repeatable", is_repeatable}};
  TRY(compare_with_training(model, prompts, first, out));
  return out;
}

}  // namespace mortise
