// See packing.h.
#include "model/tensor/packing.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>

namespace mortise {
namespace {

Error id_error(int64_t row, const char* part, size_t place, int64_t id, int64_t vocab_size) {
  return {ErrorKind::kData,
          fmt::format("token id {} at place {} of the {} is outside the vocabulary of {}", id, place, part, vocab_size),
          "row " + std::to_string(row), "use the tokenizer that belongs to this model"};
}

Result<> check_row(const PackRow& row, int64_t index, const PackOptions& options) {
  for (size_t i = 0; i < row.prompt_ids.size(); ++i) {
    const int64_t id = row.prompt_ids[i];
    if (id < 0 || id >= options.vocab_size) return id_error(index, "prompt", i, id, options.vocab_size);
  }
  for (size_t i = 0; i < row.response_ids.size(); ++i) {
    const int64_t id = row.response_ids[i];
    if (id < 0 || id >= options.vocab_size) return id_error(index, "response", i, id, options.vocab_size);
  }
  if (row.prompt_ids.empty() && !row.response_ids.empty()) {
    return Error{ErrorKind::kData, "a response without a prompt token before it", "row " + std::to_string(index),
                 "nothing predicts its first token: give at least one prompt token"};
  }
  const auto length = static_cast<int64_t>(row.prompt_ids.size() + row.response_ids.size());
  if (options.max_positions > 0 && length > options.max_positions) {
    return Error{ErrorKind::kData,
                 fmt::format("row of {} tokens, the model has {} positions (max_position_embeddings)", length,
                             options.max_positions),
                 "row " + std::to_string(index), "shorten the prompt or the response"};
  }
  return {};
}

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) { batch_.row_offsets.push_back(0); }

  void add(const PackRow& row) {
    // Tokens of the response that are inputs: the last one predicts nothing.
    const size_t num_response = row.response_ids.size();
    const size_t inputs = options_.keep_last_token || num_response == 0 ? num_response : num_response - 1;
    const bool shares = options_.share_prefix && row.group_key >= 0 && !row.prompt_ids.empty();
    if (shares) {
      const int64_t prompt = shared_prompt(row);
      PackedSegment& at = batch_.segments[static_cast<size_t>(prompt)];
      if (num_response > 0) ++at.num_rows;
      const int64_t last = at.begin + at.length - 1;
      const int64_t begin = size();
      if (inputs > 0) open_segment(row, prompt, at.length, {}, row.response_ids.first(inputs), /*num_rows=*/1);
      finish_row(row, last, begin, inputs);
    } else {
      const int64_t begin = size();
      if (!row.prompt_ids.empty())
        open_segment(row, -1, 0, row.prompt_ids, row.response_ids.first(inputs), num_response > 0 ? 1 : 0);
      const auto prompt_length = static_cast<int64_t>(row.prompt_ids.size());
      finish_row(row, begin + prompt_length - 1, begin + prompt_length, inputs);
    }
  }

  PackedBatch finish() && {
    batch_.token_ids_N = to_tensor(ids_);
    batch_.positions_N = to_tensor(positions_);
    batch_.owners_N = to_tensor(owners_);
    batch_.predict_index_R = to_tensor(predict_);
    batch_.targets_R = to_tensor(targets_);
    return std::move(batch_);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

  static at::Tensor to_tensor(const std::vector<int64_t>& values) {
    at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
    return out;
  }

  // A new segment of tokens of the row's prompt and then of its response.
  int64_t open_segment(const PackRow& row, int64_t prefix, int64_t position, std::span<const int64_t> prompt,
                       std::span<const int64_t> response, int64_t num_rows) {
    PackedSegment segment{size(), static_cast<int64_t>(prompt.size() + response.size()), prefix, position, num_rows};
    ids_.insert(ids_.end(), prompt.begin(), prompt.end());
    ids_.insert(ids_.end(), response.begin(), response.end());
    owners_.insert(owners_.end(), prompt.size(), token_owner(row, true));
    owners_.insert(owners_.end(), response.size(), token_owner(row, false));
    for (int64_t i = 0; i < segment.length; ++i) positions_.push_back(position + i);
    batch_.segments.push_back(segment);
    return static_cast<int64_t>(batch_.segments.size()) - 1;
  }

  // The prompt's segment, made on its first use. Rows of one key may in fact differ: then each prompt has its own.
  int64_t shared_prompt(const PackRow& row) {
    std::vector<int64_t>& known = prompts_[row.group_key];
    for (const int64_t candidate : known) {
      const PackedSegment& segment = batch_.segments[static_cast<size_t>(candidate)];
      if (segment.length == static_cast<int64_t>(row.prompt_ids.size()) &&
          std::equal(row.prompt_ids.begin(), row.prompt_ids.end(), ids_.begin() + segment.begin)) {
        return candidate;
      }
    }
    known.push_back(open_segment(row, -1, 0, row.prompt_ids, {}, 0));
    return known.back();
  }

  // `last_prompt` predicts the first response token. The inputs of the response begin at `begin`.
  void finish_row(const PackRow& row, int64_t last_prompt, int64_t begin, size_t inputs) {
    for (size_t i = 0; i < row.response_ids.size(); ++i) {
      predict_.push_back(i == 0 ? last_prompt : begin + static_cast<int64_t>(i) - 1);
      targets_.push_back(row.response_ids[i]);
    }
    const auto num_prompt = static_cast<int64_t>(row.prompt_ids.size());
    batch_.rows.push_back({last_prompt + 1 - num_prompt, begin, static_cast<int64_t>(inputs)});
    batch_.row_offsets.push_back(static_cast<int64_t>(targets_.size()));
    if (options_.keep_last_token) {
      batch_.last_index.push_back(row.prompt_ids.empty() ? -1
                                  : inputs > 0           ? begin + static_cast<int64_t>(inputs) - 1
                                                         : last_prompt);
    }
  }

  PackOptions options_;
  PackedBatch batch_;
  std::vector<int64_t> ids_;
  std::vector<int64_t> positions_;
  std::vector<int64_t> owners_;
  std::vector<int64_t> predict_;
  std::vector<int64_t> targets_;
  std::map<int64_t, std::vector<int64_t>> prompts_;
};

}  // namespace

int64_t PackedBatch::max_position() const {
  int64_t largest = -1;
  for (const PackedSegment& segment : segments) largest = std::max(largest, segment.position + segment.length - 1);
  return largest;
}

Result<PackedBatch> pack_rows(std::span<const PackRow> rows, const PackOptions& options) {
  Packer packer(options);
  for (size_t i = 0; i < rows.size(); ++i) {
    TRY(check_row(rows[i], static_cast<int64_t>(i), options));
    packer.add(rows[i]);
  }
  return std::move(packer).finish();
}

}  // namespace mortise
