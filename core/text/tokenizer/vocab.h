// Token text <-> id. Ids may have holes, also large ones: memory follows the number of tokens, not the largest id.
// Cost: one hash look-up. Thread rule: constant after loading.
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
// A vocabulary with a larger id is refused: no model has as many rows.
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
    if (id < 0) return nullptr;
    if (static_cast<size_t>(id) < texts_.size()) {
      const std::string_view& text = texts_[static_cast<size_t>(id)];
      return text.data() != nullptr ? &text : nullptr;
    }
    const auto it = far_texts_.find(id);
    return it == far_texts_.end() ? nullptr : &it->second;
  }
  [[nodiscard]] size_t size() const { return ids_.size(); }     // number of tokens
  [[nodiscard]] int64_t id_limit() const { return id_limit_; }  // largest id + 1
  void reserve(size_t num_tokens) { ids_.reserve(num_tokens); }
  // Every text with its id, in the order they were added.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::string& text : storage_) visit(std::string_view(text), ids_.at(text));
  }

 private:
  void place(std::string_view text, int64_t id);

  static constexpr size_t kNearIds = size_t{1} << 18;  // ids below this, and twice the number of tokens, have a table

  std::deque<std::string> storage_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::string_view> texts_;                      // by id; no data where there is a hole
  std::unordered_map<int64_t, std::string_view> far_texts_;  // texts of ids far above the others
  int64_t id_limit_ = 0;
};

}  // namespace mortise
