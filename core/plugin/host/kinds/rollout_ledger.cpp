// Keeps the list of outstanding samples, and refuses sequences that are not on it.
#include "plugin/host/kinds/rollout_ledger.h"

#include <fmt/core.h>

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
  const std::string who = fmt::format("sample {} of request {}", sequence.sample_index, sequence.request_id);
  const auto it = open_.find(sequence.request_id);
  if (it == open_.end()) return fmt::format("handed over {}, a request that is not outstanding", who);
  Entry& entry = it->second;
  if (sequence.sample_index < 0 || sequence.sample_index >= static_cast<int64_t>(entry.delivered.size())) {
    return fmt::format("handed over {}, which has only {} samples", who, entry.delivered.size());
  }
  const auto sample = static_cast<size_t>(sequence.sample_index);
  if (entry.delivered[sample]) return fmt::format("handed over {} twice", who);
  if (sequence.finish_reason < MORTISE_FINISH_STOP || sequence.finish_reason > MORTISE_FINISH_ABORT) {
    return fmt::format("gave the unknown finish reason {} for {}", sequence.finish_reason, who);
  }
  const auto num_ids = static_cast<int64_t>(sequence.ids.size());
  if (has_null_ids) return "gave no ids for " + who;
  if (num_ids == 0 && sequence.finish_reason != MORTISE_FINISH_ABORT) return "gave an empty completion for " + who;
  if (num_ids > entry.max_new_tokens) {
    return fmt::format("gave {} tokens for {}, which may have {}", num_ids, who, entry.max_new_tokens);
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
  return fmt::format("sample {} of request {}", sample, id);
}

}  // namespace mortise
