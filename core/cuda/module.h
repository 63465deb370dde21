/* The C functions of libmortise_cuda.so. Pointers are of the device, the stream is a cudaStream_t (NULL: the default one).
   A function starts its kernels and returns at once: 0, or the number of the CUDA error. Sizes of 0 start nothing. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MORTISE_CUDA_API __attribute__((visibility("default")))

/* A row of the head between two chunks of the vocabulary (kernels/head.cuh). */
typedef struct MortiseCudaHeadRow {
  float max, sum, weighted, target_logit;
} MortiseCudaHeadRow;

/* What lies between the head's products and the softmax: softcap tanh(logit / softcap), divided by the temperature. */
typedef struct MortiseCudaHeadScale {
  float inverse_temperature, softcap; /* softcap 0: none */
} MortiseCudaHeadScale;

typedef struct MortiseCudaAdamW {
  float beta1, rest1, beta2, rest2, eps; /* rest: 1 - beta */
  float correction1, correction2_root;   /* 1 - beta1^update, sqrt(1 - beta2^update) */
} MortiseCudaAdamW;

/* A tensor that an optimizer steps. All tensors of a step are cut into parts of MORTISE_CUDA_STEP_PART numbers. */
typedef struct MortiseCudaStepTensor {
  const float* gradient;
  float *master, *exp_avg, *exp_avg_sq;
  uint16_t* weights;  /* a bfloat16 copy (bits) of the master; NULL: none */
  int64_t count;      /* numbers */
  int64_t first_part; /* parts of the tensors before this one */
  int64_t first_sum;  /* where the sums of squares of its parts go */
  float lr, weight_decay;
} MortiseCudaStepTensor;

/* Decoding: kernels/decode.cuh and attention.cuh. */
#define MORTISE_CUDA_PAGE_TOKENS 16   /* tokens of a page of keys and values */
#define MORTISE_CUDA_SPLIT_TOKENS 256 /* tokens of one split of attention */
#define MORTISE_CUDA_MOST_HEAD_DIM 256

typedef struct MortiseCudaHeads {
  int32_t num_heads, num_kv_heads, head_dim; /* a row of qkv is [num_heads + 2 num_kv_heads, head_dim] */
} MortiseCudaHeads;

/* Where a kernel writes rows: float32 numbers, or bfloat16 ones (bits) for a product of bfloat16 matrices. */
typedef struct MortiseCudaOut {
  void* numbers;
  int32_t is_bfloat16;
} MortiseCudaOut;

/* The same for rows that a kernel reads: gradients. */
typedef struct MortiseCudaIn {
  const void* numbers;
  int32_t is_bfloat16;
} MortiseCudaIn;

/* Training: kernels/rotated_heads.cuh. The first 2 half numbers of queries and keys are rotated; cosines and sines are
   [rows, half]. */
typedef struct MortiseCudaRotation {
  const float *cosines, *sines;
  int32_t half;
} MortiseCudaRotation;

/* The weights [head_dim] of the norms of queries and keys before the rotation. NULL: they have none. */
typedef struct MortiseCudaHeadNorms {
  const float *q_weight, *k_weight;
  float eps;
} MortiseCudaHeadNorms;

/* Which rows of keys and values are copies of row r: places[begins[r]] to places[begins[r + 1] - 1]. NULL: row r alone. */
typedef struct MortiseCudaCopies {
  const int32_t *begins, *places;
} MortiseCudaCopies;

/* Queries [rows, num_heads, head_dim], keys and values [keys, num_kv_heads, head_dim]: all float32, or all bfloat16 (bits). */
typedef struct MortiseCudaHeadRows {
  void *q, *k, *v;
  int32_t is_bfloat16;
} MortiseCudaHeadRows;

typedef enum MortiseCudaActivation { MORTISE_CUDA_SILU = 0, MORTISE_CUDA_GELU_TANH = 1 } MortiseCudaActivation;

/* The gate of gpt-oss: kernels/gates.cuh. */
typedef struct MortiseCudaClamp {
  float alpha, limit;
} MortiseCudaClamp;

/* A mixture of experts while it samples: kernels/experts.cuh. */
#define MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN 32
/* Rows of a tile where experts have few, and elsewhere, for float32 and for bfloat16 matrices. */
#define MORTISE_CUDA_FEW_TILE_ROWS 4
#define MORTISE_CUDA_TILE_ROWS 16
#define MORTISE_CUDA_FEW_TILE_ROWS_BF16 16
#define MORTISE_CUDA_TILE_ROWS_BF16 64

