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
#include <utility>
#include <vector>

#include "foundation/metrics/op_timer.h"
#include "model/layers/attention_products.h"
#include "model/layers/attention_softmax.h"
#include "model/layers/linear.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

// The keys [begin, end) of a segment, its prefix's first, that a block of queries [first, first + rows) reaches. They are
// cut where the window of the first query begins, at a whole panel of keys.
struct BlockKeys {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t place = 0;  // the first query's among the keys

  int64_t width() const { return end - begin; }
  int64_t stride() const { return score_stride(width()); }  // between rows of scores
};

template <class T>
BlockKeys block_keys(const Attention<T>& a, const Span& span, int64_t first, int64_t rows) {
  const int64_t place = span.prefix_length + first;
  const int64_t low = a.shape.window > 0 ? std::max<int64_t>(0, place - a.shape.window + 1) : 0;
  return {low / kF32Columns * kF32Columns, place + rows, place};
}

template <class T>
ScoreBlock score_shape(const Attention<T>& a, const BlockKeys& keys, int64_t head, int64_t rows) {
  const int64_t place = keys.place - keys.begin;
  const int64_t lag = a.shape.window > 0 ? a.shape.window - 1 - place : rows;
  const double sink =
      a.sinks == nullptr ? -std::numeric_limits<double>::infinity() : static_cast<double>(a.sinks[head]);
  return {rows, keys.width(), keys.stride(), place + 1, lag, a.shape.softcap, sink};
}

// The rows of the prefix and of the segment itself whose first token's is `first`: in place, or copied to `memory`.
template <class T>
HeadRows<T> rows_of_segment(const Attention<T>& a, const Span& span, const T* first, T* memory) {
  const T* const own = first + span.begin * a.row;
  const T* const prefix = first + span.prefix_begin * a.row;
  const int64_t dim = a.dim(), count = span.prefix_length + span.length;
  if (span.prefix_length == 0) return {own, a.row, count, dim};
  for (int64_t t = 0; t < span.prefix_length; ++t) std::copy_n(prefix + t * a.row, dim, memory + t * dim);
  for (int64_t t = 0; t < span.length; ++t) std::copy_n(own + t * a.row, dim, memory + (span.prefix_length + t) * dim);
  return {memory, dim, count, dim};
}

template <class T>
void forward_task(const Attention<T>& a, const Span& span, int64_t kv_head, const AttentionScratch<T>& w) {
  const F32Kernels* const kernels = head_kernels<T>(a.dim());
  // Panels are made of rows in memory that is free then. Without panels the rows themselves stay.
  const auto rows_of = [&](int64_t offset, T* laid) {
    return rows_of_segment(a, span, a.qkv + offset, kernels != nullptr ? w.scores : laid);
  };
  const HeadColumns<T> key_columns(kernels, rows_of(a.k_at(0, kv_head), w.key_columns), w.key_columns);
  const HeadTerms<T> value_terms(kernels, rows_of(a.v_at(0, kv_head), w.value_terms), w.value_terms);
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    for (int64_t first = 0; first < span.length; first += span.block()) {
      const int64_t rows = std::min(span.block(), span.length - first);
      const BlockKeys keys = block_keys(a, span, first, rows);
      const int64_t token = span.begin + first;
      key_columns.multiply(keys.begin, keys.end, rows, static_cast<T>(a.shape.scale), a.qkv + a.q_at(token, head),
                           a.row, w.scores, keys.stride());
      attention_softmax_(w.scores, score_shape(a, keys, head, rows), a.lse + token * a.shape.num_heads + head,
                         a.shape.num_heads);
      value_terms.multiply(keys.begin, keys.end, rows, T(1), w.scores, keys.stride(),
                           a.out + token * a.out_row() + head * a.dim(), a.out_row());
    }
  }
}

// What the blocks of queries of one segment and one key-value head share.
template <class T>
struct BackwardTask {
  const Attention<T>& a;
  const Span& span;
  const AttentionScratch<T>& w;
  const F32Kernels* kernels;
  HeadColumns<T> key_columns, value_columns;
  HeadTerms<T> key_terms;
};

template <class T>
void backward_block(const BackwardTask<T>& task, int64_t head, int64_t first, int64_t rows) {
  const Attention<T>& a = task.a;
  const AttentionScratch<T>& w = task.w;
  const BlockKeys keys = block_keys(a, task.span, first, rows);
  const int64_t stride = keys.stride(), dim = a.dim(), token = task.span.begin + first;
  const T scale = static_cast<T>(a.shape.scale);
  const HeadRows<T> q{a.qkv + a.q_at(token, head), a.row, rows, dim};
  const HeadRows<T> dout{a.dout + token * a.out_row() + head * dim, a.out_row(), rows, dim};
  task.key_columns.multiply(keys.begin, keys.end, rows, scale, q.data, q.stride, w.scores, stride);
  task.value_columns.multiply(keys.begin, keys.end, rows, T(1), dout.data, dout.stride, w.dp, stride);
  const int64_t place = token * a.shape.num_heads + head;
  attention_softmax_grad_(w.scores, w.dp, score_shape(a, keys, head, rows), a.lse + place,
                          a.dot == nullptr ? nullptr : a.dot + place, a.shape.num_heads);
  task.key_terms.multiply(keys.begin, keys.end, rows, scale, w.dp, stride, a.dqkv + a.q_at(token, head), a.row);
  add_transposed_product(task.kernels, q, keys.width(), scale, w.dp, stride, w.side, w.dkeys + keys.begin * dim);
  add_transposed_product(task.kernels, dout, keys.width(), T(1), w.scores, stride, w.side,
                         w.dvalues + keys.begin * dim);
}

