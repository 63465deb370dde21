// See attention.h.
#include "model/layers/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "foundation/metrics/op_timer.h"
#include "model/layers/attention_softmax.h"
#include "model/layers/linear.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using blas::Trans;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLongestBlock = 128;  // queries

// Rows of scores begin at whole vectors.
int64_t score_stride(int64_t width) { return ceil_div(width, kScoreLanes) * kScoreLanes; }

struct Span {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t prefix_index = -1;
  int64_t prefix_begin = 0;
  int64_t prefix_length = 0;
  int64_t part_offset = 0;  // where its prefix gradient parts begin, in tokens

  // Queries that are computed at a time. Half of a block's own keys are masked: small blocks waste less on short spans.
  [[nodiscard]] int64_t block() const { return length <= 256 ? 32 : kLongestBlock; }
};

struct Spans {
  std::vector<Span> spans;
  int64_t longest_row = 0;  // prefix + own tokens
  int64_t part_tokens = 0;
};

Spans read_spans(const at::Tensor& segments_S4) {
  Spans out;
  const int64_t* data = segments_S4.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < segments_S4.size(0); ++s) {
    Span span;
    span.begin = data[s * 4];
    span.length = data[s * 4 + 1];
    span.prefix_index = data[s * 4 + 2];
    if (span.prefix_index >= 0) {
      span.prefix_begin = data[span.prefix_index * 4];
      span.prefix_length = data[span.prefix_index * 4 + 1];
      span.part_offset = out.part_tokens;
      out.part_tokens += span.prefix_length;
    }
    out.longest_row = std::max(out.longest_row, span.length + span.prefix_length);
    out.spans.push_back(span);
  }
  return out;
}

// Pointers and strides of one attention call; T rows of qkv have stride `row`.
template <class T>
struct Attention {
  AttentionShape shape;
  const T* qkv;
  T* out;         // forward
  T* lse;         // [N, Hq]
  const T* dout;  // backward: [N, Hq D]
  T* dqkv;
  const T* sinks;  // by head; null: none
  T* dot;          // backward, with sinks: [N, Hq] sums of p dp
  T* parts;        // [part_tokens][Hkv] blocks of [prefix, 2 D]: k and v gradients of a prefix from one segment
  int64_t row;

  int64_t dim() const { return shape.head_dim; }
  int64_t group() const { return shape.num_heads / shape.num_kv_heads; }
  int64_t out_row() const { return shape.num_heads * shape.head_dim; }
  int64_t q_at(int64_t token, int64_t head) const { return token * row + head * dim(); }
  int64_t k_at(int64_t token, int64_t kv_head) const { return token * row + (shape.num_heads + kv_head) * dim(); }
  int64_t v_at(int64_t token, int64_t kv_head) const {
    return token * row + (shape.num_heads + shape.num_kv_heads + kv_head) * dim();
  }
};

// The keys that a block of queries [first, first + rows) of a segment reaches: the end of its prefix, and own tokens,
// both cut where the window of the first query begins.
struct BlockKeys {
  int64_t prefix_first = 0;
  int64_t prefix = 0;  // tokens of the prefix
  int64_t own_first = 0;
  int64_t own = 0;  // own tokens

  int64_t width() const { return prefix + own; }
  int64_t stride() const { return score_stride(width()); }  // between rows of scores
};

template <class T>
BlockKeys block_keys(const Attention<T>& a, const Span& span, int64_t first, int64_t rows) {
  const int64_t place = span.prefix_length + first;  // the first query's place in its row
  const int64_t low = a.shape.window > 0 ? std::max<int64_t>(0, place - a.shape.window + 1) : 0;
  BlockKeys keys;
  keys.prefix_first = std::min(low, span.prefix_length);
  keys.prefix = span.prefix_length - keys.prefix_first;
  keys.own_first = std::max<int64_t>(0, low - span.prefix_length);
  keys.own = first + rows - keys.own_first;
  return keys;
}

template <class T>
ScoreBlock score_shape(const Attention<T>& a, const Span& span, const BlockKeys& keys, int64_t head, int64_t first,
                       int64_t rows) {
  const int64_t low = keys.prefix_first + keys.own_first;
  const int64_t place = span.prefix_length + first;
  const int64_t lag = a.shape.window > 0 ? a.shape.window - 1 - (place - low) : rows;
  const double sink =
      a.sinks == nullptr ? -std::numeric_limits<double>::infinity() : static_cast<double>(a.sinks[head]);
  return {rows, keys.width(), keys.stride(), place - low + 1, lag, a.shape.softcap, sink};
}

