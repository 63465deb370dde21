/* The passes of a loss (passes.hpp) on a CUDA device: the functions of HostPasses, each as one kernel over the call's
 * rows. Only code that nvcc compiles for a plugin with accepts_cuda uses it.
 */
#ifndef MORTISE_CPP_CUDA_PASSES_HPP_
#define MORTISE_CPP_CUDA_PASSES_HPP_

#include "cuda_choice.hpp"
#include "cuda_loop.hpp"
#include "passes.hpp"

#if MORTISE_HAS_CUDA_BUILD

namespace mortise {
namespace detail {

template <class F>
inline constexpr int kSumsOf = int(sizeof(typename F::Sums) / sizeof(double));

// `sums` is [rows, kSumsOf<F>].
template <class F>
__global__ void __launch_bounds__(kCudaThreads, 1)
    row_sums_kernel(F f, TokenColumns in, const std::int64_t* row_offsets, double* sums) {
  constexpr int kCount = kSumsOf<F>;
  MORTISE_SHARED(double, merged, kCount* kCudaWarps);
  const int thread = int(threadIdx.x);
  const std::int64_t begin = row_offsets[blockIdx.x], end = row_offsets[blockIdx.x + 1];
  typename F::Sums own{};
  for (std::int64_t t = begin + thread; t < end; t += kCudaThreads) {
    if (in.mask[t] != 0) f(in, t, own);
  }
  double values[kCount];
  __builtin_memcpy(values, &own, sizeof values);
  for (int i = 0; i < kCount; ++i) {
    const double total = warp_total(values[i]);
    if (thread % 32 == 0) merged[thread / 32 * kCount + i] = total;
  }
  __syncthreads();
  if (thread >= kCount) return;
  double total = 0;
  for (int w = 0; w < kCudaWarps; ++w) total += merged[w * kCount + thread];
  sums[std::int64_t(blockIdx.x) * kCount + thread] = total;
}

template <class F, class Value>
__global__ void __launch_bounds__(kCudaThreads, 1)
    row_values_kernel(F f, TokenColumns in, const std::int64_t* row_offsets, Value masked, Value* values) {
  const std::int64_t begin = row_offsets[blockIdx.x] + int(threadIdx.x), end = row_offsets[blockIdx.x + 1];
  for (std::int64_t t = begin; t < end; t += kCudaThreads) values[t] = in.mask[t] != 0 ? f(in, t) : masked;
}

template <class F, class Row>
__global__ void __launch_bounds__(kCudaThreads, 1)
    row_numbers_kernel(F f, TokenColumns in, const std::int64_t* row_offsets, const Row* rows, double* numbers) {
  const Row row = rows[blockIdx.x];
  const std::int64_t begin = row_offsets[blockIdx.x] + int(threadIdx.x), end = row_offsets[blockIdx.x + 1];
  for (std::int64_t t = begin; t < end; t += kCudaThreads) numbers[t] = in.mask[t] != 0 ? f(in, t, row) : 0.0;
}

template <class F, class Row>
__global__ void __launch_bounds__(kCudaThreads, 1)
    row_outputs_kernel(F f, TokenColumns in, const std::int64_t* row_offsets, const Row* rows, float* value,
                       float* grad) {
  const Row row = rows[blockIdx.x];
  const std::int64_t begin = row_offsets[blockIdx.x] + int(threadIdx.x), end = row_offsets[blockIdx.x + 1];
  for (std::int64_t t = begin; t < end; t += kCudaThreads) {
    TokenValue at{0.0, 0.0};
    if (in.mask[t] != 0) at = f(in, t, row);
    value[t] = float(at.value);
    if (grad != nullptr) grad[t] = float(at.gradient);
  }
}

// sum -> factor * sum + added
struct DecayStep {
  double factor, added;
};
__device__ inline DecayStep then(const DecayStep& first, const DecayStep& next) {
  return {first.factor * next.factor, next.factor * first.added + next.added};
}

// From the row's end to its begin, a step of 256 tokens after the other. In a step each thread joins the tokens from the
// step's end to its own; then all take what the tokens behind the step sum up to.
template <class F>
__global__ void __launch_bounds__(kCudaThreads, 1)
    decayed_sums_kernel(F f, TokenColumns in, const std::int64_t* row_offsets, double decay, double* numbers) {
  MORTISE_SHARED(double, of_warps, 2 * kCudaWarps);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t begin = row_offsets[blockIdx.x];
  double behind = 0;
  for (std::int64_t last = row_offsets[blockIdx.x + 1] - 1; last >= begin; last -= kCudaThreads) {
    const std::int64_t t = last - thread;
    const bool counts = t >= begin && in.mask[t] != 0;
    DecayStep steps{1.0, 0.0};
    if (counts) steps = {decay, f(in, t)};
    for (int distance = 1; distance < 32; distance *= 2) {
      const DecayStep before{__shfl_up_sync(0xffffffffU, steps.factor, unsigned(distance)),
                             __shfl_up_sync(0xffffffffU, steps.added, unsigned(distance))};
      if (lane >= distance) steps = then(before, steps);
    }
    if (lane == 31) {
      of_warps[2 * warp] = steps.factor;
      of_warps[2 * warp + 1] = steps.added;
    }
    __syncthreads();
    double sum = behind;
    for (int w = 0; w < kCudaWarps; ++w) {
      if (w == warp) sum = behind;
      behind = of_warps[2 * w] * behind + of_warps[2 * w + 1];
    }
    if (t >= begin) numbers[t] = counts ? steps.factor * sum + steps.added : 0.0;
    __syncthreads();
  }
}

class CudaPasses : public PassCall {
 public:
  CudaPasses(const PassCall& of, const TokenArrays& arrays, const CudaRows& rows, double* numbers = nullptr)
      : PassCall(of), rows_(rows), loss_(arrays.out), grad_(arrays.grad), numbers_(numbers) {}

