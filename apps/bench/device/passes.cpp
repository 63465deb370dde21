// Forward and backward of given rows in packed micro-batches, without an optimizer.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "device/parts.h"
#include "learn/optim/optimizer.h"
#include "learn/optim/rules.h"
#include "learn/update/packed_forward.h"
#include "model/head/log_prob_head.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

// The first id of a row is its prompt.
StepTable table_of(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<TableRow> table;
  for (const std::vector<int64_t>& ids : rows)
    table.push_back({std::span(ids).first(1), std::span(ids).subspan(1), static_cast<int64_t>(table.size())});
  return StepTable(std::move(table));
}

constexpr double kLearningRate = 1e-6;  // so small that passes do not depend on how many there were

struct Passes {
  Model model;
  StepTable table;
  std::vector<std::vector<int64_t>> micro_batches;
  std::optional<Optimizer> optimizer;  // steps after the gradients; not set: they stay

  // The loss is the mean negative log-likelihood.
  Result<double> train(FlopCount& flops) {
    const double weight = 1.0 / static_cast<double>(table.num_tokens());
    double loss = 0.0;
    model.zero_grad();
    PassOptions options;
    options.flops = &flops;
    for (const std::vector<int64_t>& micro : micro_batches) {
      const PackedForward forward = TRY(forward_rows(model, table, micro, options));
      const at::Tensor d_hidden = at::empty_like(forward.hidden_RH);
      const auto on_chunk = [&](const HeadChunk& chunk) {
        for (const double log_prob : chunk.log_prob) loss -= weight * log_prob;
        std::ranges::fill(chunk.grad_log_prob, -weight);
      };
      head_one_pass(forward.hidden_RH, model.head(), forward.targets_R, 1.0, EntropyUse::kNone, on_chunk, d_hidden,
                    model.head_grad());
      forward.backward_pass(d_hidden)();
    }
    if (optimizer) {
      TRY(optimizer->step(kLearningRate));
      model.weights_changed();
    }
    return loss;
  }
  Result<> log_probs() const {
    const at::NoGradGuard no_grad;
    for (const std::vector<int64_t>& micro : micro_batches) {
      const PackedForward forward = TRY(forward_rows(model, table, micro));
      head_log_prob(forward.hidden_RH, model.head(), forward.targets_R, 1.0, false);
    }
    return {};
  }
};

// As a run makes it: the moments of an embedding have all bits.
Optimizer adamw_8bit(const Model& model) {
  std::vector<OptimizedParameter> trained;
  for (const NamedParameter& p : model.trainable()) {
    OptimizedParameter& one = trained.emplace_back(OptimizedParameter{p.name, p.tensor, true});
    if (p.name == kEmbeddingName) one.role = ParameterRole::kEmbedding;
  }
  return {std::move(trained), make_adamw_8bit({}), 0.0, "optim"};
}

// Runs work that may fail. After the first failure it does no more.
class Guarded {
 public:
  template <class Work>
  void operator()(const Work& work) {
    if (done_.ok()) done_ = work();
  }
  Result<> done() { return std::move(done_); }

 private:
  Result<> done_;
};

double norm_of(const Model& model) {
  std::vector<OptimizedParameter> parameters;
  for (const NamedParameter& p : model.parameters()) parameters.push_back({p.name, p.tensor, true});
  return global_grad_norm(parameters);
}

}  // namespace

Result<Json> bench_train(const BenchDevice& bench, const Json& request) {
  const auto rows = request.at("rows").get<std::vector<std::vector<int64_t>>>();
  Passes passes = {TRY(load_model(bench, request)), table_of(rows), {}, {}};
  if (request.value("optimizer", Json()) == "adamw_8bit") passes.optimizer.emplace(adamw_8bit(passes.model));
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  passes.micro_batches = plan_micro_batches(passes.table, order, {.token_budget = request.at("tokens").get<int64_t>()});
  const bool was_deterministic = at::globalContext().deterministicAlgorithms();
  const bool warned_only = at::globalContext().deterministicAlgorithmsWarnOnly();
  at::globalContext().setDeterministicAlgorithms(request.at("deterministic").get<bool>(), /*warn_only=*/true);
  const auto repeats = request.at("repeats").get<int64_t>();
  Guarded guarded;
  double loss = 0.0, norm = 0.0;
  bool is_repeatable = true, is_first = true;
  FlopCount flops;
  const auto train = [&] {
    guarded([&]() -> Result<> {
      flops.total = 0.0;
      const double again = TRY(passes.train(flops));
      if (!is_first && again != loss) is_repeatable = false;
      loss = again;
      return {};
    });
  };
  const double extra = bench.extra_bytes(train);  // with the gradients, which later passes have already
  norm = norm_of(passes.model);
  is_first = false;
  const std::vector<double> seconds = bench.times(repeats, train);
  is_repeatable = is_repeatable && norm == norm_of(passes.model);
  const std::vector<double> forward = bench.times(repeats, [&] { guarded([&] { return passes.log_probs(); }); });
  at::globalContext().setDeterministicAlgorithms(was_deterministic, warned_only);
  TRY(guarded.done());
  return Json{{"seconds", seconds},
              {"forward_seconds", forward},
              {"loss", loss},
              {"grad_norm", norm},
              {"flops", flops.total},
              {"extra_bytes", extra},
              {"is_repeatable", is_repeatable}};
}

}  // namespace mortise
