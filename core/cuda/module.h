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

enum { MORTISE_CUDA_LOSS_VANILLA = 0, MORTISE_CUDA_LOSS_CISPO = 1 };
typedef struct MortiseCudaLoss {
  int32_t kind;
  float low, high; /* edges of the ratio, 1 - clip_ratio_low and 1 + clip_ratio_high */
  float dual_clip; /* vanilla: clip_ratio_c, 0 for off */
} MortiseCudaLoss;

typedef struct MortiseCudaKl {
  int32_t kind;                /* 1, 2 or 3: which of Schulman's estimators */
  float max_log_ratio, max_kl; /* INFINITY: no clamp */
} MortiseCudaKl;

typedef struct MortiseCudaAdamW {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2_root; /* 1 - beta1^update, sqrt(1 - beta2^update) */
} MortiseCudaAdamW;

#define MORTISE_CUDA_NORM_PART 16384 /* gradients of one partial sum of squares */

/* logits [rows, stride]: columns [first, first + columns) of the vocabulary. The chunk with first = 0 comes first. */
MORTISE_CUDA_API int mortise_cuda_head_chunk(const float* logits, int64_t num_rows, int64_t stride, int64_t first,
                                             int64_t columns, const int64_t* target, float inverse_temperature,
                                             MortiseCudaHeadRow* rows, void* stream);
MORTISE_CUDA_API int mortise_cuda_head_finish(const MortiseCudaHeadRow* rows, int64_t num_rows,
                                              float inverse_temperature, float* log_prob, float* entropy, void* stream);
MORTISE_CUDA_API int mortise_cuda_head_backward(float* logits, int64_t num_rows, int64_t stride, int64_t first,
                                                int64_t columns, const int64_t* target, float inverse_temperature,
                                                const MortiseCudaHeadRow* rows, const float* grad_log_prob,
                                                const float* grad_entropy, void* stream);
MORTISE_CUDA_API int mortise_cuda_policy_loss(MortiseCudaLoss settings, int64_t num_tokens, const float* log_prob,
                                              const float* old_log_prob, const float* advantages, const float* weight,
                                              const uint8_t* mask, float* loss, float* grad_log_prob, void* stream);
MORTISE_CUDA_API int mortise_cuda_kl(MortiseCudaKl settings, int64_t num_tokens, const float* log_prob,
                                     const float* ref_log_prob, const float* weight, const uint8_t* mask, float* kl,
                                     float* grad_log_prob, void* stream);
/* partial gets ceil(count / MORTISE_CUDA_NORM_PART) sums; those of several tensors lie one behind the other. */
MORTISE_CUDA_API int mortise_cuda_square_sums(const float* gradient, int64_t count, double* partial, void* stream);
/* clip [2]: the norm, and the factor for the gradients. max_norm <= 0 does not clip. */
MORTISE_CUDA_API int mortise_cuda_clip(const double* partial, int64_t count, float max_norm, float* clip, void* stream);
/* weights: bfloat16 bits. */
MORTISE_CUDA_API int mortise_cuda_adamw(MortiseCudaAdamW settings, int64_t count, const float* clip,
                                        const float* gradient, float* master, float* exp_avg, float* exp_avg_sq,
                                        uint16_t* weights, void* stream);

#ifdef __cplusplus
}
#endif
