// Calls the rewards, checks their results, and adds up the weighted sums.
#include "experience/reward/reward_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <thread>

#include "experience/reward/reward_scores.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live.h"

namespace mortise {

namespace {

// "step 3", "validation after step 3".
std::string occasion(const ScoreContext& context) {
  const std::string step = "step " + std::to_string(context.step);
  if (!context.is_validation) return step;
  const std::string set = context.val_set.empty() ? "" : " of " + context.val_set;
  return context.step > 0 ? fmt::format("validation{} after {}", set, step) : "validation" + set;
}

// A few failures are logged; too many are an error. `label`: kind, plugin, pack and hash.
Result<> judge_failures(const Scores& scores, const std::string& label, double max_failed_fraction,
                        const ScoreContext& context) {
  const RewardColumn& column = scores.column;
  if (column.num_failed == 0) return {};
  const std::string where = fmt::format("{}, {}", label, occasion(context));
  const std::string summary = fmt::format("reward {} failed on {} of {} rows; first: {}", quote(column.name),
                                          column.num_failed, column.values.size(), scores.failures);
  if (static_cast<double>(column.num_failed) > max_failed_fraction * static_cast<double>(column.values.size())) {
    return Error{ErrorKind::kReward, summary, where,
                 "correct the reward, or raise plugins.max_failed_fraction = " + format_f64(max_failed_fraction)};
  }
  log_warn(fmt::format("{}: {}", where, summary));
  return {};
}

}  // namespace

RewardRunner::RewardRunner(std::vector<Function> functions, double max_failed_fraction)
    : functions_(std::move(functions)), max_failed_fraction_(max_failed_fraction) {}

Result<RewardRunner> RewardRunner::create(PluginRegistry& registry, const std::vector<RewardSpec>& specs,
                                          const RunKey& key, double max_failed_fraction,
                                          const IsolationOptions& isolation) {
  std::vector<Function> functions;
  for (const RewardSpec& spec : specs) {
    IsolationOptions own = isolation;
    own.limits = spec.limits;
    // Not inside the braces: the elements before it would leak if it returns.
    auto made = TRY(at_place(spec.where, make_reward_function(registry, spec.use, spec.params, key, own)));
    functions.push_back({spec, std::move(made)});
  }
  return RewardRunner(std::move(functions), max_failed_fraction);
}

RewardRunner RewardRunner::over(const std::vector<RewardSpec>& specs,
                                std::vector<std::unique_ptr<RewardFunction>> functions, double max_failed_fraction) {
  std::vector<Function> all;
  for (size_t i = 0; i < specs.size(); ++i) all.push_back({specs[i], std::move(functions[i])});
  return RewardRunner(std::move(all), max_failed_fraction);
}

Result<> RewardRunner::use_ranks(ScoreRanks ranks) {
  ranks_ = std::move(ranks);
  for (Function& function : functions_) {
    const bool keeps_state = ranks_.size > 1 && TRY(function.reward->save_state()).has_value();
    function.is_shared = function.reward->granularity() != Granularity::kBatch && !keeps_state;
  }
  return {};
}

bool RewardRunner::scores(const Function& function, const ScoreContext& context) {
  const RewardUse other = context.is_validation ? RewardUse::kTrain : RewardUse::kValidation;
  if (function.spec.used_in == other) return false;
  return context.only.empty() || std::ranges::find(context.only, function.spec.label) != context.only.end();
}

bool RewardRunner::works_ahead() const {
  return std::any_of(functions_.begin(), functions_.end(), [this](const Function& function) {
    return scores(function, context_) && function.reward->works_ahead();
  });
}

Result<> RewardRunner::begin_batch(const PromptBatch& prompts, int64_t num_samples_per_prompt,
                                   const ScoreContext& context) {
  context_ = context;
  has_begun_ = true;
  num_rows_ = static_cast<int64_t>(prompts.prompts.size()) * num_samples_per_prompt;
  num_given_ = 0;
  num_taken_over_ = 0;
  received_ = {};
  is_received_.clear();
  for (Function& function : functions_) {
    function.begun.clear();
    function.rows.clear();
    function.waiting.clear();
    function.handover.reset();
    function.claims.reset();
    if (!scores(function, context)) continue;
    TRY(function.reward->begin(
        {num_rows_, context.step, function.spec.timeout_ms, function.spec.row_timeout_ms, is_split(function)}));
  }
  return {};
}

Result<> RewardRunner::begin(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context) {
  TRY(begin_batch(prompts, num_samples_per_prompt, context));
  for (Function& function : functions_) {
    if (scores(function, context) && is_split(function) && ranks_.hand_over) function.handover = ranks_.hand_over();
  }
  return {};
}

Result<> RewardRunner::give(Function& function, const Rows& rows, int64_t prompt) const {
  const std::vector<int64_t> given = rows_of_prompts(std::span(&prompt, 1), rows.samples.num_samples_per_prompt);
  function.begun.push_back(prompt);
  function.rows.insert(function.rows.end(), given.begin(), given.end());
  return function.reward->add(batch_of(rows, given));
}

Result<> RewardRunner::feed(const PromptBatch& prompts, const SampleBatch& samples, int64_t prompt) {
  if (!works_ahead()) return {};
  const Rows rows{prompts, samples};
  for (Function& function : functions_) {
    if (!scores(function, context_) || !function.reward->works_ahead()) continue;
    // Else the order of the rows would depend on which rank is faster.
    if (ranks_.size > 1 && !function.is_shared) continue;
    if (is_split(function)) {
      function.waiting.push_back(prompt);
      TRY(give_waiting(function, rows));
    } else {
      TRY(give(function, rows, prompt));
    }
  }
  num_given_ += samples.num_samples_per_prompt;
  return {};
}

Result<> RewardRunner::tend(const PromptBatch& prompts, const SampleBatch& samples, int wait_ms) {
  const Rows rows{prompts, samples};
  RewardFunction* busy = nullptr;
  for (Function& function : functions_) {
    if (!scores(function, context_)) continue;
    TRY(function.reward->advance(0));
    TRY(give_waiting(function, rows));
    if (function.handover != nullptr) {
      TRY(hand_over(function, rows));
      TRY(take_over(function, rows));
    }
    if (!function.reward->is_idle()) busy = function.reward.get();
  }
  show_progress();
  if (wait_ms > 0 && busy != nullptr) return busy->advance(wait_ms);
  if (wait_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
  return {};
}

// A row is done when the slowest function is.
void RewardRunner::show_progress() const {
  if (functions_.empty() || num_given_ == 0) return;  // sampling is shown first
  int64_t done = num_given_;
  for (const Function& function : functions_) {
    if (scores(function, context_)) done = std::min(done, function.reward->num_done());
  }
  live_stage(context_.is_validation ? kValidationRewardStage : kRewardStage, "rows", done, num_rows_,
             num_given_ - done);
}

RewardBatch RewardRunner::batch_of(const Rows& all, std::span<const int64_t> rows) const {
  return make_reward_batch(all.prompts, all.samples, types_, context_, rows);
}

// All rows that the function does not have yet, in one part if it has none.
Result<> RewardRunner::give_all(Function& function, const Rows& rows, std::deque<RewardBatch>& batches) const {
  std::vector<int64_t> rest;
  for (int64_t prompt = 0; prompt < std::ssize(rows.prompts.prompts); ++prompt) {
    if (std::ranges::find(function.begun, prompt) == function.begun.end()) rest.push_back(prompt);
  }
  if (!function.begun.empty()) {
    for (const int64_t prompt : rest) TRY(give(function, rows, prompt));
    return {};
  }
  function.rows = rows_of_prompts(rest, rows.samples.num_samples_per_prompt);
  function.begun = std::move(rest);
  batches.push_back(make_reward_batch(rows.prompts, rows.samples, types_, context_));
  return function.reward->add(batches.back());
}

// Waits until the workers of all functions are done, and serves all of them meanwhile.
Result<> RewardRunner::work_off(const Rows& rows) {
  constexpr int kTurnMs = 10;
  while (true) {
    std::vector<RewardFunction*> busy;
    for (Function& function : functions_) {
      if (!scores(function, context_)) continue;
      TRY(take_claimed(function, rows));
      if (!function.reward->is_idle()) busy.push_back(function.reward.get());
    }
    show_progress();
    if (busy.empty()) return {};
    for (size_t i = 1; i < busy.size(); ++i) TRY(busy[i]->advance(0));
    TRY(busy.front()->advance(kTurnMs));
  }
}

// The outputs of this rank's rows, by function.
Result<std::vector<ScorePart>> RewardRunner::finish_own(const Rows& rows) {
  TRY(work_off(rows));
  std::vector<ScorePart> parts;
  for (Function& function : functions_) {
    ScorePart& part = parts.emplace_back();
    if (!scores(function, context_)) continue;
    std::ranges::sort(function.rows);
    part.rows = function.rows;
    if (part.rows.empty() && rows.size() > 0) continue;
    auto output = function.reward->finish(nullptr);
    show_progress();
    if (output.ok())
      part.output = *std::move(output);
    else
      part.error = std::move(output).error();
  }
  return parts;
}

// The scores of all ranks. Metrics count in the order of rows.
Result<RewardOutput> RewardRunner::join(const Function& function, std::vector<ScorePart> parts, size_t num_rows,
                                        MetricSet* metrics) const {
  RewardOutput output = TRY(join_parts(std::move(parts), num_rows));
  TRY(add_plugin_metrics(function.reward->label(), "score", context_.step, output.metrics, metrics));
  return output;
}

Result<ScoredBatch> RewardRunner::score(const PromptBatch& prompts, const SampleBatch& samples,
                                        const ScoreContext& context, MetricSet* metrics) {
  const Rows rows{prompts, samples};
  const size_t num_rows = rows.size();
  if (!has_begun_) TRY(begin_batch(prompts, samples.num_samples_per_prompt, context));
  has_begun_ = false;
  // Give all functions their work before waiting for the first.
  std::deque<RewardBatch> batches;  // functions borrow them until they have finished
  for (Function& function : functions_) {
    if (scores(function, context) && !is_split(function) && !is_elsewhere(function))
      TRY(give_all(function, rows, batches));
  }
  TRY(split(rows, batches));
  num_given_ = num_rows_;
  for (Function& function : functions_) {
    if (scores(function, context) && function.claims == nullptr) function.reward->close();
  }
  const std::vector<ScorePart> own = TRY(finish_own(rows));
  std::vector<std::vector<ScorePart>> parts = TRY(exchange_parts(own, num_rows));
  TRY(close_shares());
  std::vector<Scores> all;
  std::optional<Error> too_many;
  for (size_t i = 0; i < functions_.size(); ++i) {
    const Function& function = functions_[i];
    if (!scores(function, context)) continue;
    auto output = join(function, std::move(parts[i]), num_rows, metrics);
    if (!output.ok() && output.error().kind == ErrorKind::kSignal) return std::move(output).error();
    all.push_back(take_scores(function.spec, std::move(output), num_rows));
    auto judged = judge_failures(all.back(), function.reward->label(), max_failed_fraction_, context);
    if (judged.ok()) continue;
    if (too_many)
      log_warn(judged.error().to_string());
    else
      too_many = std::move(judged).error();
  }
  if (environment_weight_) all.push_back(environment_scores(samples, *environment_weight_));
  void_failed_episodes(samples, all);
  ScoredBatch scored;
  scored.token_scores = place_on_tokens(samples, all);
  for (Scores& scores : all) scored.columns.push_back(std::move(scores.column));
  sum_columns(scored, num_rows);
  if (too_many) return keep_rows(*std::move(too_many), prompts, samples, scored, context);
  const bool any_failed =
      std::ranges::any_of(scored.columns, [](const RewardColumn& column) { return column.num_failed > 0; });
  if (num_rows > 0 && !any_failed && std::ranges::count(scored.row_valid, 1) == 0) {
    log_warn(fmt::format(
        "no reward applies to any row of {}, so nothing can be learned from it. Check that the data column that a "
        "reward reads exists, has the type that it reads, and is not null. Columns: {}",
        occasion(context), columns_phrase(make_reward_batch(prompts, samples, types_, context).columns)));
  }
  return scored;
}

Error RewardRunner::keep_rows(Error error, const PromptBatch& prompts, const SampleBatch& samples,
                              const ScoredBatch& scored, const ScoreContext& context) const {
  if (!failed_batches_) return error;
  const auto file = failed_batches_(prompts, samples, scored, context);
  if (!file.ok())
    log_warn("the rows on which a reward failed could not be written: " + file.error().to_string());
  else if (*file)
    error.next += "; the rows, each with its reason, are in " + (*file)->string();
  return error;
}

std::vector<std::pair<std::string, RewardFunction*>> RewardRunner::functions() {
  std::vector<std::pair<std::string, RewardFunction*>> out;
  for (size_t i = 0; i < functions_.size(); ++i) {
    out.emplace_back(fmt::format("reward.{}:{}", i, functions_[i].spec.use), functions_[i].reward.get());
  }
  return out;
}

}  // namespace mortise