// scores = scale * q [rows] x keys.
template <class T>
void score_block(const Attention<T>& a, const Span& span, int64_t kv_head, const T* q, int64_t rows,
                 const BlockKeys& keys, T* scores) {
  const int64_t stride = keys.stride();
  const T scale = static_cast<T>(a.shape.scale);
  if (keys.prefix > 0) {
    blas::gemm(Trans::kNo, Trans::kYes, rows, keys.prefix, a.dim(), scale, q, a.row,
               a.qkv + a.k_at(span.prefix_begin + keys.prefix_first, kv_head), a.row, T(0), scores, stride);
  }
  blas::gemm(Trans::kNo, Trans::kYes, rows, keys.own, a.dim(), scale, q, a.row,
             a.qkv + a.k_at(span.begin + keys.own_first, kv_head), a.row, T(0), scores + keys.prefix, stride);
}

template <class T>
void forward_task(const Attention<T>& a, const Span& span, int64_t kv_head, T* scores) {
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    for (int64_t first = 0; first < span.length; first += span.block()) {
      const int64_t rows = std::min(span.block(), span.length - first);
      const BlockKeys keys = block_keys(a, span, first, rows);
      const int64_t token = span.begin + first;
      score_block(a, span, kv_head, a.qkv + a.q_at(token, head), rows, keys, scores);
      attention_softmax_(scores, score_shape(a, span, keys, head, first, rows),
                         a.lse + token * a.shape.num_heads + head, a.shape.num_heads);
      T* out = a.out + token * a.out_row() + head * a.dim();
      blas::gemm(Trans::kNo, Trans::kNo, rows, a.dim(), keys.own, T(1), scores + keys.prefix, keys.stride(),
                 a.qkv + a.v_at(span.begin + keys.own_first, kv_head), a.row, T(0), out, a.out_row());
      if (keys.prefix > 0) {
        blas::gemm(Trans::kNo, Trans::kNo, rows, a.dim(), keys.prefix, T(1), scores, keys.stride(),
                   a.qkv + a.v_at(span.prefix_begin + keys.prefix_first, kv_head), a.row, T(1), out, a.out_row());
      }
    }
  }
}

// Gradients of one block of queries of one head; `first_touch`: k and v gradients are set, not added to.
template <class T>
void backward_block(const Attention<T>& a, const Span& span, int64_t kv_head, int64_t head, int64_t first, int64_t rows,
                    bool first_touch, T* scores, T* dp) {
  const BlockKeys keys = block_keys(a, span, first, rows);
  const int64_t stride = keys.stride();
  const int64_t dim = a.dim();
  const int64_t token = span.begin + first;
  const int64_t own = span.begin + keys.own_first;
  const int64_t prefix = span.prefix_begin + keys.prefix_first;
  const T scale = static_cast<T>(a.shape.scale);
  const T keep = first_touch ? T(0) : T(1);
  const T* q = a.qkv + a.q_at(token, head);
  const T* dout = a.dout + token * a.out_row() + head * dim;
  T* dq = a.dqkv + a.q_at(token, head);
  score_block(a, span, kv_head, q, rows, keys, scores);
  blas::gemm(Trans::kNo, Trans::kYes, rows, keys.own, dim, T(1), dout, a.out_row(), a.qkv + a.v_at(own, kv_head), a.row,
             T(0), dp + keys.prefix, stride);
  if (keys.prefix > 0) {
    blas::gemm(Trans::kNo, Trans::kYes, rows, keys.prefix, dim, T(1), dout, a.out_row(),
               a.qkv + a.v_at(prefix, kv_head), a.row, T(0), dp, stride);
  }
  const int64_t place = token * a.shape.num_heads + head;
  attention_softmax_grad_(scores, dp, score_shape(a, span, keys, head, first, rows), a.lse + place,
                          a.dot == nullptr ? nullptr : a.dot + place, a.shape.num_heads);
  blas::gemm(Trans::kNo, Trans::kNo, rows, dim, keys.own, scale, dp + keys.prefix, stride, a.qkv + a.k_at(own, kv_head),
             a.row, T(0), dq, a.row);
  blas::gemm(Trans::kYes, Trans::kNo, keys.own, dim, rows, scale, dp + keys.prefix, stride, q, a.row, keep,
             a.dqkv + a.k_at(own, kv_head), a.row);
  blas::gemm(Trans::kYes, Trans::kNo, keys.own, dim, rows, T(1), scores + keys.prefix, stride, dout, a.out_row(), keep,
             a.dqkv + a.v_at(own, kv_head), a.row);
  if (keys.prefix == 0) return;
  T* part =
      a.parts + (span.part_offset * a.shape.num_kv_heads + kv_head * span.prefix_length + keys.prefix_first) * 2 * dim;
  blas::gemm(Trans::kNo, Trans::kNo, rows, dim, keys.prefix, scale, dp, stride, a.qkv + a.k_at(prefix, kv_head), a.row,
             T(1), dq, a.row);
  blas::gemm(Trans::kYes, Trans::kNo, keys.prefix, dim, rows, scale, dp, stride, q, a.row, keep, part, 2 * dim);
  blas::gemm(Trans::kYes, Trans::kNo, keys.prefix, dim, rows, T(1), scores, stride, dout, a.out_row(), keep, part + dim,
             2 * dim);
}

