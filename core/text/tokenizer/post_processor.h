// Post-processors: the special tokens before and after a text's ids. Only the single-sequence form is used.
// Thread rule: constant after loading.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer/component.h"

namespace mortise {

struct PostProcessor {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
};

// From the "post_processor" of tokenizer.json; null gives an empty one.
Result<PostProcessor> make_post_processor(const Json& spec, const ComponentPlace& place);

}  // namespace mortise