  template <class F>
  std::vector<typename F::Sums> row_sums(const F& f) const {
    std::vector<typename F::Sums> out(std::size_t(layout.num_rows));
    if (out.empty()) return out;
    const CudaArray<typename F::Sums> there(out.size(), rows_.stream);
    rows_.launch(row_sums_kernel<F>, f, columns, rows_.offsets.data(), reinterpret_cast<double*>(there.data()));
    there.receive(out.data());
    return out;
  }
  template <class F, class Value>
  std::vector<Value> values(const F& f, Value masked) const {
    std::vector<Value> out(std::size_t(layout.num_tokens), masked);
    if (out.empty()) return out;
    const CudaArray<Value> there(out.size(), rows_.stream);
    rows_.launch(row_values_kernel<F, Value>, f, columns, rows_.offsets.data(), masked, there.data());
    there.receive(out.data());
    return out;
  }
  template <class F, class Row>
  void put(const F& f, const std::vector<Row>& rows) const {
    if (rows.empty()) return;
    const CudaArray<Row> there(rows.size(), rows_.stream);
    there.send(rows.data());
    rows_.launch(row_outputs_kernel<F, Row>, f, columns, rows_.offsets.data(), there.data(), loss_, grad_);
  }
  template <class F, class Row>
  void set_numbers(const F& f, const std::vector<Row>& rows) const {
    if (rows.empty()) return;
    const CudaArray<Row> there(rows.size(), rows_.stream);
    there.send(rows.data());
    rows_.launch(row_numbers_kernel<F, Row>, f, columns, rows_.offsets.data(), there.data(), numbers_);
  }
  void set_numbers(const std::vector<double>& numbers) const {
    send_cuda(numbers_, numbers.data(), numbers.size(), rows_.stream);
  }
  template <class Key, class Cost>
  void set_chosen(const Key& key, const Cost& cost, const Choice& choice,
                  const std::vector<std::uint64_t>& row_numbers = {}) const {
    if (layout.num_tokens == 0) return;
    const std::vector<std::int64_t> order = rows_by_name();
    const CudaArray<std::int64_t> order_there(order.size(), rows_.stream);
    order_there.send(order.data());
    const CudaArray<std::uint64_t> keys(std::size_t(layout.num_tokens), rows_.stream);
    const CudaArray<std::uint64_t> numbers(row_numbers.size(), rows_.stream);
    if (!row_numbers.empty()) numbers.send(row_numbers.data());
    rows_.launch(choice_keys_kernel<Key>, key, columns, rows_.offsets.data(),
                 row_numbers.empty() ? nullptr : numbers.data(), keys.data());
    rows_.launch_blocks(1, choose_kernel<Cost>, cost, choice, keys.data(), layout.num_tokens, rows_.offsets.data(),
                        order_there.data(), layout.num_rows, numbers_);
  }
  template <class F>
  void set_decayed_sums(const F& f, double decay) const {
    if (layout.num_rows == 0) return;
    rows_.launch(decayed_sums_kernel<F>, f, columns, rows_.offsets.data(), decay, numbers_);
  }

 private:
  const CudaRows& rows_;
  float *loss_, *grad_;
  double* numbers_;
};

// CudaLaunch of a ContextLoss, and of a plugin that computes in passes (Of: LossPasses or KlPasses); null if the class
// does not accept CUDA.
template <class T, class Eval>
CudaLaunch cuda_context_launch_of() {
  if constexpr (T::accepts_cuda && HasPassContext<T>::value) {
    return [](const void* plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays) {
      const T& own = *static_cast<const T*>(plugin);
      const CudaRows rows(call, layout);
      const CudaArray<double> numbers(std::size_t(layout.num_tokens), rows.stream);
      own.context(CudaPasses(LossPasses::of(call, layout, arrays), arrays, rows, numbers.data()), call);
      TokenArrays with_numbers = arrays;
      with_numbers.context = numbers.data();
      launch_rows<T, Eval>(own, call, rows, with_numbers, false);
    };
  } else {
    return nullptr;
  }
}
template <class T, class Of>
CudaLaunch cuda_pass_launch_of() {
  if constexpr (T::accepts_cuda) {
    return [](const void* plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays) {
      const CudaRows rows(call, layout);
      static_cast<const T*>(plugin)->compute(CudaPasses(Of::of(call, layout, arrays), arrays, rows), call);
    };
  } else {
    return nullptr;
  }
}

}  // namespace detail
}  // namespace mortise

#endif

#endif  // MORTISE_CPP_CUDA_PASSES_HPP_