// The gradients of keys and values go to the segment's own tokens, and those of its prefix to its parts.
template <class T>
void write_key_gradients(const Attention<T>& a, const Span& span, int64_t kv_head, const AttentionScratch<T>& w) {
  const int64_t dim = a.dim(), prefix = span.prefix_length;
  T* part = a.parts + (span.part_offset * a.shape.num_kv_heads + kv_head * prefix) * 2 * dim;
  for (int64_t t = 0; t < prefix; ++t, part += 2 * dim) {
    std::copy_n(w.dkeys + t * dim, dim, part);
    std::copy_n(w.dvalues + t * dim, dim, part + dim);
  }
  for (int64_t t = 0; t < span.length; ++t) {
    std::copy_n(w.dkeys + (prefix + t) * dim, dim, a.dqkv + a.k_at(span.begin + t, kv_head));
    std::copy_n(w.dvalues + (prefix + t) * dim, dim, a.dqkv + a.v_at(span.begin + t, kv_head));
  }
}

template <class T>
void backward_task(const Attention<T>& a, const Span& span, int64_t kv_head, const AttentionScratch<T>& w) {
  const F32Kernels* const kernels = head_kernels<T>(a.dim());
  const auto rows_of = [&](int64_t offset, T* free, T* laid) {
    return rows_of_segment(a, span, a.qkv + offset, kernels != nullptr ? free : laid);
  };
  const HeadRows<T> keys = rows_of(a.k_at(0, kv_head), w.scores, w.key_columns);
  const HeadRows<T> values = rows_of(a.v_at(0, kv_head), w.dp, w.value_columns);
  const BackwardTask<T> task{a,
                             span,
                             w,
                             kernels,
                             HeadColumns<T>(kernels, keys, w.key_columns),
                             HeadColumns<T>(kernels, values, w.value_columns),
                             HeadTerms<T>(kernels, keys, w.key_terms)};
  std::fill_n(w.dkeys, keys.count * a.dim(), T(0));
  std::fill_n(w.dvalues, keys.count * a.dim(), T(0));
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    for (int64_t first = 0; first < span.length; first += span.block())
      backward_block(task, head, first, std::min(span.block(), span.length - first));
  }
  write_key_gradients(a, span, kv_head, w);
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

// task(span, kv_head, workspace) for each segment and key-value head.
template <class T, class Task>
void for_heads_of_segments(const Attention<T>& a, const Spans& spans, const Task& task) {
  const int64_t heads = a.shape.num_kv_heads;
  const bool is_backward = a.dqkv != nullptr;
  const int64_t scratch_size = AttentionScratch<T>::size(spans.longest_row, a.dim(), is_backward);
  parallel_tasks<T>(static_cast<int64_t>(spans.spans.size()) * heads, scratch_size, [&](int64_t i, T* scratch) {
    task(spans.spans[static_cast<size_t>(i / heads)], i % heads,
         AttentionScratch<T>(scratch, spans.longest_row, a.dim(), is_backward));
  });
}

template <class T>
void run_forward(const Attention<T>& a, const Spans& spans) {
  for_heads_of_segments(a, spans, [&](const Span& span, int64_t kv_head, const AttentionScratch<T>& w) {
    forward_task(a, span, kv_head, w);
  });
}

template <class T>
void run_backward(const Attention<T>& a, const Spans& spans) {
  const int64_t heads = a.shape.num_kv_heads;
  for_heads_of_segments(a, spans, [&](const Span& span, int64_t kv_head, const AttentionScratch<T>& w) {
    backward_task(a, span, kv_head, w);
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
                            const AttentionShape& shape, const std::function<void(const at::Tensor&)>& on_qkv,
                            const KnownAttention& known) {
    const auto rotate = [&] {
      rope_rotate_(qkv, positions, table, shape.num_heads + shape.num_kv_heads, shape.head_dim, /*inverse=*/false);
    };
    at::Tensor out = known.out_NA, lse = known.lse_Nh;
    if (out.defined()) {
      if (!known.is_rotated) rotate();
    } else {
      const Spans spans = read_spans(segments);
      const OpTimer timer("attention, forward", [&] {
        return OpWork{2.0 * score_flops(shape, spans), 2.0 * static_cast<double>(qkv.nbytes())};
      });
      rotate();
      if (on_qkv) on_qkv(qkv);
      out = at::empty({qkv.size(0), shape.num_heads * shape.head_dim}, qkv.options());
      lse = at::empty({qkv.size(0), shape.num_heads}, qkv.options());
      attend(qkv, sinks, spans, shape, out, lse);
    }
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
    variable_list out = {dqkv, dsinks};
    out.resize(8);
    return out;
  }

 private:
  static void attend(const at::Tensor& qkv, const std::optional<at::Tensor>& sinks, const Spans& spans,
                     const AttentionShape& shape, at::Tensor& out, at::Tensor& lse) {
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
                                      on_qkv, KnownAttention());
}

at::Tensor known_attention(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                           const RopeTable& table, const AttentionShape& shape, const KnownAttention& known) {
  return RopeAttentionFunction::apply(qkv_NQ, optional_bias(shape.sinks_A), segments_S4, positions_N, table, shape,
                                      std::function<void(const at::Tensor&)>(), known);
}

}  // namespace mortise
