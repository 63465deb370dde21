// See reward_batch.h.
#include "experience/reward/reward_batch.h"

#include <algorithm>
#include <numeric>

#include "experience/reward/turn_facts.h"

namespace mortise {

namespace {

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

std::vector<int64_t> rows_of_prompts(std::span<const int64_t> prompts, int64_t num_samples_per_prompt) {
  std::vector<int64_t> rows;
  for (const int64_t prompt : prompts) {
    for (int64_t i = 0; i < num_samples_per_prompt; ++i) rows.push_back(prompt * num_samples_per_prompt + i);
  }
  return rows;
}

RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ColumnTypes& types,
                              const ScoreContext& context, std::optional<std::span<const int64_t>> only) {
  std::vector<int64_t> all;
  if (!only) {
    all.resize(samples.rows.size());
    std::iota(all.begin(), all.end(), 0);
    only = all;
  }
  RewardBatch batch = reward_batch_of(prompts, samples, context, *only);
  add_columns(prompts, samples, *only, types, batch);
  return batch;
}

}  // namespace mortise
