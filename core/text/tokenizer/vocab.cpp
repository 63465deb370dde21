// See vocab.h.
#include "text/tokenizer/vocab.h"

#include "foundation/base/text.h"

namespace mortise {

Result<> Vocab::add(std::string_view text, int64_t id, std::string_view where) {
  if (id < 0 || id > kMaxTokenId) {
    return Error{ErrorKind::kData,
                 "the token " + quote(text) + " has the id " + std::to_string(id) + ", which is not in 0.." +
                     std::to_string(kMaxTokenId),
                 std::string(where), ""};
  }
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) texts_.resize(index + 1);
  const auto it = ids_.find(text);
  if (it != ids_.end()) {
    it->second = static_cast<int32_t>(id);
    texts_[index] = it->first;
    return {};
  }
  const std::string_view kept = storage_.emplace_back(text);
  ids_.emplace(kept, static_cast<int32_t>(id));
  texts_[index] = kept;
  return {};
}

}  // namespace mortise
