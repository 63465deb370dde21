// Inputs of policy losses, KL estimators and advantage estimators as one table of named tensors, and calls with it.
//
// For any kind, rows can be picked, reordered and freed of their masked tokens, so that a case compares a batch with
// another split of the same batch. Shapes: N tokens of B rows, K = 2 reward functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "conformance/subject.h"
#include "foundation/batch/columns.h"

namespace mortise::check {

struct TokenBatch {
  std::vector<int64_t> row_offsets{0};  // [B+1]
  std::vector<int64_t> row_id, group_index;
  std::vector<uint8_t> mask;       // [N]
  std::vector<uint8_t> row_valid;  // [B]
  // [N] and [B]: the columns that the kinds see (plugin/host/kinds/input_columns.h), by name; rows also reward_0, reward_1.
  std::map<std::string, std::vector<float>> tokens;
  std::map<std::string, std::vector<float>> rows;

  // The column C, which is added if it is absent.
  template <class C>
  [[nodiscard]] std::vector<float>& column() {
    return (C::level == Level::kRow ? rows : tokens)[std::string(C::name)];
  }

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(row_offsets.size()) - 1; }
  [[nodiscard]] int64_t num_tokens() const { return row_offsets.back(); }
};

// Eight rows of 1 to 48 tokens, 192 in all, in two groups, with holes in the mask and nothing special in the numbers.
[[nodiscard]] TokenBatch usual_batch(uint64_t seed = 1);
// Rows of the given lengths, the first `group_size` in group 0 and so on. `holes`: one token in five is masked.
[[nodiscard]] TokenBatch make_batch(std::span<const int64_t> lengths, int64_t group_size, uint64_t seed, bool holes);
// Rows `order` of `batch`, in that order.
[[nodiscard]] TokenBatch pick_rows(const TokenBatch& batch, std::span<const int64_t> order);
[[nodiscard]] TokenBatch without_masked(const TokenBatch& batch);

// How the call is made.
struct TokenCall {
  bool optional_inputs = false;  // all inputs of the ABI, not only those that the plugin requires
  bool gradient = true;
  bool entropy_gradient = false;
  size_t tail_bytes = 0;  // bytes that a newer host adds to structs
  uint64_t byte_offset = 0;
  int32_t device = MORTISE_CPU;
  float prefill = 0.0F;  // outputs hold it first; -0.0 counts as zero but differs from a zero that was written
};

// out[0]: loss, kl, advantages; out[1]: grad_log_prob, returns (empty if not requested); out[2]: grad_entropy.
struct TokenResult {
  SlotCall call;
  std::array<std::vector<float>, 3> out;
  std::string damage;  // writes outside the outputs
};

[[nodiscard]] TokenResult call_tokens(const Instance& instance, const TokenBatch& batch, const TokenCall& how = {});
// call_tokens, and broken() if the call failed or wrote outside.
[[nodiscard]] Result<TokenResult> tokens_ok(const Instance& instance, const TokenBatch& batch,
                                            const TokenCall& how = {});

// Name of out[i] for messages: "loss", "grad_log_prob" ...
[[nodiscard]] std::string output_name(uint32_t kind, size_t i);
// "token 3 of row 2"
[[nodiscard]] std::string place_of(const TokenBatch& batch, size_t t);

inline constexpr double kTolerance = 1e-5;  // times the largest element: results are float32

// Broken where outputs differ at an unmasked token. Tolerance is relative to the largest element; 0: the same bits.
[[nodiscard]] Result<> compare(const Instance& instance, const TokenBatch& batch, const TokenResult& one,
                               const TokenResult& other, double tolerance, std::string_view what);

// Broken where an output is no number at an unmasked token; `when` ends the sentence.
[[nodiscard]] Result<> demand_finite(const Subject& subject, const TokenBatch& batch, const TokenResult& result,
                                     const std::string& when);

}  // namespace mortise::check
