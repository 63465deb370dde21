// Calls the rewards, checks their results, and adds up the weighted sums.
#include "experience/reward/reward_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "experience/reward/reward_scores.h"
#include "experience/reward/turn_facts.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live.h"
#include "plugin/worker/channel.h"

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

// The given rows of `samples`, without the data columns.
RewardBatch reward_batch_of(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context,
                            std::span<const int64_t> rows) {
  RewardBatch batch;
  batch.num_rows = static_cast<int64_t>(rows.size());
  batch.step = context.step;
  batch.max_response_length = context.max_response_length;
  batch.is_validation = context.is_validation;
  for (const int64_t row : rows) {
    const Sample& sample = samples.rows[static_cast<size_t>(row)];
    const Prompt& prompt = prompts.prompts[static_cast<size_t>(sample.prompt_index)];
    batch.prompt.append(prompt.text);
    batch.completion.append(sample.text);
    batch.messages.append(prompt.messages);
    batch.prompt_ids.append(prompt.token_ids);
    batch.completion_ids.append(sample.token_ids);
    batch.finish_reason.push_back(static_cast<int32_t>(sample.finish_reason));
    batch.group_index.push_back(sample.prompt_index);
    batch.sample_index.push_back(sample.sample_index);
    batch.row_id.push_back(row);
  }
  return batch;
}

// One more column if rows have several turns. A data column of the same name wins.
void add_turn_info(const SampleBatch& samples, std::span<const int64_t> rows, const ColumnTypes& types,
                   RewardBatch& batch) {
  const auto has_turns = [&](int64_t row) { return samples.rows[static_cast<size_t>(row)].turns.num_assistant > 0; };
  if (!std::ranges::any_of(rows, has_turns)) return;
  if (std::ranges::any_of(types, [](const auto& entry) { return entry.first == kTurnInfo; })) return;
  std::vector<Json> facts;
  std::vector<const Json*> values;
  for (const int64_t row : rows) facts.push_back(turn_facts(samples.rows[static_cast<size_t>(row)]));
  for (const Json& one : facts) values.push_back(&one);
  batch.columns.push_back(DataColumn::from_json(std::string(kTurnInfo), ColumnType::kJson, values));
}

void add_columns(const PromptBatch& prompts, const SampleBatch& samples, std::span<const int64_t> rows,
                 const ColumnTypes& types, RewardBatch& batch) {
  for (const auto& [name, type] : types) {
    std::vector<const Json*> values;
    for (const int64_t row : rows) {
      const auto prompt = static_cast<size_t>(samples.rows[static_cast<size_t>(row)].prompt_index);
      values.push_back(json_find(prompts.prompts[prompt].columns, name));
    }
    batch.columns.push_back(DataColumn::from_json(name, type, values));
  }
  add_turn_info(samples, rows, types, batch);
}

}  // namespace

RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ColumnTypes& types,
                              const ScoreContext& context, const std::optional<RankBlock>& block) {
  const int64_t n = samples.num_samples_per_prompt;
  std::vector<int64_t> rows(block ? static_cast<size_t>(block->size() * n) : samples.rows.size());
  std::iota(rows.begin(), rows.end(), block ? block->begin * n : 0);
  RewardBatch batch = reward_batch_of(prompts, samples, context, rows);
  add_columns(prompts, samples, rows, types, batch);
  return batch;
}

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

RankBlock RewardRunner::block_of(const Function& function, size_t num_prompts) const {
  const auto count = static_cast<int64_t>(num_prompts);
  return function.is_shared ? rank_block(count, ranks_.rank, ranks_.size) : main_block(count, ranks_.rank);
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

Result<> RewardRunner::begin(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context) {
  context_ = context;
  fed_.assign(prompts.prompts.size(), 0);
  const auto num_rows = static_cast<int64_t>(prompts.prompts.size()) * num_samples_per_prompt;
  num_rows_ = num_rows;
  num_given_ = 0;
  for (Function& function : functions_) {
    if (!scores(function, context)) continue;
    const int64_t own_rows = block_of(function, prompts.prompts.size()).size() * num_samples_per_prompt;
    TRY(function.reward->begin(
        {num_rows, context.step, function.spec.timeout_ms, function.spec.row_timeout_ms, num_rows - own_rows}));
  }
  return {};
}

Result<> RewardRunner::feed(const PromptBatch& prompts, const SampleBatch& samples, int64_t prompt) {
  if (!works_ahead()) return {};
  const int64_t n = samples.num_samples_per_prompt;
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), prompt * n);
  RewardBatch batch = reward_batch_of(prompts, samples, context_, rows);
  add_columns(prompts, samples, rows, types_, batch);
  for (Function& function : functions_) {
    if (!scores(function, context_)) continue;
    if (function.reward->works_ahead() && block_of(function, prompts.prompts.size()).contains(prompt))
      TRY(function.reward->add(batch));
  }
  fed_[static_cast<size_t>(prompt)] = 1;
  num_given_ += n;
  return {};
}

