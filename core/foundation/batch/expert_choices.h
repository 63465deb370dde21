// ExpertChoices: the experts that the tokens of some rows took in a mixture of experts, for routing replay
// (actor.router_replay.mode).
//
// A row has its prompt and its response. `width` numbers belong to a token: K experts of each layer with experts, layer by
// layer. kNoExpert as the first of a layer's: not known, so the router chooses. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mortise {

inline constexpr uint16_t kNoExpert = 0xFFFF;  // above the number of experts that a model may have

struct ExpertChoices {
  int64_t width = 0;
  std::vector<int64_t> offsets{0};  // [B + 1] tokens of the rows
  std::vector<uint16_t> experts{};  // [tokens * width]

  [[nodiscard]] bool empty() const { return experts.empty(); }
  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(offsets.size()) - 1; }
  // The numbers of a row's tokens.
  [[nodiscard]] std::span<const uint16_t> of_row(int64_t row) const {
    const auto begin = static_cast<size_t>(offsets[static_cast<size_t>(row)] * width);
    const auto end = static_cast<size_t>(offsets[static_cast<size_t>(row) + 1] * width);
    return std::span(experts).subspan(begin, end - begin);
  }
  // Adds a row of so many tokens behind those that are there.
  void append(std::span<const uint16_t> row, int64_t num_tokens) {
    if (num_tokens > 0) width = static_cast<int64_t>(row.size()) / num_tokens;
    experts.insert(experts.end(), row.begin(), row.end());
    offsets.push_back(offsets.back() + num_tokens);
  }
};

}  // namespace mortise