/* Rows of one product with the same expert: those of the pairs order[first] to order[first + count - 1]. */
typedef struct MortiseCudaExpertTile {
  int32_t expert, first, count;
} MortiseCudaExpertTile;

/* Pairs of a token and one of its experts, by expert: what mortise_cuda_group_experts() wrote. Tiles have tile_rows rows,
   one of the numbers above; there is room for num_pairs / tile_rows + num_experts. */
typedef struct MortiseCudaExpertPairs {
  int32_t* order; /* [num_pairs] */
  MortiseCudaExpertTile* tiles;
  int32_t num_pairs, num_experts, tile_rows;
} MortiseCudaExpertPairs;

#define MORTISE_CUDA_NORM_ROWS 16         /* rows of one part of the gradient of a norm's weight */
#define MORTISE_CUDA_MOST_NORM_WIDTH 8192 /* numbers of a row whose norm has a gradient here */

typedef struct MortiseCudaScores {
  float scale, softcap;   /* softcap 0: none */
  int32_t window, rounds; /* window 0: none; rounds: queries are rounded to bfloat16, and results are bfloat16 */
} MortiseCudaScores;

/* One layer's pages, each [num_kv_heads, MORTISE_CUDA_PAGE_TOKENS, head_dim], and the pages of each row. */
typedef struct MortiseCudaPages {
  void *keys, *values;
  int32_t is_bfloat16;  /* else float32 */
  const int32_t* table; /* [rows, table_stride] */
  int64_t table_stride;
} MortiseCudaPages;

/* How a row draws its token: core/foundation/batch/sampling.h. */
typedef struct MortiseCudaDraw {
  double uniform;            /* in [0, 1) */
  double top_p;              /* 1: off */
  float inverse_temperature; /* 1 if greedy */
  float min_p;               /* 0: off */
  int32_t top_k;             /* 0: off */
  int32_t greedy;
  double typical_p; /* 0: off */
} MortiseCudaDraw;

/* What the earlier tokens of a row change in its logits: penalties, and tokens that may not come. All pointers NULL: nothing.
   The draw brings `seen` and `tail` up to date. */
typedef struct MortiseCudaEdits {
  int32_t* seen; /* [vocab] 0: the token did not come; else 1 + how often the completion has it. NULL: no penalties */
  int32_t* tail; /* [tail_size] the row's last tokens, the latest behind the others; -1: none */
  const int32_t* words; /* runs of tokens that may not come, each as its length and its ids */
  const int32_t* ends;  /* [num_ends] tokens that may not come now */
  double repetition, presence, frequency;
  int32_t tail_size, num_words, num_ends;
  const uint32_t* allowed; /* a bit for each token, from the lowest of the first word: it may come. NULL: all may */
} MortiseCudaEdits;

/* A row of logits without edits: its largest, and its sum of exp((logit - best) * inverse_temperature). */
typedef struct MortiseCudaTotal {
  double sum;
  float best;
} MortiseCudaTotal;

/* Where mortise_cuda_sample applies edits. `edits` NULL: no row has any, and the others are not used. */
typedef struct MortiseCudaEdited {
  const MortiseCudaEdits* edits; /* [rows] */
  float* logits;                 /* [rows, vocab] */
  MortiseCudaTotal* totals;      /* [rows] */
} MortiseCudaEdited;

typedef struct MortiseCudaDrawn {
  int64_t id;
  float log_prob, filtered_log_prob;
} MortiseCudaDrawn;

typedef struct MortiseCudaTop {
  int32_t id;
  float log_prob;
} MortiseCudaTop;

#define MORTISE_CUDA_STEP_PART 16384 /* numbers of a part of a stepped tensor: what one block takes */

/* logits [rows, stride]: columns [first, first + columns) of the vocabulary, as the product gave them. The chunk with
   first = 0 comes first. */
MORTISE_CUDA_API int mortise_cuda_head_chunk(const float* logits, int64_t num_rows, int64_t stride, int64_t first,
                                             int64_t columns, const int64_t* target, MortiseCudaHeadScale scale,
                                             MortiseCudaHeadRow* rows, void* stream);
/* numbers [3, num_rows]: the log of the sum of exp, the target's log-prob, the entropy. */
MORTISE_CUDA_API int mortise_cuda_head_finish(const MortiseCudaHeadRow* rows, int64_t num_rows,
                                              MortiseCudaHeadScale scale, double* numbers, void* stream);