template <class T>
void backward_task(const Attention<T>& a, const Span& span, int64_t kv_head, T* scratch, int64_t longest_row) {
  T* scores = scratch;
  T* dp = scratch + kLongestBlock * score_stride(longest_row);
  bool first_touch = a.shape.window == 0;  // with a window the gradients come zeroed
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    // From the last block, which reaches every key, so that the first touch sets all gradients of the segment.
    for (int64_t first = (span.length - 1) / span.block() * span.block(); first >= 0; first -= span.block()) {
      backward_block(a, span, kv_head, head, first, std::min(span.block(), span.length - first), first_touch, scores,
                     dp);
      first_touch = false;
    }
  }
}

// Adds the parts of all segments with this prefix, in their order, to the prefix's own gradients.
template <class T>
void add_parts(const Attention<T>& a, const std::vector<Span>& spans, int64_t prefix_index, int64_t kv_head) {
  const int64_t dim = a.dim();
  for (const Span& span : spans) {
    if (span.prefix_index != prefix_index) continue;
    const T* part = a.parts + (span.part_offset * a.shape.num_kv_heads + kv_head * span.prefix_length) * 2 * dim;
    for (int64_t t = 0; t < span.prefix_length; ++t, part += 2 * dim) {
      T* dk = a.dqkv + a.k_at(span.prefix_begin + t, kv_head);
      T* dv = a.dqkv + a.v_at(span.prefix_begin + t, kv_head);
      for (int64_t i = 0; i < dim; ++i) dk[i] += part[i];
      for (int64_t i = 0; i < dim; ++i) dv[i] += part[dim + i];
    }
  }
}

template <class T>
void run_forward(const Attention<T>& a, const Spans& spans) {
  const int64_t heads = a.shape.num_kv_heads;
  parallel_tasks<T>(
      static_cast<int64_t>(spans.spans.size()) * heads, kLongestBlock * score_stride(spans.longest_row),
      [&](int64_t i, T* scratch) { forward_task(a, spans.spans[static_cast<size_t>(i / heads)], i % heads, scratch); });
}

template <class T>
void run_backward(const Attention<T>& a, const Spans& spans) {
  const int64_t heads = a.shape.num_kv_heads;
  parallel_tasks<T>(static_cast<int64_t>(spans.spans.size()) * heads,
                    2 * kLongestBlock * score_stride(spans.longest_row), [&](int64_t i, T* scratch) {
                      backward_task(a, spans.spans[static_cast<size_t>(i / heads)], i % heads, scratch,
                                    spans.longest_row);
                    });
  std::vector<int64_t> prefixes;
  for (const Span& span : spans.spans) {
    if (span.prefix_index >= 0) prefixes.push_back(span.prefix_index);
  }
  std::sort(prefixes.begin(), prefixes.end());
  prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
  parallel_tasks<T>(static_cast<int64_t>(prefixes.size()) * heads, 0, [&](int64_t i, T*) {
    add_parts(a, spans.spans, prefixes[static_cast<size_t>(i / heads)], i % heads);
  });
}

// Multiply-adds of one product of the queries and their keys for every head, each counted as two: what a causal mask
// leaves. Windows are not taken off.
double score_flops(const AttentionShape& shape, const Spans& spans) {
  double pairs = 0;
  for (const Span& span : spans.spans)
    pairs += static_cast<double>(span.length) *
             (static_cast<double>(span.prefix_length) + 0.5 * static_cast<double>(span.length + 1));
  return 2.0 * pairs * static_cast<double>(shape.num_heads * shape.head_dim);
}

