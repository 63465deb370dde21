// Finds where a completion's text first holds one of some strings, while its tokens come in. Special tokens count with
// their text; a character counts with its last byte. Cost: a look at a few bytes a token. Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace mortise {

class StopStringFinder {
 public:
  // `strings` (none is empty) and `tokenizer` must outlive the finder.
  StopStringFinder(const Tokenizer& tokenizer, const std::vector<std::string>& strings);
  // True where one of the strings ends within what this token adds to the text.
  bool push(int64_t id);

 private:
  const std::vector<std::string>* strings_;
  IncrementalDecoder decoder_;
  size_t longest_ = 0;
  std::string tail_;  // the text's last longest_ - 1 bytes
};

}  // namespace mortise
