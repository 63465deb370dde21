// The reference implementation of attention.cpp: one segment at a time with an explicit mask, in ATen operations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <limits>
#include <vector>

#include "model/layers/attention.h"

namespace mortise {
namespace {

// [L, heads * D] columns of qkv as [heads, L, D], with each key-value head repeated for its group.
at::Tensor heads_of(const at::Tensor& rows, int64_t first_head, int64_t num_heads, int64_t dim, int64_t repeat) {
  const at::Tensor heads =
      rows.narrow(1, first_head * dim, num_heads * dim).reshape({rows.size(0), num_heads, dim}).transpose(0, 1);
  return heads.repeat_interleave(repeat, 0);
}

}  // namespace

at::Tensor attention_probabilities(const at::Tensor& products, const at::Tensor& query_places,
                                   const at::Tensor& key_places, const AttentionShape& shape) {
  at::Tensor scores = products * shape.scale;
  if (shape.softcap > 0.0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
  at::Tensor hidden = key_places > query_places;
  if (shape.window > 0) hidden = hidden.logical_or(key_places <= query_places - shape.window);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (!shape.sinks_A.defined()) return at::softmax(scores, -1);
  std::vector<int64_t> one_key = scores.sizes().vec();
  one_key.back() = 1;
  const at::Tensor sinks = shape.sinks_A.reshape({shape.num_heads, 1, 1}).expand(one_key);
  return at::softmax(at::cat({scores, sinks}, -1), -1).narrow(-1, 0, products.size(-1));
}

at::Tensor rope_attention_plain(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                                const RopeTable& table, const AttentionShape& shape,
                                const std::function<void(const at::Tensor&)>& on_qkv) {
  const int64_t hq = shape.num_heads;
  const int64_t hk = shape.num_kv_heads;
  const int64_t dim = shape.head_dim;
  const at::Tensor qkv = rope_rotate_plain(qkv_NQ, positions_N, table, hq + hk, dim);
  if (on_qkv) on_qkv(qkv);
  std::vector<at::Tensor> outputs;  // segments follow one another
  const int64_t* data = segments_S4.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < segments_S4.size(0); ++s) {
    const at::Tensor own = qkv.narrow(0, data[s * 4], data[s * 4 + 1]);
    at::Tensor keys = own;
    const int64_t prefix = data[s * 4 + 2];
    if (prefix >= 0) {
      const at::Tensor before = qkv.narrow(0, data[prefix * 4], data[prefix * 4 + 1]);
      keys = at::cat({before, own}, 0);
    }
    const at::Tensor q = heads_of(own, 0, hq, dim, 1);
    const at::Tensor k = heads_of(keys, hq, hk, dim, hq / hk);
    const at::Tensor v = heads_of(keys, hq + hk, hk, dim, hq / hk);
    const at::Tensor places = at::arange(keys.size(0), at::kLong);
    const at::Tensor own_places = places.narrow(0, keys.size(0) - own.size(0), own.size(0)).unsqueeze(1);
    const at::Tensor p = attention_probabilities(at::matmul(q, k.transpose(1, 2)), own_places, places, shape);
    outputs.push_back(at::matmul(p, v).transpose(0, 1).reshape({own.size(0), hq * dim}));
  }
  return at::cat(outputs, 0);
}

}  // namespace mortise
