// See row_segments.h.
#include "experience/rollout/row_segments.h"

#include <algorithm>

namespace mortise {

SampleBatch unsampled_rows(const PromptBatch& prompts, const RolloutPlan& plan) {
  SampleBatch out;
  out.num_samples_per_prompt = plan.num_samples;
  for (size_t prompt = 0; prompt < prompts.prompts.size(); ++prompt) {
    for (int64_t i = 0; i < plan.num_samples; ++i) {
      Sample& sample = out.rows.emplace_back();
      sample.prompt_index = static_cast<int64_t>(prompt);
      sample.sample_index = i;
    }
  }
  return out;
}

std::vector<OpenPrompt> open_prompts(std::span<const OpenRows> batches) {
  std::vector<OpenPrompt> open;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    const std::vector<uint8_t>& is_done = *batches[batch].is_done;
    const int64_t n = batches[batch].samples->num_samples_per_prompt;
    for (int64_t prompt = 0; prompt * n < std::ssize(is_done); ++prompt) {
      const auto first = is_done.begin() + prompt * n;
      const int64_t num_rows = std::count(first, first + n, uint8_t{0});
      if (num_rows > 0) open.push_back({batch, prompt, num_rows});
    }
  }
  return open;
}

RowSegments::RowSegments(std::span<const OpenRows> batches, const RolloutPlan& plan, const Tokenizer& tokenizer)
    : plan_(plan), tokenizer_(tokenizer), open_(open_prompts(batches)) {
  int64_t first_id = 0;
  for (const OpenRows& rows : batches) {
    Batch& batch = batches_.emplace_back(Batch{rows, first_id, plan.sampling});
    batch.sampling.max_new_tokens = rows.max_tokens;
    first_id += static_cast<int64_t>(rows.samples->rows.size());
  }
}

// The first piece of a group is one request, whose prompt the backend computes once.
void RowSegments::begin(size_t open_prompt, std::vector<RolloutRequest>& requests) {
  const OpenPrompt& open = open_[open_prompt];
  const Batch& batch = batches_[open.batch];
  const PromptBatch& prompts = *batch.rows.prompts;
  num_begun_ += open.num_rows;
  const auto request = [&](int64_t row, std::span<const int64_t> ids, int64_t num_samples) {
    RolloutRequest& made = requests.emplace_back();
    made.request_id = batch.first_id + row;
    made.prompt_ids = ids;
    made.num_samples = num_samples;
    made.first_row_id = plan_.first_row_id + row;
    made.seed = turn_seed(plan_.seed, batch.rows.piece);
    made.step = prompts.step;
    made.sampling = &batch.sampling;
  };
  const std::vector<int64_t>& prompt = prompts.prompts[static_cast<size_t>(open.prompt)].token_ids;
  const int64_t first = open.prompt * batch.rows.samples->num_samples_per_prompt;
  if (batch.rows.piece == 0) return request(first, prompt, plan_.num_samples);
  for (int64_t row = first; row < first + batch.rows.samples->num_samples_per_prompt; ++row) {
    if ((*batch.rows.is_done)[static_cast<size_t>(row)] != 0) continue;
    const std::vector<int64_t>& ids = batch.rows.samples->rows[static_cast<size_t>(row)].token_ids;
    std::vector<int64_t>& context = contexts_.emplace_back(prompt);
    context.insert(context.end(), ids.begin(), ids.end());
    request(row, context, 1);
  }
}

void RowSegments::take(const RolloutSequence& sequence) {
  const int64_t id = sequence.request_id + sequence.sample_index;
  const auto after = std::ranges::find_if(batches_, [&](const Batch& batch) { return batch.first_id > id; });
  const Batch& batch = *std::prev(after);
  const auto row = static_cast<size_t>(id - batch.first_id);
  Sample& sample = batch.rows.samples->rows[row];
  const bool has_log_probs =
      sample.log_prob.size() == sample.token_ids.size() && sequence.log_prob.size() == sequence.ids.size();
  sample.token_ids.insert(sample.token_ids.end(), sequence.ids.begin(), sequence.ids.end());
  if (has_log_probs)
    sample.log_prob.insert(sample.log_prob.end(), sequence.log_prob.begin(), sequence.log_prob.end());
  else
    sample.log_prob.clear();
  if (batch.rows.piece == 0) sample.weight_version = sequence.weight_version;
  const auto num_tokens = static_cast<int64_t>(sequence.ids.size());
  if (!sample.spans.empty() && sample.spans.back().version == sequence.weight_version)
    sample.spans.back().num_tokens += num_tokens;
  else if (num_tokens > 0)
    sample.spans.push_back({sequence.weight_version, num_tokens});
  sample.finish_reason = static_cast<FinishReason>(sequence.finish_reason);
  const bool has_room = static_cast<int64_t>(sample.token_ids.size()) < plan_.sampling.max_new_tokens;
  ++num_arrived_;
  if (sample.finish_reason == FinishReason::kLength && has_room) return;  // it continues with newer weights
  (*batch.rows.is_done)[row] = 1;
  sample.text = tokenizer_.decode(sample.token_ids, /*skip_special_tokens=*/true);
}

}  // namespace mortise
