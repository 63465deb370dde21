// See sequence.h.
#include "model/layers/sequence.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Columns of qkv rows: where the heads of a rank are among all heads, and among those of that rank.
struct HeadColumns {
  int64_t num_heads, num_kv_heads, head_dim, num_ranks;
  int64_t own_heads, own_kv_heads;

  HeadColumns(const AttentionShape& shape, int64_t ranks)
      : num_heads(shape.num_heads), num_kv_heads(shape.num_kv_heads), head_dim(shape.head_dim), num_ranks(ranks) {
    const AttentionShape own = shape_on_rank(shape, 0, ranks);
    own_heads = own.num_heads;
    own_kv_heads = own.num_kv_heads;
  }
  [[nodiscard]] int64_t whole_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  [[nodiscard]] int64_t own_width() const { return (own_heads + 2 * own_kv_heads) * head_dim; }
  [[nodiscard]] int64_t first_kv_head(int64_t rank) const { return rank * num_kv_heads / num_ranks; }

  // visit(first column among all heads, first column among the rank's, columns) for q, k and v.
  template <class Visit>
  void visit(int64_t rank, const Visit& visit) const {
    visit(rank * own_heads * head_dim, int64_t{0}, own_heads * head_dim);
    const int64_t kv = own_kv_heads * head_dim;
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t first = num_heads + part * num_kv_heads + first_kv_head(rank);
      visit(first * head_dim, (own_heads + part * own_kv_heads) * head_dim, kv);
    }
  }
};

// Numbers of each rank's tokens, or as often the own ones.
std::vector<int64_t> sizes_by_tokens(const SequenceShard& shard, int64_t width) {
  std::vector<int64_t> sizes;
  for (size_t r = 0; r + 1 < shard.offsets.size(); ++r)
    sizes.push_back((shard.offsets[r + 1] - shard.offsets[r]) * width);
  return sizes;
}

std::vector<int64_t> own_sizes(const SequenceShard& shard, int64_t width) {
  return std::vector<int64_t>(static_cast<size_t>(shard.exchange->size()), shard.count() * width);
}

// [S, n, width], by rank -> [N, width] of this rank's heads.
at::Tensor send_tokens(const SequenceShard& shard, const at::Tensor& parts) {
  const int64_t width = parts.size(2);
  const at::Tensor out = at::empty({shard.offsets.back(), width}, parts.options());
  shard.exchange->all_to_all(parts, own_sizes(shard, width), out, sizes_by_tokens(shard, width));
  return out;
}

// [N, width] of this rank's heads -> [S, n, width] of all ranks' heads of its tokens.
at::Tensor send_heads(const SequenceShard& shard, const at::Tensor& heads) {
  const int64_t width = heads.size(1);
  const at::Tensor out = at::empty({shard.exchange->size(), shard.count(), width}, heads.options());
  shard.exchange->all_to_all(heads.contiguous(), sizes_by_tokens(shard, width), out, own_sizes(shard, width));
  return out;
}

// On its way through the graph: a context keeps IValues only.
struct ShardHolder : torch::CustomClassHolder {
  ShardHolder(std::shared_ptr<const SequenceShard> shard_in, const AttentionShape& shape_in)
      : shard(std::move(shard_in)), shape(shape_in) {}
  std::shared_ptr<const SequenceShard> shard;
  AttentionShape shape;
};

void keep_shard(AutogradContext* ctx, const c10::intrusive_ptr<ShardHolder>& holder) {
  ctx->saved_data["shard"] = c10::IValue::make_capsule(holder);
}

const ShardHolder& kept_shard(AutogradContext* ctx, c10::intrusive_ptr<torch::CustomClassHolder>& capsule) {
  capsule = ctx->saved_data["shard"].toCapsule();
  return *static_cast<const ShardHolder*>(capsule.get());
}

