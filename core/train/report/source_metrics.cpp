// See source_metrics.h.
#include "train/report/source_metrics.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <string>

#include "foundation/base/log.h"

namespace mortise {
namespace {

constexpr size_t kMostSources = 64;  // more are names of rows, which would fill metrics.jsonl

}  // namespace

void add_source_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                        MetricSet& metrics) {
  struct Scores {
    double sum = 0.0, rows = 0.0;
  };
  std::map<std::string, Scores> by_source;
  for (size_t i = 0; i < samples.rows.size(); ++i) {
    const Sample& row = samples.rows[i];
    Scores& scores = by_source[prompts.prompts[static_cast<size_t>(row.prompt_index)].data_source];
    if (row.token_ids.empty() || std::isnan(scored.rewards[i])) continue;
    scores.sum += scored.rewards[i];
    ++scores.rows;
  }
  if (by_source.size() < 2 || by_source.size() > kMostSources) return;
  for (const auto& [source, scores] : by_source) {
    if (scores.rows == 0.0) continue;
    const auto added =
        metrics.add_user(fmt::format("train-core/{}/reward/mean", source), scores.sum, scores.rows, Reduction::kMean);
    if (!added.ok()) log_warn_once("a data source has no metric of its own: " + added.error().to_string());
  }
}

}  // namespace mortise