/* The gradients of the logits: to `rounded` in bfloat16, or in place if it is NULL. grads [2, num_rows]: by log-prob, and by
   entropy. */
MORTISE_CUDA_API int mortise_cuda_head_backward(float* logits, int64_t num_rows, int64_t stride, int64_t first,
                                                int64_t columns, const int64_t* target, MortiseCudaHeadScale scale,
                                                const MortiseCudaHeadRow* rows, const float* grads, uint16_t* rounded,
                                                void* stream);
/* `tensors` lie on the device. Part p of a tensor gives sums[first_sum + p], the sum of squares of its gradients. */
MORTISE_CUDA_API int mortise_cuda_square_sums(const MortiseCudaStepTensor* tensors, int64_t num_tensors,
                                              int64_t num_parts, double* sums, void* stream);
/* clip [2]: the norm, and the factor for the gradients. max_norm <= 0 does not clip. */
MORTISE_CUDA_API int mortise_cuda_clip(const double* sums, int64_t count, float max_norm, float* clip, void* stream);
MORTISE_CUDA_API int mortise_cuda_adamw(MortiseCudaAdamW settings, const MortiseCudaStepTensor* tensors,
                                        int64_t num_tensors, int64_t num_parts, const float* clip, void* stream);

/* added (may be NULL): sum = x + added, and out is the norm of sum. */
MORTISE_CUDA_API int mortise_cuda_rms_norm(const float* x, const float* added, const float* weight, float eps,
                                           int64_t num_rows, int64_t width, float* sum, MortiseCudaOut out,
                                           void* stream);
/* In place: the norms of each query and key. */
MORTISE_CUDA_API int mortise_cuda_head_norm(float* qkv, int64_t num_rows, MortiseCudaHeads heads, const float* q_weight,
                                            const float* k_weight, float eps, void* stream);
/* The gradients of out = norm(x) * weight from that of out. `extra` (may be NULL) is added to dx. part_sums is scratch for
   ceil(rows / MORTISE_CUDA_NORM_ROWS) rows. Error 1: a row that is too wide. */
MORTISE_CUDA_API int mortise_cuda_rms_norm_backward(const float* x, const float* weight, float eps, int64_t num_rows,
                                                    int64_t width, MortiseCudaIn d_out, const float* extra, float* dx,
                                                    float* part_sums, float* d_weight, void* stream);
/* gate_up [rows, 2 width] -> out [rows, width] */
MORTISE_CUDA_API int mortise_cuda_gated(const float* gate_up, int64_t num_rows, int64_t width,
                                        MortiseCudaActivation activation, MortiseCudaOut out, void* stream);
/* d_out [rows, width] -> d_gate_up [rows, 2 width], both float32 or both bfloat16 */
MORTISE_CUDA_API int mortise_cuda_gated_backward(const float* gate_up, int64_t num_rows, int64_t width,
                                                 MortiseCudaActivation activation, MortiseCudaIn d_out, void* d_gate_up,
                                                 void* stream);
/* The gate of gpt-oss. pairs [rows, 2 width]: a unit's gate before its up. */
MORTISE_CUDA_API int mortise_cuda_clamped_gate(const float* pairs, int64_t num_rows, int64_t width,
                                               MortiseCudaClamp clamp, MortiseCudaOut out, void* stream);
MORTISE_CUDA_API int mortise_cuda_clamped_gate_backward(const float* pairs, int64_t num_rows, int64_t width,
                                                        MortiseCudaClamp clamp, MortiseCudaIn d_out, void* d_pairs,
                                                        void* stream);
/* The `each` experts of each token, ascending, and their weights: the softmax of their logits over these, or over all.
   logits [tokens, num_experts], experts and weights [tokens, each]. Error 1: more than
   MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN, or than there are. */
MORTISE_CUDA_API int mortise_cuda_route(const float* logits, int64_t num_tokens, int32_t num_experts, int32_t each,
                                        int32_t over_all, int64_t* experts, float* weights, void* stream);
