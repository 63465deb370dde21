// What ranks do together: they hand over prompts while they sample, take the rest from a queue, and exchange the scores.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "experience/reward/reward_runner.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/piece_queue.h"

namespace mortise {

bool RewardRunner::is_received(int64_t prompt) const {
  return !is_received_.empty() && is_received_[static_cast<size_t>(prompt)] != 0;
}

// What the workers would begin with soon. Other ranks may score the rest, if they are done earlier.
Result<> RewardRunner::give_waiting(Function& function, const Rows& rows) {
  while (!function.waiting.empty() && function.reward->wants_more()) {
    const int64_t prompt = function.waiting.front();
    function.waiting.pop_front();
    if (is_received(prompt)) ++num_taken_over_;
    TRY(give(function, {rows.prompts, is_received(prompt) ? received_ : rows.samples}, prompt));
  }
  return {};
}

// A rank with a free worker gets the prompt that would wait longest here, of those that are not too large to travel.
Result<> RewardRunner::hand_over(Function& function, const Rows& rows) {
  const auto samples_of = [&](int64_t prompt) -> const SampleBatch& {
    return is_received(prompt) ? received_ : rows.samples;
  };
  const auto fits = [&](int64_t prompt) {
    return most_bytes_of_rows(samples_of(prompt), prompt) <= PromptHandover::kMaxBytes;
  };
  std::deque<int64_t>& waiting = function.waiting;
  while (true) {
    const auto last = std::find_if(waiting.rbegin(), waiting.rend(), fits);
    const bool has_prompts = last != waiting.rend();
    if (!TRY(function.handover->is_asked(has_prompts))) return {};
    TRY(function.handover->answer(has_prompts ? encode_prompt_rows(samples_of(*last), *last) : std::string()));
    if (has_prompts) waiting.erase(std::next(last).base());
  }
}

// A prompt of another rank, if a worker of this one is free. It waits as if it had been sampled here, if the workers have
// got other work since this rank has asked.
Result<> RewardRunner::take_over(Function& function, const Rows& rows) {
  const bool wants = function.waiting.empty() && function.reward->has_free_worker();
  const std::optional<std::string> bytes = TRY(function.handover->ask(wants));
  if (!bytes) return {};
  if (is_received_.empty()) {
    is_received_.resize(rows.prompts.prompts.size());
    received_.num_samples_per_prompt = rows.samples.num_samples_per_prompt;
    received_.rows.resize(rows.samples.rows.size());
  }
  const int64_t prompt = TRY(decode_prompt_rows(*bytes, received_));
  is_received_[static_cast<size_t>(prompt)] = 1;
  function.waiting.push_back(prompt);
  return give_waiting(function, rows);
}

// Who scores the prompts that no reward has. A function in workers takes them one after another, any other at once.
Result<> RewardRunner::split(const Rows& rows, std::deque<RewardBatch>& batches) {
  std::vector<Function*> functions;
  Encoder sent;
  for (Function& function : functions_) {
    if (!scores(function, context_) || !is_split(function)) continue;
    functions.push_back(&function);
    OwnPrompts own{function.reward->works_ahead(), function.begun, {}};
    own.waiting.assign(function.waiting.begin(), function.waiting.end());
    sent.text(encode_own_prompts(own));
  }
  if (functions.empty()) return {};
  std::vector<std::vector<OwnPrompts>> all(functions.size());
  for (const std::string& bytes : TRY(ranks_.exchange(sent.bytes()))) {
    Decoder in(bytes);
    for (std::vector<OwnPrompts>& of_function : all)
      of_function.push_back(TRY(decode_own_prompts(in.text(), rows.prompts.prompts.size())));
  }
  const std::vector<int64_t> loads = loads_of_prompts(rows.samples);
  for (size_t i = 0; i < functions.size(); ++i) {
    Function& function = *functions[i];
    function.waiting.clear();
    std::vector<std::vector<int64_t>> lists = deal_prompts(all[i], loads);
    if (std::ranges::all_of(all[i], &OwnPrompts::works_ahead)) {
      share_queue(function, lists, rows.samples.num_samples_per_prompt);
      continue;
    }
    std::vector<int64_t>& own = lists[static_cast<size_t>(ranks_.rank)];
    if (own.empty()) continue;
    std::ranges::sort(own);
    const std::vector<int64_t> given = rows_of_prompts(own, rows.samples.num_samples_per_prompt);
    function.rows.insert(function.rows.end(), given.begin(), given.end());
    batches.push_back(batch_of(rows, given));
    TRY(function.reward->add(batches.back()));
  }
  return {};
}

// A part of a prompt at a time, if its rows are scored one by one and few are left for each rank, else whole prompts:
// several if there are many, because workers take up to kMaxPieceRows rows at once.
void RewardRunner::share_queue(Function& function, const std::vector<std::vector<int64_t>>& lists, int64_t n) const {
  int64_t num_rows = 0;
  for (const std::vector<int64_t>& list : lists) num_rows += n * std::ssize(list);
  function.claim_size = claim_size(num_rows, std::max<int64_t>(1, n), ranks_.size, kMaxPieceRows,
                                   function.reward->granularity() == Granularity::kRow);
  function.claims = ranks_.share(cut_prompts(lists, function.claim_size.parts));
  function.has_more = true;
}

Result<> RewardRunner::take_claimed(Function& function, const Rows& rows) const {
  const auto [parts, most] = function.claim_size;
  while (function.has_more && function.reward->wants_more()) {
    std::vector<int64_t> taken;
    for (int64_t i = 0; function.has_more && i < most; ++i) {
      const std::optional<int64_t> part = TRY(function.claims->next());
      function.has_more = part.has_value();
      if (!part) break;
      const std::vector<int64_t> of_part = rows_of_part(*part, parts, rows.samples.num_samples_per_prompt);
      taken.insert(taken.end(), of_part.begin(), of_part.end());
    }
    function.rows.insert(function.rows.end(), taken.begin(), taken.end());
    if (!taken.empty()) TRY(function.reward->add(batch_of(rows, taken)));
    if (!function.has_more) function.reward->close();
  }
  return {};
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

// Every rank knows all scores now.
Result<> RewardRunner::close_shares() {
  for (Function& function : functions_) {
    if (function.handover != nullptr) TRY(function.handover->close());
    if (function.claims != nullptr) TRY(function.claims->close());
  }
  if (num_taken_over_ > 0) {
    log_debug(fmt::format("rewards: this rank scored {} of other ranks while rows were sampled",
                          counted(num_taken_over_, "prompt")));
  }
  return {};
}

}  // namespace mortise
