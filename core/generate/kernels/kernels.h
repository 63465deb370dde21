// The table of CPU kernels for decoding: one implementation (kernels_impl.inc), compiled once per instruction set.
//
// Every output of gemm_panel is one chain of multiply-adds in the order of k, for any number of rows in the call. A
// row's numbers therefore do not depend on its batch. bfloat16 weights become floats in registers: the bits are those of
// float weights, with half the memory traffic. If the activations are bfloat16 too (gemm_panel_rounded), AVX512_BF16
// adds two products with one instruction. Attention reads keys as pages [head_dim][16 tokens], so scores are vectors
// over positions without horizontal sums.
//
// Cost: gemm_panel 2*m*k*32 flops; attend O(context * head_dim) per query head. Thread rule: pure functions. This header
// and its implementations include no library code, because inline functions compiled for a newer CPU must not leak.
#pragma once

#include <cstdint>

namespace mortise {

inline constexpr int64_t kPanelColumns = 32;  // output columns of a packed panel [k][32]
inline constexpr int64_t kPageTokens = 16;    // tokens of a KV page
inline constexpr int64_t kMaxQueryBlock =
    4;  // query heads that attend() takes at a time: its scratch holds as many rows

// Tokens of one part of a sequence. pages[i] + offset is the key block of page i for the current layer and KV head. Its
// value block [16][value_stride] follows.
struct KvSpan {
  const float* const* pages = nullptr;
  int64_t length = 0;
  int64_t first = 0;  // tokens before it are out of the window; at most `length`
};

struct AttendArgs {
  const float* q = nullptr;  // [num_queries][head_dim], rotated; query heads that share one KV head
  float* out = nullptr;      // [num_queries][head_dim]
  float* lse = nullptr;      // [num_queries] gets log sum exp of the scores, with the sink; null: not wanted
  int64_t num_queries = 0;
  int64_t head_dim = 0;
  int64_t value_stride = 0;  // head_dim rounded up to 16; the rest is zeros
  int64_t offset = 0;        // floats from the start of a page
  float scale = 0;
  float softcap = 0;             // scores become softcap tanh(score / softcap); 0: they do not
  const float* sinks = nullptr;  // [num_queries]: a score more of each query, without a value; null: none
  KvSpan spans[2];               // the prompt's, then the row's own; lengths may be 0
  float* scores = nullptr;       // scratch [kMaxQueryBlock][score_stride]
  int64_t score_stride = 0;      // >= 16 * pages of both spans
};

struct Kernels {
  const char* name;
  // y[i][0..32) = bias + x[i][0..k) * panel (add = false), or += (add = true); rows i < m. bias may be null.
  void (*gemm_panel)(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* panel, const float* bias,
                     float* y, int64_t y_stride, bool add);
  // The same with bfloat16 weights [(k + 1) / 2][32]: a word holds those of an even k (low half) and of the next one.
  void (*gemm_panel_bf16)(const float* x, int64_t x_stride, int64_t m, int64_t k, const uint32_t* panel,
                          const float* bias, float* y, int64_t y_stride, bool add);
  // The same if every x is a bfloat16 number (round_bf16): a chain of the sums of two products with AVX512_BF16, elsewhere
  // gemm_panel_bf16.
  void (*gemm_panel_rounded)(const float* x, int64_t x_stride, int64_t m, int64_t k, const uint32_t* panel,
                             const float* bias, float* y, int64_t y_stride, bool add);
  // Each x becomes the nearest bfloat16 number, to even where two are as near.
  void (*round_bf16)(float* x, int64_t n);
  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* y);
  // out[i][j] = silu(gate_up[i][j]) * gate_up[i][16 + j], j < 16
  void (*silu_mul)(const float* gate_up, int64_t gate_up_stride, int64_t m, float* out, int64_t out_stride);
  // The same with tanh-GELU in the place of silu.
  void (*gelu_mul)(const float* gate_up, int64_t gate_up_stride, int64_t m, float* out, int64_t out_stride);
  // The gate of gpt-oss (model/layers/clamped_gate.h): (up + 1) * gate * sigmoid(alpha * gate) of clamped numbers.
  void (*clamped_mul)(const float* gate_up, int64_t gate_up_stride, int64_t m, float alpha, float limit, float* out,
                      int64_t out_stride);
  // Rotates pairs (i, i + head_dim/2) of each head in place.
  void (*rope)(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin);
  void (*attend)(const AttendArgs& args);
  // x = cap tanh(x / cap). n is a multiple of 16.
  void (*softcap)(float* x, int64_t n, float cap);
  // Largest of n logits and sum of exp((logit - max) * inverse_temperature). n is a multiple of 32; -inf means never.
  void (*exp_sum)(const float* logits, int64_t n, float inverse_temperature, float* max, float* sum);
  // out = exp((x - max) * inverse_temperature). n is a multiple of 16.
  void (*exp_scaled)(const float* x, int64_t n, float max, float inverse_temperature, float* out);
};

enum class Isa { kAuto, kBase, kAvx2, kAvx512, kAvx512Bf16 };

// The kernels for an instruction set (kAuto: the fastest on this CPU), or null where this CPU lacks it.
const Kernels* find_kernels(Isa isa);

namespace isa_base {
extern const Kernels kKernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const Kernels kKernels;
}
namespace isa_avx512 {
extern const Kernels kKernels;
}
namespace isa_avx512bf16 {
extern const Kernels kKernels;
}
#endif

}  // namespace mortise
