// See vocab.h.
#include "text/tokenizer/vocab.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

Result<> Vocab::add(std::string_view text, int64_t id, std::string_view where) {
  if (id < 0 || id > kMaxTokenId) {
    return Error{ErrorKind::kData,
                 fmt::format("the token {} has the id {}, which is not in 0..{}", quote(text), id, kMaxTokenId),
                 std::string(where), ""};
  }
  id_limit_ = std::max(id_limit_, id + 1);
  const auto it = ids_.find(text);
  if (it != ids_.end()) {
    it->second = static_cast<int32_t>(id);
    place(it->first, id);
    return {};
  }
  const std::string_view kept = storage_.emplace_back(text);
  ids_.emplace(kept, static_cast<int32_t>(id));
  place(kept, id);
  return {};
}

void Vocab::place(std::string_view text, int64_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) {
    if (index >= std::max(kNearIds, 2 * std::max(storage_.size(), ids_.bucket_count()))) {
      far_texts_[id] = text;
      return;
    }
    texts_.resize(index + 1);
  }
  texts_[index] = text;
}

}  // namespace mortise
