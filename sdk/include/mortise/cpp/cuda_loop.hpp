/* The CUDA build of a loss: one launch over a call's tokens, from the function of numbers that the CPU's loops run.
 *
 * A class with `accepts_cuda = true` and MORTISE_HD in front of its function gets it, if nvcc compiles its file:
 *     struct Clip : mortise::TokenLoss {
 *       static constexpr bool accepts_cuda = true;
 *       template <class Real, class Number>
 *       MORTISE_HD Real token(Real logp, Number old_logp, Number adv) const { ... }
 *     };
 * The function may read members that are numbers or bools, and nothing else of the object: the kernel gets its bytes.
 * For TokenLoss, RolloutLoss, SequenceLoss and KlEstimator. Losses that look beyond that are written in passes
 * (passes.hpp), of which cuda_passes.hpp makes kernels. nvcc compiles either the file of the pack itself, or a file
 * that includes it with MORTISE_CUDA_BUILD_ALONE defined: this one then has the CUDA build alone, for the plugins of
 * the same names that a host compiler makes of the same source.
 *
 * A block of threads takes a row. Sums have a fixed order, and rows are summed on the host, in order: the same bits on
 * every call. They are not the CPU's bits. A loss without metrics does not wait for the stream.
 */
#ifndef MORTISE_CPP_CUDA_LOOP_HPP_
#define MORTISE_CPP_CUDA_LOOP_HPP_

#include <cstring>
#include <vector>

#include "meter.hpp"
#include "token_loop.hpp"

// MORTISE_LAUNCH is there already where an emulator of CUDA compiles this.
#if defined(__CUDACC__) || defined(MORTISE_LAUNCH)
#define MORTISE_HAS_CUDA_BUILD 1
#else
#define MORTISE_HAS_CUDA_BUILD 0
#endif

namespace mortise {
namespace detail {

// Starts the kernel of the class whose object `plugin` is.
using CudaLaunch = void (*)(const void* plugin, const Call& call, const mortise_layout& layout,
                            const TokenArrays& arrays);

// The CUDA builds of the library that contains this code.
struct CudaBuild {
  const char *kind, *name;
  CudaLaunch launch;
  const CudaBuild* next;
};
__attribute__((visibility("hidden"))) inline const CudaBuild*& cuda_builds() {
  static const CudaBuild* first = nullptr;
  return first;
}
// Null: the plugin has none.
inline CudaLaunch find_cuda_build(const char* kind, const char* name) {
  for (const CudaBuild* it = cuda_builds(); it != nullptr; it = it->next) {
    if (std::strcmp(it->kind, kind) == 0 && std::strcmp(it->name, name) == 0) return it->launch;
  }
  return nullptr;
}

}  // namespace detail
}  // namespace mortise

#if MORTISE_HAS_CUDA_BUILD

#include <cuda_runtime.h>

#ifndef MORTISE_LAUNCH
#define MORTISE_SHARED(type, name, count) __shared__ type name[count]
#define MORTISE_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace mortise {
namespace detail {

// Makes a CudaBuild of this library; none if `launch` is null.
struct CudaRegistration {
  CudaRegistration(const char* kind, const char* name, CudaLaunch launch) : build{kind, name, launch, cuda_builds()} {
    if (launch != nullptr) cuda_builds() = &build;
  }
  CudaRegistration(const CudaRegistration&) = delete;
  CudaRegistration& operator=(const CudaRegistration&) = delete;
  CudaBuild build;
};

inline constexpr int kCudaThreads = 256;
inline constexpr int kCudaWarps = kCudaThreads / 32;

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(MORTISE_INTERNAL, std::string(what) + ": " + cudaGetErrorString(error));
}

