// The recorded completions that `mortise sft` learns: a column of the data rows, as token ids.
//
// Encoded once at the start, on all cores, so that a row without a completion or with one that is too long is found
// before the first update. Memory: the ids. Thread rule: a pure function of its arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experience/data/dataset.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct ResponseOptions {
  std::string key = "response";   // data.response_key: a column of text
  std::optional<int64_t> end_id;  // put behind every completion
  int64_t max_length = 0;         // data.max_response_length, the end token included
  int64_t vocab_size = 0;         // 0 = ids are not checked
};

// One list of ids per row of the data set. The Error names the first bad row and tells how many there are.
Result<std::vector<std::vector<int64_t>>> encode_responses(const Dataset& dataset, const Tokenizer& tokenizer,
                                                           const ResponseOptions& options);

}  // namespace mortise
