// Token text <-> id. Ids may have holes. Cost: one hash look-up. Thread rule: constant after loading.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

inline constexpr int32_t kNoToken = -1;
// A vocabulary with a larger id is refused: the table of texts is as long as the largest id.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

class Vocab {
 public:
  Vocab() = default;
  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = default;
  Vocab(const Vocab&) = delete;
  Vocab& operator=(const Vocab&) = delete;

  // A text seen before gets the new id. `where` names the file in errors.
  Result<> add(std::string_view text, int64_t id, std::string_view where);
  [[nodiscard]] int32_t find(std::string_view text) const {
    const auto it = ids_.find(text);
    return it == ids_.end() ? kNoToken : it->second;
  }
  // Null where no token has this id.
  [[nodiscard]] const std::string_view* text(int64_t id) const {
    const bool inside = id >= 0 && static_cast<size_t>(id) < texts_.size();
    return inside && texts_[static_cast<size_t>(id)].data() != nullptr ? &texts_[static_cast<size_t>(id)] : nullptr;
  }
  [[nodiscard]] size_t size() const { return ids_.size(); }                               // number of tokens
  [[nodiscard]] int64_t id_limit() const { return static_cast<int64_t>(texts_.size()); }  // largest id + 1
  void reserve(size_t num_tokens) { ids_.reserve(num_tokens); }

 private:
  std::deque<std::string> storage_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::string_view> texts_;  // by id; no data where there is a hole
};

}  // namespace mortise
