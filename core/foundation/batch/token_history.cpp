// See token_history.h. A bad word of several ids blocks its last id if the others came just before, also in the prompt.
#include "foundation/batch/token_history.h"

#include <algorithm>

namespace mortise {

float penalised(float logit, const SeenToken& seen, const Sampling& params) {
  auto out = static_cast<double>(logit);
  out = out < 0 ? out * params.repetition_penalty : out / params.repetition_penalty;
  out -= params.frequency_penalty * static_cast<double>(seen.count);
  if (seen.count > 0) out -= params.presence_penalty;
  return static_cast<float>(out);
}

void TokenHistory::start(const Sampling& params, std::span<const int64_t> prompt_ids) {
  params_ = &params;
  for (const std::vector<int64_t>& word : params.bad_words) tail_size_ = std::max(tail_size_, word.size() - 1);
  tail_.assign(prompt_ids.end() - static_cast<std::ptrdiff_t>(std::min(tail_size_, prompt_ids.size())),
               prompt_ids.end());
  if (params.repetition_penalty == 1.0) return;
  for (const int64_t id : prompt_ids) see(id, 0);
}

void TokenHistory::see(int64_t id, int64_t count) {
  const auto [place, fresh] = places_.try_emplace(id, seen_.size());
  if (fresh) seen_.push_back({id, 0});
  seen_[place->second].count += count;
}

void TokenHistory::push(int64_t id) {
  ++length_;
  if (params_->penalises()) see(id, 1);
  if (tail_size_ == 0) return;
  if (tail_.size() == tail_size_) tail_.erase(tail_.begin());
  tail_.push_back(id);
}

TokenEdits TokenHistory::edits() {
  const std::span<const int64_t> ends = params_->barred_ends(length_);
  if (params_->bad_words.empty()) return {ends, seen_};
  barred_.assign(ends.begin(), ends.end());
  for (const std::vector<int64_t>& word : params_->bad_words) {
    const size_t before = word.size() - 1;
    if (before <= tail_.size() &&
        std::equal(word.begin(), word.end() - 1, tail_.end() - static_cast<std::ptrdiff_t>(before))) {
      barred_.push_back(word.back());
    }
  }
  return {barred_, seen_};
}

}  // namespace mortise