/* experts [pairs.num_pairs] -> pairs.order and pairs.tiles */
MORTISE_CUDA_API int mortise_cuda_group_experts(const int64_t* experts, MortiseCudaExpertPairs pairs, void* stream);
/* y[pair] = x[pair / divisor] op(weight[expert]) + bias[expert]. x and weight are both float32 or both bfloat16; x has rows of
   `depth` numbers. weight: [num_experts, columns, depth], or if stacked [num_experts, depth, columns], x and weight at a
   multiple of 16 bytes. bias [num_experts, columns] may be NULL. y [num_pairs, columns]. Error 1: tiles of the other number
   format, or x or weight elsewhere. */
MORTISE_CUDA_API int mortise_cuda_expert_product(MortiseCudaIn x, int32_t divisor, const void* weight, int32_t stacked,
                                                 const float* bias, MortiseCudaExpertPairs pairs, int64_t depth,
                                                 int64_t columns, float* y, void* stream);
/* out[token] = the sum of weights[pair] y[pair] over the token's `each` pairs, in their order. y [tokens each, width] */
MORTISE_CUDA_API int mortise_cuda_sum_experts(const float* y, const float* weights, int64_t num_tokens, int32_t each,
                                              int64_t width, float* out, void* stream);
/* Adds `bias` (a row; may be NULL) to qkv rows, norms and rotates queries and keys, and writes heads. Key row i is of qkv
   row sources[i] (NULL: of row i, and num_keys = num_rows). Error 1: a head that is too large, or norms with a bias. */
MORTISE_CUDA_API int mortise_cuda_rotate_heads(const float* qkv, const float* bias, int64_t num_rows,
                                               MortiseCudaHeads heads, MortiseCudaHeadNorms norms,
                                               MortiseCudaRotation rotation, const int32_t* sources, int64_t num_keys,
                                               MortiseCudaHeadRows out, void* stream);
/* The gradient of qkv from those of what mortise_cuda_rotate_heads() wrote. With norms also d_norms [2, head_dim], for q and
   k; part_sums is scratch for ceil(rows / MORTISE_CUDA_NORM_ROWS) times as many. Without norms d_bias may be a row of qkv, and
   part_sums has as many of these. Error 1: a head that is too large, or one with a norm and an odd number of numbers, or norms
   with a bias. */
MORTISE_CUDA_API int mortise_cuda_rotate_heads_backward(const float* qkv, int64_t num_rows, MortiseCudaHeads heads,
                                                        MortiseCudaHeadNorms norms, MortiseCudaRotation rotation,
                                                        MortiseCudaCopies copies, MortiseCudaHeadRows d_out,
                                                        float* d_qkv, float* part_sums, float* d_norms, float* d_bias,
                                                        void* stream);
/* Adds `bias` (a row; may be NULL) and rotates the first 2 half numbers of queries and keys, all in place; cosines and sines are
   [positions, half]. Writes keys and values of row r at positions[r]. */
MORTISE_CUDA_API int mortise_cuda_rope_write(float* qkv, int64_t num_rows, MortiseCudaHeads heads, const float* bias,
                                             const float* cosines, const float* sines, int32_t half,
                                             const int64_t* positions, MortiseCudaPages pages, void* stream);
/* Row r sees the tokens up to positions[r], which must be below num_splits MORTISE_CUDA_SPLIT_TOKENS. scratch gets
   num_rows num_heads num_splits (head_dim + 2) numbers. sinks [num_heads] may be NULL. out [rows, num_heads head_dim]: float, or
   bfloat16 (bits) if scores.rounds. Error 1: a head that is too large. */
MORTISE_CUDA_API int mortise_cuda_attention(const float* qkv, int64_t num_rows, MortiseCudaHeads heads,
                                            MortiseCudaScores scores, const float* sinks, const int64_t* positions,
                                            MortiseCudaPages pages, int32_t num_splits, float* scratch, void* out,
                                            void* stream);
/* logits [rows, stride] of `vocab` tokens. */
MORTISE_CUDA_API int mortise_cuda_sample(const float* logits, int64_t num_rows, int64_t stride, int32_t vocab,
                                         const MortiseCudaDraw* draws, MortiseCudaEdited edited,
                                         MortiseCudaDrawn* drawn, void* stream);
/* The likeliest tokens of each row without edits, best first: top is [rows, num_top], and row r gets counts[r] of them. */
MORTISE_CUDA_API int mortise_cuda_top(const float* logits, int64_t num_rows, int64_t stride, int32_t vocab,
                                      const MortiseCudaDraw* draws, const int32_t* counts, int32_t num_top,
                                      MortiseCudaTop* top, void* stream);

#ifdef __cplusplus
}
#endif