Result<> RewardRunner::tend() {
  for (Function& function : functions_) {
    if (scores(function, context_)) TRY(function.reward->advance(0));
  }
  show_progress();
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

// Waits until the workers of all functions are done, and serves all of them meanwhile.
Result<> RewardRunner::work_off() {
  constexpr int kTurnMs = 10;
  while (true) {
    std::vector<RewardFunction*> busy;
    for (Function& function : functions_) {
      if (scores(function, context_) && !function.reward->is_idle()) busy.push_back(function.reward.get());
    }
    show_progress();
    if (busy.empty()) return {};
    for (size_t i = 1; i < busy.size(); ++i) TRY(busy[i]->advance(0));
    TRY(busy.front()->advance(kTurnMs));
  }
}

// The outputs of this rank's rows, by function.
Result<std::vector<ScorePart>> RewardRunner::finish_own(size_t num_prompts, int64_t num_samples, bool with_metrics) {
  TRY(work_off());
  std::vector<ScorePart> parts;
  for (Function& function : functions_) {
    ScorePart& part = parts.emplace_back();
    if (!scores(function, context_)) continue;
    const RankBlock prompts = block_of(function, num_prompts);
    part.rows = {prompts.begin * num_samples, prompts.end * num_samples};
    if (prompts.size() == 0 && num_prompts > 0) continue;
    auto output = function.reward->finish(with_metrics ? &part.metrics : nullptr);
    show_progress();
    if (output.ok())
      part.output = *std::move(output);
    else
      part.error = std::move(output).error();
  }
  return parts;
}

// By function, and then by rank.
Result<std::vector<std::vector<ScorePart>>> RewardRunner::exchange_parts(const std::vector<ScorePart>& own,
                                                                         size_t num_rows) const {
  Encoder sent;
  for (const ScorePart& part : own) sent.text(encode_part(part));
  std::vector<std::vector<ScorePart>> parts(own.size());
  for (const std::string& bytes : TRY(ranks_.exchange(sent.bytes()))) {
    Decoder in(bytes);
    for (std::vector<ScorePart>& of_function : parts) of_function.push_back(TRY(decode_part(in.text(), num_rows)));
  }
  return parts;
}

Result<ScoredBatch> RewardRunner::score(const PromptBatch& prompts, const SampleBatch& samples,
                                        const ScoreContext& context, MetricSet* metrics) {
  const size_t num_prompts = prompts.prompts.size(), num_rows = samples.rows.size();
  if (fed_.empty()) TRY(begin(prompts, samples.num_samples_per_prompt, context));
  // Give all functions their work before waiting for the first.
  const bool was_fed = works_ahead() && std::count(fed_.begin(), fed_.end(), 1) > 0;
  if (was_fed) {
    for (size_t prompt = 0; prompt < fed_.size(); ++prompt) {
      if (fed_[prompt] == 0) TRY(feed(prompts, samples, static_cast<int64_t>(prompt)));
    }
  }
  fed_.clear();
  std::deque<RewardBatch> batches;  // functions borrow them until they have finished
  for (Function& function : functions_) {
    if (!scores(function, context) || (was_fed && function.reward->works_ahead())) continue;
    const RankBlock block = block_of(function, num_prompts);
    if (block.size() == 0 && num_prompts > 0) continue;
    batches.push_back(make_reward_batch(prompts, samples, types_, context, block));
    TRY(function.reward->add(batches.back()));
  }
  num_given_ = num_rows_;
  for (Function& function : functions_) {
    if (scores(function, context)) function.reward->close();
  }
  const std::vector<ScorePart> own =
      TRY(finish_own(num_prompts, samples.num_samples_per_prompt, /*with_metrics=*/metrics != nullptr));
  std::vector<std::vector<ScorePart>> parts = TRY(exchange_parts(own, num_rows));
  std::vector<Scores> all;
  std::optional<Error> too_many;
  for (size_t i = 0; i < functions_.size(); ++i) {
    const Function& function = functions_[i];
    if (!scores(function, context)) continue;
    auto output = join_parts(std::move(parts[i]), num_rows, metrics);
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
