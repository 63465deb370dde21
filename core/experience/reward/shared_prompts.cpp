// See shared_prompts.h.
#include "experience/reward/shared_prompts.h"

#include <algorithm>
#include <numeric>

#include "experience/rollout/sample_bytes.h"
#include "foundation/base/hints.h"
#include "plugin/worker/channel.h"

namespace mortise {

std::string encode_own_prompts(const OwnPrompts& own) {
  Encoder out;
  out.i64(own.works_ahead ? 1 : 0);
  for (const std::vector<int64_t>* list : {&own.begun, &own.waiting}) {
    out.u64(list->size());
    for (const int64_t prompt : *list) out.i64(prompt);
  }
  return out.bytes();
}

Result<OwnPrompts> decode_own_prompts(std::string_view bytes, size_t num_prompts) {
  const Error unreadable{ErrorKind::kInternal, "the prompts of another rank cannot be read", "",
                         hints::kOneBuildOfRanks};
  Decoder in(bytes);
  OwnPrompts own;
  own.works_ahead = in.i64() != 0;
  for (std::vector<int64_t>* list : {&own.begun, &own.waiting}) {
    list->resize(in.count(sizeof(int64_t)));
    for (int64_t& prompt : *list) {
      prompt = in.i64();
      if (prompt < 0 || prompt >= static_cast<int64_t>(num_prompts)) return unreadable;
    }
  }
  if (!in.done()) return unreadable;
  return own;
}

std::vector<int64_t> loads_of_prompts(const SampleBatch& samples) {
  const auto n = static_cast<size_t>(samples.num_samples_per_prompt);
  std::vector<int64_t> loads(n == 0 ? 0 : samples.rows.size() / n, 0);
  for (size_t row = 0; row < loads.size() * n; ++row) loads[row / n] += 1 + std::ssize(samples.rows[row].token_ids);
  return loads;
}

std::vector<std::vector<int64_t>> deal_prompts(std::span<const OwnPrompts> ranks, std::span<const int64_t> loads) {
  const bool keeps_waiting = std::ranges::all_of(ranks, &OwnPrompts::works_ahead);
  std::vector<std::vector<int64_t>> lists(ranks.size());
  std::vector<int64_t> sums(ranks.size(), 0);
  std::vector<uint8_t> is_taken(loads.size(), 0);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const int64_t prompt : ranks[rank].begun) is_taken[static_cast<size_t>(prompt)] = 1;
    if (!keeps_waiting) continue;
    lists[rank] = ranks[rank].waiting;
    for (const int64_t prompt : lists[rank]) {
      is_taken[static_cast<size_t>(prompt)] = 1;
      sums[rank] += loads[static_cast<size_t>(prompt)];
    }
  }
  std::vector<int64_t> rest;
  for (size_t prompt = 0; prompt < loads.size(); ++prompt) {
    if (is_taken[prompt] == 0) rest.push_back(static_cast<int64_t>(prompt));
  }
  const auto load = [&](int64_t prompt) { return loads[static_cast<size_t>(prompt)]; };
  std::ranges::stable_sort(rest, std::greater<>(), load);
  for (const int64_t prompt : rest) {
    const auto least = std::ranges::min_element(sums) - sums.begin();
    lists[static_cast<size_t>(least)].push_back(prompt);
    sums[static_cast<size_t>(least)] += load(prompt);
  }
  return lists;
}

ClaimSize claim_size(int64_t num_rows, int64_t n, int num_ranks, int64_t max_rows, bool may_cut) {
  constexpr int64_t kClaimsOfRank = 16;  // if all are alike
  const int64_t rows = std::clamp<int64_t>(num_rows / (kClaimsOfRank * num_ranks), 1, max_rows);
  if (rows >= n) return {.parts = 1, .prompts = rows / n};
  return {.parts = may_cut ? (n + rows - 1) / rows : 1, .prompts = 1};
}

std::vector<std::vector<int64_t>> cut_prompts(const std::vector<std::vector<int64_t>>& lists, int64_t parts) {
  std::vector<std::vector<int64_t>> cut(lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const int64_t prompt : lists[i]) {
      for (int64_t part = 0; part < parts; ++part) cut[i].push_back(prompt * parts + part);
    }
  }
  return cut;
}

std::vector<int64_t> rows_of_part(int64_t part, int64_t parts, int64_t n) {
  const int64_t first = part / parts * n, place = part % parts;
  std::vector<int64_t> rows(static_cast<size_t>((place + 1) * n / parts - place * n / parts));
  std::iota(rows.begin(), rows.end(), first + place * n / parts);
  return rows;
}

std::string encode_prompt_rows(const SampleBatch& samples, int64_t prompt) {
  const int64_t n = samples.num_samples_per_prompt;
  Encoder out;
  out.i64(prompt);
  for (int64_t row = prompt * n; row < (prompt + 1) * n; ++row) {
    const Sample& from = samples.rows[static_cast<size_t>(row)];
    Sample sample;
    sample.prompt_index = from.prompt_index;
    sample.sample_index = from.sample_index;
    sample.token_ids = from.token_ids;
    sample.finish_reason = from.finish_reason;
    sample.text = from.text;
    sample.turns = from.turns;
    put_sample(out, sample);
  }
  return out.bytes();
}

size_t most_bytes_of_rows(const SampleBatch& samples, int64_t prompt) {
  constexpr size_t kNumbers = 256;  // more than the sizes and single numbers of a row
  const int64_t n = samples.num_samples_per_prompt;
  size_t bytes = kNumbers;
  for (int64_t row = prompt * n; row < (prompt + 1) * n; ++row) {
    const Sample& sample = samples.rows[static_cast<size_t>(row)];
    const SampleTurns& turns = sample.turns;
    bytes += kNumbers + sample.text.size() + turns.is_sampled.size() + turns.messages.size() + turns.failure.size() +
             sizeof(int64_t) * (sample.token_ids.size() + turns.rewards.size() + turns.prompt_ids.size());
  }
  return bytes;
}

Result<int64_t> decode_prompt_rows(std::string_view bytes, SampleBatch& samples) {
  const Error unreadable{ErrorKind::kInternal, "the rows of another rank cannot be read", "", hints::kOneBuildOfRanks};
  const int64_t n = samples.num_samples_per_prompt;
  Decoder in(bytes);
  const int64_t prompt = in.i64();
  if (prompt < 0 || prompt >= std::ssize(samples.rows) / n) return unreadable;
  for (int64_t row = prompt * n; row < (prompt + 1) * n; ++row) {
    Sample& sample = samples.rows[static_cast<size_t>(row)] = read_sample(in);
    if (sample.prompt_index != prompt) return unreadable;
  }
  if (!in.done()) return unreadable;
  return prompt;
}

}  // namespace mortise
