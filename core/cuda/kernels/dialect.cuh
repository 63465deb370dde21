// The CUDA that the kernels of this room are written in: nvcc compiles it for a device, and a host compiler for the
// emulator (emulate/emulator.h). Shared arrays and launches differ, so they have macros. No ATen, no CUDA library.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
// Aligned, so that numbers next to each other can be read at once.
#define MORTISE_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define MORTISE_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#define MORTISE_LAUNCHED() static_cast<int>(cudaGetLastError())
#define MORTISE_NO_UNROLL _Pragma("unroll 1")
#define MORTISE_UNROLL _Pragma("unroll")
#else
#include "cuda/emulate/emulator.h"
#define MORTISE_SHARED(type, name, count) \
  static const char name##_key = 0;       \
  const ::mortise::cuda::SharedArray<type> name(&name##_key, count, #name)
#define MORTISE_LAUNCH(kernel, blocks, threads, stream, ...)                                 \
  static_cast<void>(stream);                                                                 \
  ::mortise::cuda::launch({static_cast<unsigned>(blocks)}, {static_cast<unsigned>(threads)}, \
                          [&] { kernel(__VA_ARGS__); })
#define MORTISE_LAUNCHED() 0
#define MORTISE_NO_UNROLL
#define MORTISE_UNROLL
#endif

namespace mortise::cuda {

constexpr int kThreads = 256;  // threads of a block, in every kernel
constexpr int kWarps = kThreads / 32;

// bfloat16, rounded to nearest even; NaN stays NaN.
__device__ inline uint16_t bfloat16_of(float value) {
  union {
    float number;
    uint32_t bits;
  } it = {value};
  if ((it.bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>(it.bits >> 16 | 0x40U);
  return static_cast<uint16_t>((it.bits + 0x7fffU + (it.bits >> 16 & 1U)) >> 16);
}

__device__ inline float number_of(float value) { return value; }
__device__ inline float number_of(uint16_t bits) {
  union {
    uint32_t bits;
    float number;
  } it = {uint32_t{bits} << 16};
  return it.number;
}
__device__ inline void store(float value, float* place) { *place = value; }
__device__ inline void store(float value, uint16_t* place) { *place = bfloat16_of(value); }
__device__ inline float rounded(float value, bool rounds) { return rounds ? number_of(bfloat16_of(value)) : value; }

// The first `count` numbers become those of the lane whose number differs in the bits of `mask`.
template <int kMost>
__device__ inline void shuffle_all(float (&numbers)[kMost], int count, int mask) {
#if defined(__CUDACC__)
  MORTISE_UNROLL
  for (int i = 0; i < kMost; ++i)
    if (i < count) numbers[i] = __shfl_xor_sync(0xffffffffU, numbers[i], mask);
#else
  exchange_all(numbers, count, mask);
#endif
}

// sum += a b by a warp, for matrices a [16, 16] and b [16, 8] of bfloat16 numbers: mma.m16n8k16 of the PTX ISA, which says what
// each lane has. With g = lane / 4 and t = lane % 4, a[0] and a[2] are of row g, and a[1] and a[3] of row g + 8. The first two
// have the terms 2 t and 2 t + 1, the others those 8 behind. b[0] and b[1] are the same terms of column g. sum[0] and sum[1] are
// the columns 2 t and 2 t + 1 of row g, the others those of row g + 8. It needs compute capability 8.0: older devices have no
// bfloat16 models.
__device__ inline void multiply_in_warp(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(__CUDACC__)
  static_cast<void>(sum), static_cast<void>(a), static_cast<void>(b);
  __trap();
#else
  multiply_by_exchanges(sum, a, b);
#endif
}

// The sum over the warp, the same in every lane. The order of the additions is fixed.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

// The sum over the block, the same in every thread. The order of the additions is fixed. A kernel calls it once: a second
// call would write what slower threads still read.
__device__ inline double block_sum(double value) {
  MORTISE_SHARED(double, warp_sums, kWarps);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += warp_sums[w];
  return sum;
}

// The same of several sums at once, and as often as a kernel wants: calls that follow each other name the places 0 and 1 in
// turn, so that none writes what slower threads still read. In a warp a lane ends with one of the sums, and with each step it
// hands on those that others will have: fewer shuffles than warp_sum() of each.
template <int kCount>
__device__ inline void block_sums(double (&values)[kCount], int place) {
  constexpr int kLanes = 32 / kCount;  // that end with the same sum
  static_assert(kLanes * kCount == 32, "a power of two");
  MORTISE_SHARED(double, warp_sums, 2 * kCount * kWarps);
  const int lane = static_cast<int>(threadIdx.x % 32);
  MORTISE_UNROLL
  for (int left = kCount / 2; left > 0; left /= 2) {
    const int mask = left * kLanes;
    MORTISE_UNROLL
    for (int i = 0; i < left; ++i) {
      const bool has_upper = (lane & mask) != 0;
      const double own = has_upper ? values[i + left] : values[i], other = has_upper ? values[i] : values[i + left];
      values[i] = own + __shfl_xor_sync(0xffffffffU, other, mask);
    }
  }
  for (int mask = kLanes / 2; mask > 0; mask /= 2) values[0] += __shfl_xor_sync(0xffffffffU, values[0], mask);
  const int begin = place * kCount * kWarps;
  if (lane % kLanes == 0) warp_sums[begin + lane / kLanes * kWarps + static_cast<int>(threadIdx.x / 32)] = values[0];
  __syncthreads();
  MORTISE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0;
    for (int w = 0; w < kWarps; ++w) values[i] += warp_sums[begin + i * kWarps + w];
  }
}

}  // namespace mortise::cuda
