// Sequence parallel (Ulysses, Jacobs et al. 2023, arXiv:2309.14509): the ranks of a group share the tokens of one pass.
//
// A rank has neighbouring tokens of the packed batch, and computes all of its layers on them alone. Only attention looks
// at other tokens: before it, the ranks exchange queries, keys and values, so that each has some heads of all tokens,
// and after it they exchange the heads' outputs back. If there are fewer key-value heads than ranks, several ranks get
// the same one. Backward makes the opposite exchanges.
//
// Cost of a layer for each of S ranks with n of N tokens, forward: n (Hq + 2 max(Hkv, S)) D numbers out of qkv, of which
// 1/S stays, and n Hq D back. Backward sends as many. Thread rule: one thread at a time. The exchanges are
// collectives in the group: its ranks run the same layers in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/layers/attention.h"

namespace mortise {

// How the ranks of a group exchange numbers. Errors are kept for the caller of the pass, and the numbers of passes after
// one have no meaning.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // output = what each rank has for this one, in rank order. input = what this rank has for each of them, in numbers.
  virtual void all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                          std::span<const int64_t> output_sizes) = 0;
};

// Which tokens of a packed batch each rank has.
struct SequenceShard {
  std::shared_ptr<TokenExchange> exchange;
  std::vector<int64_t> offsets;  // rank r has the tokens [offsets[r], offsets[r + 1])

  // Equal parts, as far as that goes.
  SequenceShard(std::shared_ptr<TokenExchange> exchange_in, int64_t num_tokens);
  [[nodiscard]] int64_t begin() const { return offsets[static_cast<size_t>(exchange->rank())]; }
  [[nodiscard]] int64_t count() const { return offsets[static_cast<size_t>(exchange->rank()) + 1] - begin(); }
  [[nodiscard]] int64_t largest() const;
  // This rank's part of a tensor with one entry per token in this dimension.
  [[nodiscard]] at::Tensor own(const at::Tensor& whole, int64_t dim = 0) const;
};

// Do the heads divide into as many equal groups? Key-value heads may be repeated.
[[nodiscard]] bool can_share_heads(int64_t num_heads, int64_t num_kv_heads, int64_t num_ranks);
// The heads of one rank, with their sinks. Precondition: can_share_heads.
[[nodiscard]] AttentionShape shape_on_rank(const AttentionShape& shape, int64_t rank, int64_t num_ranks);

// [n, (Hq + 2 Hkv) D] of this rank's tokens -> [N, (hq + 2 hkv) D] of its heads, which may be written to.
at::Tensor heads_of_all_tokens(const at::Tensor& qkv_nQ, const AttentionShape& shape,
                               const std::shared_ptr<const SequenceShard>& shard);
// [N, hq D] of its heads -> [n, Hq D] of its tokens.
at::Tensor tokens_of_all_heads(const at::Tensor& out_NQ, const AttentionShape& shape,
                               const std::shared_ptr<const SequenceShard>& shard);

}  // namespace mortise
