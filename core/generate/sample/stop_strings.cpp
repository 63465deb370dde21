// See stop_strings.h.
#include "generate/sample/stop_strings.h"

#include <algorithm>

namespace mortise {

StopStringFinder::StopStringFinder(const Tokenizer& tokenizer, const std::vector<std::string>& strings)
    : strings_(&strings), decoder_(tokenizer.incremental_decoder(/*skip_special_tokens=*/false)) {
  for (const std::string& text : strings) longest_ = std::max(longest_, text.size());
}

bool StopStringFinder::push(int64_t id) {
  const size_t before = tail_.size();
  tail_ += decoder_.push(id);
  const bool found = std::ranges::any_of(*strings_, [&](const std::string& text) {
    // An earlier call has already reported a match that ends in the old part.
    const size_t from = before + 1 > text.size() ? before + 1 - text.size() : 0;
    return tail_.find(text, from) != std::string::npos;
  });
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return found;
}

}  // namespace mortise