class RopeAttentionFunction : public torch::autograd::Function<RopeAttentionFunction> {
 public:
  // `sinks` as an input, for its gradient; an undefined tensor counts as a constant.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const std::optional<at::Tensor>& sinks,
                            const at::Tensor& segments, const at::Tensor& positions, const RopeTable& table,
                            const AttentionShape& shape, const std::function<void(const at::Tensor&)>& on_qkv) {
    const Spans spans = read_spans(segments);
    const OpTimer timer("attention, forward", [&] {
      return OpWork{2.0 * score_flops(shape, spans), 2.0 * static_cast<double>(qkv.nbytes())};
    });
    rope_rotate_(qkv, positions, table, shape.num_heads + shape.num_kv_heads, shape.head_dim, /*inverse=*/false);
    if (on_qkv) on_qkv(qkv);
    at::Tensor out = at::empty({qkv.size(0), shape.num_heads * shape.head_dim}, qkv.options());
    at::Tensor lse = at::empty({qkv.size(0), shape.num_heads}, qkv.options());
    dispatch_float(qkv, [&](auto zero) {
      using T = decltype(zero);
      Attention<T> a{};
      a.shape = shape;
      a.qkv = qkv.const_data_ptr<T>();
      a.out = out.mutable_data_ptr<T>();
      a.lse = lse.mutable_data_ptr<T>();
      if (sinks) a.sinks = sinks->const_data_ptr<T>();
      a.row = qkv.size(1);
      run_forward(a, spans);
    });
    ctx->save_for_backward({qkv, segments, positions, table.cos_PR2, table.sin_PR2, lse, sinks.value_or(at::Tensor())});
    ctx->saved_data["heads"] = std::vector<int64_t>{shape.num_heads, shape.num_kv_heads, shape.head_dim};
    ctx->saved_data["window"] = shape.window;
    ctx->saved_data["scale"] = shape.scale;
    ctx->saved_data["softcap"] = shape.softcap;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const std::vector<int64_t> heads = ctx->saved_data["heads"].toIntVector();
    const Spans spans = read_spans(saved[1]);
    AttentionShape shape{heads[0], heads[1], heads[2], ctx->saved_data["scale"].toDouble()};
    shape.softcap = ctx->saved_data["softcap"].toDouble();
    const int64_t window = ctx->saved_data["window"].toInt();
    if (window < spans.longest_row) shape.window = window;  // else no row can leave it
    const OpTimer timer("attention, backward", [&] {
      return OpWork{5.0 * score_flops(shape, spans), 3.0 * static_cast<double>(qkv.nbytes())};
    });
    const at::Tensor dout = grads[0].contiguous();
    at::Tensor dqkv = at::empty_like(qkv);
    const at::Tensor& sinks = saved[6];
    const at::Tensor dot = sinks.defined() ? at::empty_like(saved[5]) : at::Tensor();
    at::Tensor parts = at::empty({spans.part_tokens, shape.num_kv_heads, 2 * shape.head_dim}, qkv.options());
    if (shape.window > 0) {
      dqkv.zero_();
      parts.zero_();
    }
    dispatch_float(qkv, [&](auto zero) {
      using T = decltype(zero);
      Attention<T> a{};
      a.shape = shape;
      a.qkv = qkv.const_data_ptr<T>();
      a.lse = saved[5].mutable_data_ptr<T>();
      a.dout = dout.const_data_ptr<T>();
      a.dqkv = dqkv.mutable_data_ptr<T>();
      a.parts = parts.mutable_data_ptr<T>();
      if (sinks.defined()) {
        a.sinks = sinks.const_data_ptr<T>();
        a.dot = dot.mutable_data_ptr<T>();
      }
      a.row = qkv.size(1);
      run_backward(a, spans);
    });
    rope_rotate_(dqkv, saved[2], RopeTable{saved[3], saved[4]}, shape.num_heads + shape.num_kv_heads, shape.head_dim,
                 /*inverse=*/true);
    at::Tensor dsinks;  // a sink's probability times (0 - sum p dp)
    if (sinks.defined() && ctx->needs_input_grad(1)) dsinks = at::sum(at::exp(sinks - saved[5]) * dot, {0}).neg();
    return {dqkv, dsinks, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor segments_tensor(std::span<const PackedSegment> segments) {
  at::Tensor out = at::empty({static_cast<int64_t>(segments.size()), 4}, at::kLong);
  int64_t* data = out.mutable_data_ptr<int64_t>();
  for (const PackedSegment& segment : segments) {
    *data++ = segment.begin;
    *data++ = segment.length;
    *data++ = segment.prefix_segment;
    *data++ = segment.position;
  }
  return out;
}

at::Tensor rope_attention(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                          const RopeTable& table, const AttentionShape& shape,
                          const std::function<void(const at::Tensor&)>& on_qkv) {
  return RopeAttentionFunction::apply(qkv_NQ, optional_bias(shape.sinks_A), segments_S4, positions_N, table, shape,
                                      on_qkv);
}

}  // namespace mortise
