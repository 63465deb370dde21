#include "plugin/host/kinds/rollout_ledger.h"

#include <algorithm>
#include <cmath>

#include "mortise/kinds/rollout_backend.h"

namespace mortise {

bool RolloutLedger::add(const RolloutRequest& request) {
  Entry entry{request.sampling->max_new_tokens, request.num_samples,
              std::vector<bool>(static_cast<size_t>(request.num_samples))};
  if (!open_.emplace(request.request_id, std::move(entry)).second) return false;
  num_owed_ += static_cast<uint64_t>(request.num_samples);
  if (request.num_samples == 0) open_.erase(request.request_id);
  return true;
}

std::string RolloutLedger::take(const RolloutSequence& sequence, bool has_null_ids) {
  const std::string who =
      "sample " + std::to_string(sequence.sample_index) + " of request " + std::to_string(sequence.request_id);
  const auto it = open_.find(sequence.request_id);
  if (it == open_.end()) return "handed over " + who + ", a request that is not outstanding";
  Entry& entry = it->second;
  if (sequence.sample_index < 0 || sequence.sample_index >= static_cast<int64_t>(entry.delivered.size())) {
    return "handed over " + who + ", which has only " + std::to_string(entry.delivered.size()) + " samples";
  }
  const auto sample = static_cast<size_t>(sequence.sample_index);
  if (entry.delivered[sample]) return "handed over " + who + " twice";
  if (sequence.finish_reason < MORTISE_FINISH_STOP || sequence.finish_reason > MORTISE_FINISH_ABORT) {
    return "gave the unknown finish reason " + std::to_string(sequence.finish_reason) + " for " + who;
  }
  const auto num_ids = static_cast<int64_t>(sequence.ids.size());
  if (has_null_ids) return "gave no ids for " + who;
  if (num_ids == 0 && sequence.finish_reason != MORTISE_FINISH_ABORT) return "gave an empty completion for " + who;
  if (num_ids > entry.max_new_tokens) {
    return "gave " + std::to_string(num_ids) + " tokens for " + who + ", which may have " +
           std::to_string(entry.max_new_tokens);
  }
  if (std::any_of(sequence.ids.begin(), sequence.ids.end(), [](int64_t id) { return id < 0; }))
    return "gave a negative token id in " + who;
  for (const auto& values : {sequence.log_prob, sequence.filtered_log_prob}) {
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
      return "gave a log-prob that is not finite in " + who;
  }
  entry.delivered[sample] = true;
  --num_owed_;
  if (--entry.num_left == 0) open_.erase(it);
  return "";
}

std::string RolloutLedger::first_owed() const {
  const auto& [id, entry] = *open_.begin();
  const auto sample = std::find(entry.delivered.begin(), entry.delivered.end(), false) - entry.delivered.begin();
  return "sample " + std::to_string(sample) + " of request " + std::to_string(id);
}

}  // namespace mortise
