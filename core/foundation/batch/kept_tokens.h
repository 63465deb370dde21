// KeptTokens: the tokens that penalties, forbidden tokens and filters left at each place of some response tokens. A
// place's log-probs are over its kept tokens (rollout.filtered_log_probs).
//
// Shapes: N places in the order of the rows' tokens; K kept tokens of all places. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace mortise {

struct KeptTokens {
  std::vector<int64_t> offsets{0};  // [N + 1] into the others
  std::vector<int32_t> ids{};       // [K] ascending within a place; the sampled token is one of them
  // Penalties make the logit z of a token (is_seen ? (z < 0 ? z p : z / p) : z) - shift. Without them both are empty.
  std::vector<uint8_t> is_seen{};   // [K]
  std::vector<float> shift{};       // [K]
  double repetition_penalty = 1.0;  // p

  [[nodiscard]] int64_t num_places() const { return static_cast<int64_t>(offsets.size()) - 1; }
  [[nodiscard]] bool empty() const { return offsets.size() == 1; }
  [[nodiscard]] std::span<const int32_t> at(int64_t place) const {
    const auto begin = static_cast<size_t>(offsets[static_cast<size_t>(place)]);
    return std::span(ids).subspan(begin, static_cast<size_t>(offsets[static_cast<size_t>(place) + 1]) - begin);
  }

  // Adds the places [begin, end) of `from` behind those that are there.
  void append(const KeptTokens& from, int64_t begin, int64_t end) {
    repetition_penalty = from.repetition_penalty;
    const auto part = [&](const auto& values) {
      const auto first = values.begin() + (values.empty() ? 0 : from.offsets[static_cast<size_t>(begin)]);
      const auto last = values.begin() + (values.empty() ? 0 : from.offsets[static_cast<size_t>(end)]);
      return std::pair(first, last);
    };
    const int64_t shift_by = offsets.back() - from.offsets[static_cast<size_t>(begin)];
    for (auto place = static_cast<size_t>(begin) + 1; place <= static_cast<size_t>(end); ++place)
      offsets.push_back(from.offsets[place] + shift_by);
    const auto [id, last_id] = part(from.ids);
    ids.insert(ids.end(), id, last_id);
    const auto [seen, last_seen] = part(from.is_seen);
    is_seen.insert(is_seen.end(), seen, last_seen);
    const auto [off, last_off] = part(from.shift);
    shift.insert(shift.end(), off, last_off);
  }
};

}  // namespace mortise