class HeadsOfAllTokens : public torch::autograd::Function<HeadsOfAllTokens> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv,
                            const c10::intrusive_ptr<ShardHolder>& holder) {
    keep_shard(ctx, holder);
    const SequenceShard& shard = *holder->shard;
    const HeadColumns columns(holder->shape, shard.exchange->size());
    const at::Tensor parts = at::empty({columns.num_ranks, qkv.size(0), columns.own_width()}, qkv.options());
    for (int64_t rank = 0; rank < columns.num_ranks; ++rank) {
      const at::Tensor part = parts.select(0, rank);
      columns.visit(rank, [&](int64_t from, int64_t to, int64_t count) {
        part.narrow(1, to, count).copy_(qkv.narrow(1, from, count));
      });
    }
    return send_tokens(shard, parts);
  }

  // A key-value head that several ranks had gets the sum of their gradients, in rank order.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    c10::intrusive_ptr<torch::CustomClassHolder> capsule;
    const ShardHolder& holder = kept_shard(ctx, capsule);
    const HeadColumns columns(holder.shape, holder.shard->exchange->size());
    const at::Tensor parts = send_heads(*holder.shard, grads[0]);
    const at::Tensor d_qkv = at::zeros({parts.size(1), columns.whole_width()}, parts.options());
    for (int64_t rank = 0; rank < columns.num_ranks; ++rank) {
      const at::Tensor part = parts.select(0, rank);
      columns.visit(rank, [&](int64_t to, int64_t from, int64_t count) {
        d_qkv.narrow(1, to, count).add_(part.narrow(1, from, count));
      });
    }
    return {d_qkv, at::Tensor()};
  }
};

class TokensOfAllHeads : public torch::autograd::Function<TokensOfAllHeads> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& out,
                            const c10::intrusive_ptr<ShardHolder>& holder) {
    keep_shard(ctx, holder);
    const at::Tensor parts = send_heads(*holder->shard, out);
    return parts.permute({1, 0, 2}).reshape({parts.size(1), parts.size(0) * parts.size(2)});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    c10::intrusive_ptr<torch::CustomClassHolder> capsule;
    const SequenceShard& shard = *kept_shard(ctx, capsule).shard;
    const int64_t ranks = shard.exchange->size();
    const at::Tensor parts =
        grads[0].reshape({shard.count(), ranks, grads[0].size(1) / ranks}).permute({1, 0, 2}).contiguous();
    return {send_tokens(shard, parts), at::Tensor()};
  }
};

}  // namespace

SequenceShard::SequenceShard(std::shared_ptr<TokenExchange> exchange_in, int64_t num_tokens)
    : exchange(std::move(exchange_in)) {
  for (int64_t rank = 0; rank <= exchange->size(); ++rank) offsets.push_back(num_tokens * rank / exchange->size());
}

int64_t SequenceShard::largest() const {
  int64_t most = 0;
  for (size_t r = 0; r + 1 < offsets.size(); ++r) most = std::max(most, offsets[r + 1] - offsets[r]);
  return most;
}

at::Tensor SequenceShard::own(const at::Tensor& whole, int64_t dim) const {
  return whole.narrow(dim, begin(), count()).contiguous();
}

bool can_share_heads(int64_t num_heads, int64_t num_kv_heads, int64_t num_ranks) {
  return num_heads % num_ranks == 0 && (num_kv_heads % num_ranks == 0 || num_ranks % num_kv_heads == 0);
}

AttentionShape shape_on_rank(const AttentionShape& shape, int64_t rank, int64_t num_ranks) {
  AttentionShape own = shape;
  own.num_heads = shape.num_heads / num_ranks;
  own.num_kv_heads = std::max<int64_t>(1, shape.num_kv_heads / num_ranks);
  if (shape.sinks_A.defined()) own.sinks_A = shape.sinks_A.narrow(0, rank * own.num_heads, own.num_heads);
  return own;
}

at::Tensor heads_of_all_tokens(const at::Tensor& qkv_nQ, const AttentionShape& shape,
                               const std::shared_ptr<const SequenceShard>& shard) {
  return HeadsOfAllTokens::apply(qkv_nQ, c10::make_intrusive<ShardHolder>(shard, shape));
}

at::Tensor tokens_of_all_heads(const at::Tensor& out_NQ, const AttentionShape& shape,
                               const std::shared_ptr<const SequenceShard>& shard) {
  return TokensOfAllHeads::apply(out_NQ, c10::make_intrusive<ShardHolder>(shard, shape));
}

}  // namespace mortise