// Elements from pageable memory of the host: the call returns when they were read.
template <class X>
void send_cuda(X* to, const X* from, std::size_t size, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to, from, size * sizeof(X), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

// Memory of the device, in the order of the stream.
template <class X>
class CudaArray {
 public:
  CudaArray(std::size_t size, cudaStream_t stream) : size_(size), stream_(stream) {
    check_cuda(cudaMallocAsync(&data_, (size > 0 ? size : 1) * sizeof(X), stream_), "cudaMallocAsync");
  }
  ~CudaArray() { (void)cudaFreeAsync(data_, stream_); }
  CudaArray(const CudaArray&) = delete;
  CudaArray& operator=(const CudaArray&) = delete;
  X* data() const { return static_cast<X*>(data_); }
  // As many elements as it has, from host memory that may change afterwards.
  void send(const X* from) const { send_cuda(data(), from, size_, stream_); }
  // Waits for the stream.
  void receive(X* to) const {
    check_cuda(cudaMemcpyAsync(to, data_, size_ * sizeof(X), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream_), "the kernel of the loss failed");
  }

 private:
  std::size_t size_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// The stream of a call and the offsets of its rows there.
struct CudaRows {
  CudaRows(const Call& call, const mortise_layout& layout)
      : num_rows(layout.num_rows),
        stream(static_cast<cudaStream_t>(call.stream())),
        offsets(std::size_t(num_rows) + 1, stream) {
    if (num_rows > 0) offsets.send(layout.row_offsets);
  }
  // Starts a kernel with a block for each row, or with one block.
  template <class Kernel, class... Args>
  void launch(Kernel kernel, const Args&... args) const {
    launch_blocks(num_rows, kernel, args...);
  }
  template <class Kernel, class... Args>
  void launch_blocks(std::int64_t blocks, Kernel kernel, const Args&... args) const {
    MORTISE_LAUNCH(kernel, unsigned(blocks), kCudaThreads, stream, args...);
    check_cuda(cudaGetLastError(), "the kernel of the loss did not start");
  }

  std::int64_t num_rows;
  cudaStream_t stream;
  CudaArray<std::int64_t> offsets;
};

// What a kernel measures of a row: unmasked tokens, the sum of slopes, and for each slot its sum, least and greatest
// value.
template <class T>
struct RowValues {
  static constexpr int kSlots = MetricsOf<T>::slots;
  static constexpr int kTokens = 0, kSlope = 1, kSum = 2, kLow = 2 + kSlots, kHigh = 2 + 2 * kSlots;
  static constexpr int kCount = 2 + 3 * kSlots;
  double values[kCount];

  MORTISE_HD RowValues() {
    for (int i = 0; i < kCount; ++i) values[i] = i < kLow ? 0.0 : i < kHigh ? kInfinity : -kInfinity;
  }
  // Whether anybody wants the value: few slots have extremes.
  MORTISE_HD static bool is_wanted(int i) {
    if (i < kLow) return true;
    return ((MetricsOf<T>::extremes >> ((i - kLow) % (kSlots > 0 ? kSlots : 1))) & 1) != 0;
  }
  MORTISE_HD static double merged(int i, double a, double b) {
    if (i < kLow) return a + b;
    return i < kHigh ? (b < a ? b : a) : (b > a ? b : a);
  }
};

// The Meter of a kernel: one for each thread, which sees unmasked tokens alone.
template <class T, class N>
class CudaMeter {
 public:
  MORTISE_HD explicit CudaMeter(RowValues<T>& row) : row_(row) {}
  MORTISE_HD void add(int slot, N value) {
    using Row = RowValues<T>;
    const double x = double_of(value);
    row_.values[Row::kSum + slot] += x;
    if (((MetricsOf<T>::extremes >> slot) & 1) == 0) return;
    double &low = row_.values[Row::kLow + slot], &high = row_.values[Row::kHigh + slot];
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  MORTISE_HD void add(int slot, BasicDual<N> value) { add(slot, value.value); }
  MORTISE_HD void count(int slot, bool condition) { add(slot, N(condition ? 1.0 : 0.0)); }

 private:
  RowValues<T>& row_;
};

// The sum over a warp, the same in every lane.
__device__ inline double warp_total(double value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

// The row's mean log ratio, the same in every thread.
__device__ inline RowMean mean_of_row(const TokenArrays& in, std::int64_t begin, std::int64_t end) {
  MORTISE_SHARED(double, counted, 2 * kCudaWarps);
  const int thread = int(threadIdx.x);
  double tokens = 0, log_ratio = 0;
  for (std::int64_t t = begin + thread; t < end; t += kCudaThreads) {
    if (in.mask[t] == 0) continue;
    tokens += 1;
    log_ratio += double(in.x[t]) - double(in.a[t]);
  }
  tokens = warp_total(tokens);
  log_ratio = warp_total(log_ratio);
  if (thread % 32 == 0) {
    counted[thread / 32 * 2] = tokens;
    counted[thread / 32 * 2 + 1] = log_ratio;
  }
  __syncthreads();
  tokens = log_ratio = 0;
  for (int w = 0; w < kCudaWarps; ++w) {
    tokens += counted[2 * w];
    log_ratio += counted[2 * w + 1];
  }
  if (tokens == 0) tokens = 1;
  return {log_ratio / tokens, tokens};
}

// One token: sets its outputs, and adds to what its thread measures.
template <class T, class Eval>
__device__ inline void evaluate_token(const T& plugin, const TokenArrays& in, std::int64_t t, double mean,
                                      RowValues<T>& row) {
  using N = typename Eval::Number;
  N value = 0.0, slope = 0.0;
  if (in.mask[t] != 0) {
    const auto number = [t](const float* array) { return array == nullptr ? N(0.0) : number_of<N>(array[t]); };
    CudaMeter<T, N> meter(row);
    const N x = Eval::of_row ? N(mean) : number(in.x);
    N third = 0.0;
    if constexpr (Eval::third == Third::kFloats) third = number(in.c);
    if constexpr (Eval::third == Third::kContext) third = in.context[t];
    const BasicDual<N> y = Eval::eval(plugin, BasicDual<N>{x, 1.0}, number(in.a), number(in.b), third, meter);
    const N weight = in.weight == nullptr ? N(1.0) : number(in.weight);
    value = y.value;
    if (weight != 0.0) slope = weight * y.slope;
    row.values[RowValues<T>::kTokens] += 1;
    if constexpr (Eval::of_row) row.values[RowValues<T>::kSlope] += double_of(slope);
  }
  in.out[t] = float_of(value);
  if (in.grad != nullptr) in.grad[t] = float_of(slope);
}

// Writes the row's measurements, and returns its sum of slopes in every thread.
template <class T>
__device__ inline double merge_row(const RowValues<T>& row, double* measured) {
  using Row = RowValues<T>;
  MORTISE_SHARED(double, merged, Row::kCount* kCudaWarps);
  const int thread = int(threadIdx.x);
  for (int i = 0; i < Row::kCount; ++i) {
    if (!Row::is_wanted(i)) continue;
    double total = row.values[i];
    for (int mask = 16; mask > 0; mask /= 2) total = Row::merged(i, total, __shfl_xor_sync(0xffffffffU, total, mask));
    if (thread % 32 == 0) merged[thread / 32 * Row::kCount + i] = total;
  }
  __syncthreads();
  if (thread < Row::kCount && Row::is_wanted(thread)) {
    double total = merged[thread];
    for (int w = 1; w < kCudaWarps; ++w) total = Row::merged(thread, total, merged[w * Row::kCount + thread]);
    measured[thread] = total;
  }
  double slopes = 0;
  for (int w = 0; w < kCudaWarps; ++w) slopes += merged[w * Row::kCount + Row::kSlope];
  return slopes;
}

// An object of T as plain bytes. It stays what the host made: the kernel reads its numbers alone.
template <class T>
struct alignas(T) PluginBytes {
  unsigned char bytes[sizeof(T)];
};

// One block for each row. `measured` is [rows, RowValues<T>::kCount].
template <class T, class Eval>
__global__ void __launch_bounds__(kCudaThreads, 1)
    loss_rows_kernel(PluginBytes<T> bytes, TokenArrays in, const std::int64_t* row_offsets, bool own_token,
                     double* measured) {
  const T& plugin = reinterpret_cast<const T&>(bytes);
  const std::int64_t begin = row_offsets[blockIdx.x] + int(threadIdx.x), end = row_offsets[blockIdx.x + 1];
  RowMean mean{0, 1};
  if constexpr (Eval::of_row) mean = mean_of_row(in, row_offsets[blockIdx.x], end);
  RowValues<T> row;
  for (std::int64_t t = begin; t < end; t += kCudaThreads) evaluate_token<T, Eval>(plugin, in, t, mean.log_ratio, row);
  const double slopes = merge_row(row, measured + std::int64_t(blockIdx.x) * RowValues<T>::kCount);
  if (!Eval::of_row || in.grad == nullptr || own_token) return;
  const float share = float(slopes / mean.tokens);
  for (std::int64_t t = begin; t < end; t += kCudaThreads) in.grad[t] = in.mask[t] != 0 ? share : 0.0F;
}

template <class T>
void report_rows(const Call& call, const CudaArray<double>& measured, std::int64_t num_rows) {
  using Row = RowValues<T>;
  std::vector<double> rows(std::size_t(num_rows) * Row::kCount);
  measured.receive(rows.data());
  Totals<T> totals;
  for (std::size_t at = 0; at < rows.size(); at += Row::kCount) {
    const double* row = &rows[at];
    totals.add_row(row[Row::kTokens], row + Row::kSum, row + Row::kLow, row + Row::kHigh);
  }
  totals.report(call);
}

template <class T, class Eval>
void launch_rows(const T& plugin, const Call& call, const CudaRows& rows, const TokenArrays& arrays, bool own_token) {
  if (rows.num_rows == 0) return;
  const CudaArray<double> measured(std::size_t(rows.num_rows) * RowValues<T>::kCount, rows.stream);
  PluginBytes<T> bytes;
  std::memcpy(bytes.bytes, static_cast<const void*>(&plugin), sizeof bytes.bytes);
  rows.launch(loss_rows_kernel<T, Eval>, bytes, arrays, rows.offsets.data(), own_token, measured.data());
  if constexpr (MetricsOf<T>::slots > 0) report_rows<T>(call, measured, rows.num_rows);
}

// CudaLaunch of a class whose function Eval calls; null if it does not accept CUDA.
template <class T, class Eval>
CudaLaunch cuda_launch_of() {
  if constexpr (T::accepts_cuda) {
    return [](const void* plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays) {
      const T& own = *static_cast<const T*>(plugin);
      bool own_token = false;
      if constexpr (Eval::of_row) own_token = own.gradient == T::Gradient::kOwnToken;
      launch_rows<T, Eval>(own, call, CudaRows(call, layout), arrays, own_token);
    };
  } else {
    return nullptr;
  }
}

}  // namespace detail
}  // namespace mortise

#define MORTISE_CUDA_BUILD(name, ...) MORTISE_CUDA_BUILD_NUMBERED(__COUNTER__, name, __VA_ARGS__)
#define MORTISE_CUDA_BUILD_NUMBERED(n, name, ...) MORTISE_CUDA_BUILD_ENTRY(n, name, __VA_ARGS__)
#define MORTISE_CUDA_BUILD_ENTRY(n, name, ...)                             \
  static const ::mortise::detail::CudaRegistration mortise_cuda_build_##n( \
      ::mortise::detail::__VA_ARGS__::kKind, name, ::mortise::detail::__VA_ARGS__::cuda_launch());

#else
#define MORTISE_CUDA_BUILD(name, ...)
#endif

#endif  // MORTISE_CPP_CUDA_LOOP_HPP_
