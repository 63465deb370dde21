// The functions of module.h. nvcc makes libmortise_cuda.so of this file; for tests a host compiler makes it of
// emulated_module.cpp, which includes it.
#include "cuda/module.h"

#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/edits.cuh"
#include "cuda/kernels/expert_tensors.cuh"
#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/gates.cuh"
#include "cuda/kernels/head.cuh"
#include "cuda/kernels/norm_gradients.cuh"
#include "cuda/kernels/optimizer.cuh"
#include "cuda/kernels/rotated_heads.cuh"
#include "cuda/kernels/sampler.cuh"
#include "cuda/kernels/top_tokens.cuh"

using namespace mortise::cuda;

namespace {
unsigned blocks_for(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

template <class T>
int write_rope(float* qkv, int64_t num_rows, const MortiseCudaHeads& heads, const float* bias, const float* cosines,
               const float* sines, int32_t half, const int64_t* positions, const MortiseCudaPages& pages,
               void* stream) {
  const auto kernel = rope_write_kernel<T>;
  MORTISE_LAUNCH(kernel, blocks_for(num_rows, 1), kThreads, stream, qkv, heads, bias, cosines, sines, half, positions,
                 pages.table, pages.table_stride, static_cast<T*>(pages.keys), static_cast<T*>(pages.values));
  return MORTISE_LAUNCHED();
}

template <class T, int kHeads>
void split_attention(const float* qkv, int64_t num_rows, const MortiseCudaHeads& heads, const MortiseCudaScores& scores,
                     const int64_t* positions, const MortiseCudaPages& pages, int32_t num_splits, float* scratch,
                     void* stream) {
  const auto kernel = attention_split_kernel<T, kHeads>;
  const int64_t num_parts = blocks_for(heads.num_heads / heads.num_kv_heads, kHeads);
  MORTISE_LAUNCH(kernel, blocks_for(num_rows * heads.num_kv_heads * num_parts * num_splits, 1), kThreads, stream, qkv,
                 heads, scores, positions, pages.table, pages.table_stride, static_cast<const T*>(pages.keys),
                 static_cast<const T*>(pages.values), num_splits, scratch);
}

template <class T>
void split_attention(const float* qkv, int64_t num_rows, const MortiseCudaHeads& heads, const MortiseCudaScores& scores,
                     const int64_t* positions, const MortiseCudaPages& pages, int32_t num_splits, float* scratch,
                     void* stream) {
  const int at_once = heads_of_block(heads.num_heads / heads.num_kv_heads, heads.head_dim);
  const auto launch = at_once == 4   ? split_attention<T, 4>
                      : at_once == 8 ? split_attention<T, 8>
                                     : split_attention<T, 16>;
  launch(qkv, num_rows, heads, scores, positions, pages, num_splits, scratch, stream);
}
template <class T>
void norm_rows(const float* x, const float* added, const float* weight, float eps, int64_t num_rows, int64_t width,
               float* sum, void* out, void* stream) {
  MORTISE_LAUNCH(rms_norm_kernel<T>, blocks_for(num_rows, 1), kThreads, stream, x, added, weight, eps, width, sum,
                 static_cast<T*>(out));
}

template <class T, int kColumns>
void norm_gradients(const float* x, const float* weight, float eps, int64_t num_rows, int64_t width, const void* d_out,
                    const float* extra, float* dx, float* part_sums, void* stream) {
  const auto kernel = rms_norm_backward_kernel<T, kColumns>;
  MORTISE_LAUNCH(kernel, blocks_for(num_rows, MORTISE_CUDA_NORM_ROWS), kThreads, stream, x, weight, eps, num_rows,
                 width, static_cast<const T*>(d_out), extra, dx, part_sums);
}

template <class T>
void norm_gradients(const float* x, const float* weight, float eps, int64_t num_rows, int64_t width, const void* d_out,
                    const float* extra, float* dx, float* part_sums, void* stream) {
  const auto launch = width <= 4 * kThreads    ? norm_gradients<T, 4>
                      : width <= 8 * kThreads  ? norm_gradients<T, 8>
                      : width <= 16 * kThreads ? norm_gradients<T, 16>
                                               : norm_gradients<T, 32>;
  launch(x, weight, eps, num_rows, width, d_out, extra, dx, part_sums, stream);
}

template <class T>
void gate_rows(const float* gate_up, int64_t num_rows, int64_t width, bool is_gelu, void* out, void* stream) {
  const auto kernel = is_gelu ? gated_kernel<T, true> : gated_kernel<T, false>;
  MORTISE_LAUNCH(kernel, blocks_for(width, kGateColumns) * blocks_for(num_rows, 1), kThreads, stream, gate_up, width,
                 static_cast<T*>(out));
}

template <class T>
void gate_gradients(const float* gate_up, int64_t num_rows, int64_t width, bool is_gelu, const void* d_out,
                    void* d_gate_up, void* stream) {
  const auto kernel = is_gelu ? gated_backward_kernel<T, true> : gated_backward_kernel<T, false>;
  MORTISE_LAUNCH(kernel, blocks_for(width, kGateColumns) * blocks_for(num_rows, 1), kThreads, stream, gate_up, width,
                 static_cast<const T*>(d_out), static_cast<T*>(d_gate_up));
}

template <class T>
void clamp_rows(const float* pairs, int64_t count, MortiseCudaClamp clamp, void* out, void* stream) {
  MORTISE_LAUNCH(clamped_gate_kernel<T>, blocks_for(count, kGateColumns), kThreads, stream, pairs, count, clamp,
                 static_cast<T*>(out));
}

template <class T>
void clamp_gradients(const float* pairs, int64_t count, MortiseCudaClamp clamp, const void* d_out, void* d_pairs,
                     void* stream) {
  MORTISE_LAUNCH(clamped_gate_backward_kernel<T>, blocks_for(count, kGateColumns), kThreads, stream, pairs, count,
                 clamp, static_cast<const T*>(d_out), static_cast<T*>(d_pairs));
}

// What the products of all pairs are made of, but for the number format.
struct ExpertProduct {
  int32_t divisor;
  const float* bias;
  const MortiseCudaExpertPairs& pairs;
  int64_t depth, columns;
  float* y;
};

template <class T, class Kernel>
int start_product(Kernel kernel, const void* x, const void* weight, const ExpertProduct& p, void* stream) {
  const int64_t num_tiles = p.pairs.num_pairs / p.pairs.tile_rows + p.pairs.num_experts;
  MORTISE_LAUNCH(kernel, blocks_for(p.columns, kTileColumns) * blocks_for(num_tiles, 1), kThreads, stream,
                 static_cast<const T*>(x), p.divisor, static_cast<const T*>(weight), p.bias, p.pairs.order,
                 p.pairs.tiles, p.depth, p.columns, p.y);
  return MORTISE_LAUNCHED();
}

template <class T>
void rotate_heads(const float* qkv, const float* bias, int64_t num_rows, const MortiseCudaHeads& heads,
                  const MortiseCudaHeadNorms& norms, const MortiseCudaRotation& rotation, const int32_t* sources,
                  int64_t num_keys, const MortiseCudaHeadRows& out, void* stream) {
  const int64_t count = num_rows * heads.num_heads + 2 * num_keys * heads.num_kv_heads;
  MORTISE_LAUNCH(rotate_heads_kernel<T>, blocks_for(count, kWarps), kThreads, stream, qkv, bias, num_rows, heads, norms,
                 rotation, sources, count, static_cast<T*>(out.q), static_cast<T*>(out.k), static_cast<T*>(out.v));
}

template <class T>
void rotate_heads_back(const float* qkv, int64_t num_rows, const MortiseCudaHeads& heads,
                       const MortiseCudaHeadNorms& norms, const MortiseCudaRotation& rotation,
                       const MortiseCudaCopies& copies, const MortiseCudaHeadRows& d_out, float* d_qkv,
                       float* part_sums, void* stream) {
  const auto kernel = norms.q_weight == nullptr ? rotate_heads_backward_kernel<T, 0>
                      : heads.head_dim <= 128   ? rotate_heads_backward_kernel<T, 2>
                                                : rotate_heads_backward_kernel<T, 4>;
  MORTISE_LAUNCH(kernel, blocks_for(num_rows, MORTISE_CUDA_NORM_ROWS), kThreads, stream, qkv, num_rows, heads, norms,
                 rotation, copies, static_cast<const T*>(d_out.q), static_cast<const T*>(d_out.k),
                 static_cast<const T*>(d_out.v), d_qkv, part_sums);
}

template <class T>
void rotate_biased_heads_back(int64_t num_rows, const MortiseCudaHeads& heads, const MortiseCudaRotation& rotation,
                              const MortiseCudaCopies& copies, const MortiseCudaHeadRows& d_out, float* d_qkv,
                              float* part_sums, void* stream) {
  const auto kernel = heads.head_dim <= 128 ? biased_heads_backward_kernel<T, 2> : biased_heads_backward_kernel<T, 4>;
  MORTISE_LAUNCH(kernel, blocks_for(num_rows, MORTISE_CUDA_NORM_ROWS), kThreads, stream, num_rows, heads, rotation,
                 copies, static_cast<const T*>(d_out.q), static_cast<const T*>(d_out.k), static_cast<const T*>(d_out.v),
                 d_qkv, part_sums);
}

// The sums of the columns of what MORTISE_CUDA_NORM_ROWS rows each have added up.
void add_parts(const float* part_sums, int64_t num_rows, int64_t width, float* sums, void* stream) {
  MORTISE_LAUNCH(column_sum_kernel, blocks_for(width, 32), kThreads, stream, part_sums,
                 blocks_for(num_rows, MORTISE_CUDA_NORM_ROWS), width, sums);
}

template <class T>
void merge_attention(const float* scratch, int64_t num_row_heads, const MortiseCudaHeads& heads, const float* sinks,
                     int32_t num_splits, void* out, void* stream) {
  MORTISE_LAUNCH(attention_merge_kernel<T>, blocks_for(num_row_heads, kWarps), kThreads, stream, scratch, num_row_heads,
                 heads, sinks, num_splits, static_cast<T*>(out));
}
}  // namespace

extern "C" {

int mortise_cuda_head_chunk(const float* logits, int64_t num_rows, int64_t stride, int64_t first, int64_t columns,
                            const int64_t* target, MortiseCudaHeadScale scale, MortiseCudaHeadRow* rows, void* stream) {
  if (num_rows == 0 || columns == 0) return 0;
  MORTISE_LAUNCH(head_chunk_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, first, columns, target,
                 scale, rows);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_head_finish(const MortiseCudaHeadRow* rows, int64_t num_rows, MortiseCudaHeadScale scale,
                             double* numbers, void* stream) {
  if (num_rows == 0) return 0;
  MORTISE_LAUNCH(head_finish_kernel, blocks_for(num_rows, kThreads), kThreads, stream, rows, num_rows, scale, numbers);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_head_backward(float* logits, int64_t num_rows, int64_t stride, int64_t first, int64_t columns,
                               const int64_t* target, MortiseCudaHeadScale scale, const MortiseCudaHeadRow* rows,
                               const float* grads, uint16_t* rounded, void* stream) {
  if (num_rows == 0 || columns == 0) return 0;
  if (rounded != nullptr) {
    MORTISE_LAUNCH(head_backward_kernel<uint16_t>, blocks_for(num_rows, 1), kThreads, stream, logits, num_rows, stride,
                   first, columns, target, scale, rows, grads, rounded);
  } else {
    MORTISE_LAUNCH(head_backward_kernel<float>, blocks_for(num_rows, 1), kThreads, stream, logits, num_rows, stride,
                   first, columns, target, scale, rows, grads, logits);
  }
  return MORTISE_LAUNCHED();
}

int mortise_cuda_square_sums(const MortiseCudaStepTensor* tensors, int64_t num_tensors, int64_t num_parts, double* sums,
                             void* stream) {
  if (num_parts == 0) return 0;
  MORTISE_LAUNCH(square_sum_kernel, blocks_for(num_parts, 1), kThreads, stream, tensors, num_tensors, sums);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_clip(const double* sums, int64_t count, float max_norm, float* clip, void* stream) {
  MORTISE_LAUNCH(clip_kernel, 1, kThreads, stream, sums, count, max_norm, clip);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_adamw(MortiseCudaAdamW settings, const MortiseCudaStepTensor* tensors, int64_t num_tensors,
                       int64_t num_parts, const float* clip, void* stream) {
  if (num_parts == 0) return 0;
  MORTISE_LAUNCH(adamw_kernel, blocks_for(num_parts, 1), kThreads, stream, settings, tensors, num_tensors, clip);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_rms_norm(const float* x, const float* added, const float* weight, float eps, int64_t num_rows,
                          int64_t width, float* sum, MortiseCudaOut out, void* stream) {
  if (num_rows == 0) return 0;
  const auto norm = out.is_bfloat16 != 0 ? norm_rows<uint16_t> : norm_rows<float>;
  norm(x, added, weight, eps, num_rows, width, sum, out.numbers, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_head_norm(float* qkv, int64_t num_rows, MortiseCudaHeads heads, const float* q_weight,
                           const float* k_weight, float eps, void* stream) {
  const int64_t num_heads = num_rows * (heads.num_heads + heads.num_kv_heads);
  if (num_heads == 0) return 0;
  MORTISE_LAUNCH(head_norm_kernel, blocks_for(num_heads, kWarps), kThreads, stream, qkv, num_heads, heads, q_weight,
                 k_weight, eps);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_rms_norm_backward(const float* x, const float* weight, float eps, int64_t num_rows, int64_t width,
                                   MortiseCudaIn d_out, const float* extra, float* dx, float* part_sums,
                                   float* d_weight, void* stream) {
  if (width > MORTISE_CUDA_MOST_NORM_WIDTH) return 1;
  if (num_rows == 0 || width == 0) return 0;
  const auto gradients = d_out.is_bfloat16 != 0 ? norm_gradients<uint16_t> : norm_gradients<float>;
  gradients(x, weight, eps, num_rows, width, d_out.numbers, extra, dx, part_sums, stream);
  add_parts(part_sums, num_rows, width, d_weight, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_gated(const float* gate_up, int64_t num_rows, int64_t width, MortiseCudaActivation activation,
                       MortiseCudaOut out, void* stream) {
  if (num_rows * width == 0) return 0;
  const auto gate = out.is_bfloat16 != 0 ? gate_rows<uint16_t> : gate_rows<float>;
  gate(gate_up, num_rows, width, activation == MORTISE_CUDA_GELU_TANH, out.numbers, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_gated_backward(const float* gate_up, int64_t num_rows, int64_t width, MortiseCudaActivation activation,
                                MortiseCudaIn d_out, void* d_gate_up, void* stream) {
  if (num_rows * width == 0) return 0;
  const auto gradients = d_out.is_bfloat16 != 0 ? gate_gradients<uint16_t> : gate_gradients<float>;
  gradients(gate_up, num_rows, width, activation == MORTISE_CUDA_GELU_TANH, d_out.numbers, d_gate_up, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_clamped_gate(const float* pairs, int64_t num_rows, int64_t width, MortiseCudaClamp clamp,
                              MortiseCudaOut out, void* stream) {
  if (num_rows * width == 0) return 0;
  const auto gate = out.is_bfloat16 != 0 ? clamp_rows<uint16_t> : clamp_rows<float>;
  gate(pairs, num_rows * width, clamp, out.numbers, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_clamped_gate_backward(const float* pairs, int64_t num_rows, int64_t width, MortiseCudaClamp clamp,
                                       MortiseCudaIn d_out, void* d_pairs, void* stream) {
  if (num_rows * width == 0) return 0;
  const auto gradients = d_out.is_bfloat16 != 0 ? clamp_gradients<uint16_t> : clamp_gradients<float>;
  gradients(pairs, num_rows * width, clamp, d_out.numbers, d_pairs, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_route(const float* logits, int64_t num_tokens, int32_t num_experts, int32_t each, int32_t over_all,
                       int64_t* experts, float* weights, void* stream) {
  if (each > kMostChosen || each > num_experts) return 1;
  if (num_tokens * each == 0) return 0;
  MORTISE_LAUNCH(route_kernel, blocks_for(num_tokens, kWarps), kThreads, stream, logits, num_tokens, num_experts, each,
                 over_all != 0, experts, weights);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_group_experts(const int64_t* experts, MortiseCudaExpertPairs pairs, void* stream) {
  if (pairs.num_pairs == 0) return 0;
  MORTISE_LAUNCH(group_experts_kernel, blocks_for(pairs.num_experts, 1), kThreads, stream, experts, pairs.num_pairs,
                 pairs.tile_rows, pairs.order, pairs.tiles);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_expert_product(MortiseCudaIn x, int32_t divisor, const void* weight, int32_t stacked,
                                const float* bias, MortiseCudaExpertPairs pairs, int64_t depth, int64_t columns,
                                float* y, void* stream) {
  constexpr int kFew = MORTISE_CUDA_FEW_TILE_ROWS, kMany = MORTISE_CUDA_TILE_ROWS;
  constexpr int kFewHalf = MORTISE_CUDA_FEW_TILE_ROWS_BF16, kManyHalf = MORTISE_CUDA_TILE_ROWS_BF16;
  const bool is_half = x.is_bfloat16 != 0, has_few = pairs.tile_rows == (is_half ? kFewHalf : kFew);
  const uintptr_t places = reinterpret_cast<uintptr_t>(x.numbers) | reinterpret_cast<uintptr_t>(weight);
  if ((!has_few && pairs.tile_rows != (is_half ? kManyHalf : kMany)) || places % 16 != 0) return 1;
  if (pairs.num_pairs == 0 || columns == 0) return 0;
  const ExpertProduct product{divisor, bias, pairs, depth, columns, y};
  if (is_half) {
    const auto kernel =
        has_few ? (stacked != 0 ? expert_tensor_kernel<kFewHalf, true> : expert_tensor_kernel<kFewHalf, false>)
                : (stacked != 0 ? expert_tensor_kernel<kManyHalf, true> : expert_tensor_kernel<kManyHalf, false>);
    return start_product<uint16_t>(kernel, x.numbers, weight, product, stream);
  }
  const auto kernel = has_few
                          ? (stacked != 0 ? expert_product_kernel<kFew, true> : expert_product_kernel<kFew, false>)
                          : (stacked != 0 ? expert_product_kernel<kMany, true> : expert_product_kernel<kMany, false>);
  return start_product<float>(kernel, x.numbers, weight, product, stream);
}

int mortise_cuda_sum_experts(const float* y, const float* weights, int64_t num_tokens, int32_t each, int64_t width,
                             float* out, void* stream) {
  if (num_tokens * width == 0) return 0;
  MORTISE_LAUNCH(sum_experts_kernel, blocks_for(width, kThreads) * blocks_for(num_tokens, 1), kThreads, stream, y,
                 weights, each, width, out);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_rotate_heads(const float* qkv, const float* bias, int64_t num_rows, MortiseCudaHeads heads,
                              MortiseCudaHeadNorms norms, MortiseCudaRotation rotation, const int32_t* sources,
                              int64_t num_keys, MortiseCudaHeadRows out, void* stream) {
  const bool has_both = bias != nullptr && norms.q_weight != nullptr;
  if (heads.head_dim > MORTISE_CUDA_MOST_HEAD_DIM || has_both) return 1;
  if (num_rows == 0) return 0;
  const auto rotate = out.is_bfloat16 != 0 ? rotate_heads<uint16_t> : rotate_heads<float>;
  rotate(qkv, bias, num_rows, heads, norms, rotation, sources, num_keys, out, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_rotate_heads_backward(const float* qkv, int64_t num_rows, MortiseCudaHeads heads,
                                       MortiseCudaHeadNorms norms, MortiseCudaRotation rotation,
                                       MortiseCudaCopies copies, MortiseCudaHeadRows d_out, float* d_qkv,
                                       float* part_sums, float* d_norms, float* d_bias, void* stream) {
  const bool has_norms = norms.q_weight != nullptr;
  if (heads.head_dim > MORTISE_CUDA_MOST_HEAD_DIM || (has_norms && heads.head_dim % 2 != 0)) return 1;
  if (has_norms && d_bias != nullptr) return 1;
  if (num_rows == 0) return 0;
  if (d_bias != nullptr) {
    const auto rotate = d_out.is_bfloat16 != 0 ? rotate_biased_heads_back<uint16_t> : rotate_biased_heads_back<float>;
    rotate(num_rows, heads, rotation, copies, d_out, d_qkv, part_sums, stream);
    const int64_t numbers = (heads.num_heads + 2 * int64_t{heads.num_kv_heads}) * heads.head_dim;
    add_parts(part_sums, num_rows, numbers, d_bias, stream);
    return MORTISE_LAUNCHED();
  }
  const auto rotate = d_out.is_bfloat16 != 0 ? rotate_heads_back<uint16_t> : rotate_heads_back<float>;
  rotate(qkv, num_rows, heads, norms, rotation, copies, d_out, d_qkv, part_sums, stream);
  if (!has_norms) return MORTISE_LAUNCHED();
  add_parts(part_sums, num_rows, 2 * int64_t{heads.head_dim}, d_norms, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_rope_write(float* qkv, int64_t num_rows, MortiseCudaHeads heads, const float* bias,
                            const float* cosines, const float* sines, int32_t half, const int64_t* positions,
                            MortiseCudaPages pages, void* stream) {
  if (num_rows == 0) return 0;
  const auto write = pages.is_bfloat16 != 0 ? write_rope<uint16_t> : write_rope<float>;
  return write(qkv, num_rows, heads, bias, cosines, sines, half, positions, pages, stream);
}

int mortise_cuda_attention(const float* qkv, int64_t num_rows, MortiseCudaHeads heads, MortiseCudaScores scores,
                           const float* sinks, const int64_t* positions, MortiseCudaPages pages, int32_t num_splits,
                           float* scratch, void* out, void* stream) {
  if (num_rows == 0) return 0;
  if (heads.head_dim > MORTISE_CUDA_MOST_HEAD_DIM) return 1;
  if (pages.is_bfloat16 != 0)
    split_attention<uint16_t>(qkv, num_rows, heads, scores, positions, pages, num_splits, scratch, stream);
  else
    split_attention<float>(qkv, num_rows, heads, scores, positions, pages, num_splits, scratch, stream);
  const auto merge = scores.rounds != 0 ? merge_attention<uint16_t> : merge_attention<float>;
  merge(scratch, num_rows * heads.num_heads, heads, sinks, num_splits, out, stream);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_sample(const float* logits, int64_t num_rows, int64_t stride, int32_t vocab,
                        const MortiseCudaDraw* draws, MortiseCudaEdited edited, MortiseCudaDrawn* drawn, void* stream) {
  if (num_rows == 0) return 0;
  if (edited.edits != nullptr) {
    MORTISE_LAUNCH(edit_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, vocab, draws, edited);
  }
  MORTISE_LAUNCH(sample_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, vocab, draws, edited, drawn);
  return MORTISE_LAUNCHED();
}

int mortise_cuda_top(const float* logits, int64_t num_rows, int64_t stride, int32_t vocab, const MortiseCudaDraw* draws,
                     const int32_t* counts, int32_t num_top, MortiseCudaTop* top, void* stream) {
  if (num_rows == 0 || num_top == 0) return 0;
  MORTISE_LAUNCH(top_kernel, blocks_for(num_rows, 1), kThreads, stream, logits, stride, vocab, draws, counts, num_top,
                 top);
  return MORTISE_LAUNCHED();
}

}  // extern "C"
