// Dataset: the rows of the JSONL files, encoded once at the start, in the order of the files.
//
// All problems of a file are found before the first step: an unreadable line, a row without a prompt, a token id
// outside the vocabulary, a prompt that is too long. Parsing and encoding run on all cores, with the same result for
// any number of them. Memory: the rows and their ids. Thread rule: read-only after load.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experience/data/prompt_encoder.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct DatasetOptions {
  std::vector<std::string> files;
  int64_t max_samples = -1;  // rows kept, from the front; negative = all
  bool filter_overlong_prompts = false;
  int64_t vocab_size = 0;                // 0 = ids are not checked
  std::string key;                       // the config key that names the files, for errors
  std::vector<std::string> read_keys{};  // other row keys that something reads, to find misspelt ones
  std::string left_out = "whose prompts are longer than data.max_prompt_length";  // rows that the encoder leaves out
  int num_threads = 0;                                                            // 0: all cores
};

// One row to its prompt; nothing: the row is left out. Called from many threads.
using RowEncoder = std::function<Result<std::optional<Prompt>>(const Json& row, const std::string& where)>;

class Dataset {
 public:
  static Result<Dataset> load(Env& env, const PromptEncoder& encoder, const DatasetOptions& options);
  // filter_overlong_prompts and vocab_size are the encoder's own business here.
  static Result<Dataset> load(Env& env, const RowEncoder& encode, const DatasetOptions& options);

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(prompts_.size()); }
  [[nodiscard]] const Prompt& operator[](int64_t row) const { return prompts_[static_cast<size_t>(row)]; }
  [[nodiscard]] int64_t num_filtered() const { return num_filtered_; }
  // Digest of the rows as in the files, in order. It shows whether a run continues with the rows it began with.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  // "file:line" of a row.
  [[nodiscard]] std::string where(int64_t row) const;

 private:
  std::vector<Prompt> prompts_;
  std::vector<std::string> files_;
  std::vector<std::pair<int32_t, int64_t>> places_;  // file index, line
  int64_t num_filtered_ = 0;
  std::string digest_;
};

}  // namespace mortise
