// PackedBatch: the rows of a (micro-)batch as one padding-free list of tokens, with the prompt of a group stored once.
//
// A segment is a run of consecutive tokens. A segment without prefix is causal in itself (a prompt, or a whole row). A
// segment with prefix (a completion) attends to its whole prefix segment and causally to itself. Its positions continue
// where the prefix ends. So P + G*R tokens are computed where padding-free rows need G*(P + R). The last token of a row
// predicts nothing and is left out unless keep_last_token is set.
// Cost: O(tokens), on the CPU. Thread rule: pure functions, plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct PackedSegment {
  int64_t begin = 0;            // first token in the packed list
  int64_t length = 0;           // > 0
  int64_t prefix_segment = -1;  // index of a segment before this one that itself has no prefix, or -1
  int64_t position = 0;         // position of its first token
  int64_t num_rows = 0;         // rows with a response that it belongs to
};

// Where the tokens of a row are in the packed list. Rows may share a prompt.
struct PackedRow {
  int64_t prompt = 0;        // its first prompt token
  int64_t response = 0;      // its first response token
  int64_t num_response = 0;  // response tokens that are computed
};

// N tokens, R response tokens, B rows.
struct PackedBatch {
  std::vector<PackedSegment> segments;
  at::Tensor token_ids_N;            // int64
  at::Tensor positions_N;            // int64
  at::Tensor owners_N;               // int64: see token_owner
  at::Tensor predict_index_R;        // int64: the packed token whose hidden state predicts response token r
  at::Tensor targets_R;              // int64: the response tokens, row by row
  std::vector<PackedRow> rows;       // [B]
  std::vector<int64_t> row_offsets;  // [B+1] into R
  std::vector<int64_t>
      last_index;  // [B]: the packed token of each row's last token, -1 for an empty row; only with keep_last_token

  [[nodiscard]] int64_t num_tokens() const { return token_ids_N.defined() ? token_ids_N.numel() : 0; }
  [[nodiscard]] int64_t num_targets() const { return targets_R.defined() ? targets_R.numel() : 0; }
  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(row_offsets.size()) - 1; }
  [[nodiscard]] int64_t max_position() const;  // largest position, -1 if empty
};

struct PackRow {
  std::span<const int64_t> prompt_ids;
  std::span<const int64_t> response_ids;
  int64_t group_key = -1;  // rows of one key with equal prompts share it; -1 never shares
  int64_t row_id = 0;      // its place in the step
};

// With its position, names a token of a step wherever it is packed: a prompt's token belongs to the prompt of the group
// (also if rows do not share it), any other token to its row. Random numbers of a token are counted by both.
[[nodiscard]] constexpr int64_t token_owner(const PackRow& row, bool in_prompt) {
  return in_prompt && row.group_key >= 0 ? 2 * row.group_key : 2 * row.row_id + 1;
}

struct PackOptions {
  bool share_prefix = true;
  bool keep_last_token = false;  // compute the hidden state of each row's last token too (value heads, scores)
  int64_t vocab_size = 0;        // ids must be in [0, vocab_size)
  int64_t max_positions = 0;     // a longer row is an error; 0: no limit
};

// Errors (kind data) name the row and the id: id out of range, a response without a prompt token before it, too long.
Result<PackedBatch> pack_rows(std::span<const PackRow> rows, const PackOptions& options);

}  // namespace mortise
