// See guide_shelf.h.
#include "text/guide/guide_shelf.h"

#include <algorithm>

namespace mortise {

Result<std::shared_ptr<TokenGuide>> GuideShelf::get(const std::string& pattern, std::span<const int64_t> end_ids) {
  const auto known = std::ranges::find_if(
      guides_, [&](const Kept& kept) { return kept.pattern == pattern && std::ranges::equal(kept.end_ids, end_ids); });
  if (known != guides_.end()) {
    guides_.splice(guides_.begin(), guides_, known);
    return guides_.front().guide;
  }
  if (tokenizer_ == nullptr) {
    return Error{ErrorKind::kConfig, "a pattern needs a tokenizer, but the model's folder has none", "",
                 "use a folder with a tokenizer"};
  }
  if (vocabulary_ == nullptr)
    vocabulary_ = std::make_shared<const VocabularyTrie>(TRY(VocabularyTrie::create(*tokenizer_, vocab_size_)));
  auto guide = TRY(TokenGuide::create(vocabulary_, pattern, end_ids));
  guides_.push_front({pattern, {end_ids.begin(), end_ids.end()}, guide});
  if (guides_.size() > kMostGuides) guides_.pop_back();
  return guide;
}

}  // namespace mortise
