// Runs the kernels of this room on the CPU, for tests: one fiber for each CUDA thread, in a chosen order.
//
// Only what the kernels use is here, and its rules are stricter than CUDA's: every thread of a block reaches every
// barrier, and a warp function takes all 32 lanes. Shared memory is made of SharedArray, which knows the last writer and
// the readers of each element since the last barrier. Two threads that touch an element without a barrier between them,
// one of them writing, are an error in every order (a data race). So are a read of what nobody wrote, an index beyond
// the array, a barrier that some threads do not reach, and threads that wait at different barriers.
//
// ThreadSanitizer sees each CUDA thread as a thread of its own that only barriers order with the others of its block, and
// the end of a launch with the host. It looks at shared and at global memory, also between neighbouring blocks. Its
// reports are errors of the launch. A warp function orders no memory, as on a device.
// Cost: about 5 us for a barrier of 256 threads. Thread rule: one thread at a time.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__ [[maybe_unused]] static
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

namespace mortise::cuda {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

enum class Schedule { kForward, kBackward, kShuffled };

// A barrier in the source.
struct BarrierSite {
  std::string file;
  int line = 0;
  bool operator==(const BarrierSite&) const = default;
};

struct EmulatorOptions {
  Schedule schedule = Schedule::kForward;
  uint64_t seed = 1;                    // seed of kShuffled
  std::vector<BarrierSite> left_out{};  // these barriers do nothing: what a test must notice
  bool notes_accesses = true;  // false: only ThreadSanitizer looks for races, and nobody for uninitialised reads
};

struct EmulatorError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

EmulatorOptions& emulator_options();
// The barriers that threads have passed since the last call of forget_barriers.
const std::vector<BarrierSite>& barriers_passed();
void forget_barriers();

// Runs body(argument) once for every thread. Throws EmulatorError.
void run_grid(Index3 grid, Index3 block, void (*body)(const void*), const void* argument);

template <class Body>
void launch(Index3 grid, Index3 block, const Body& body) {
  run_grid(
      grid, block, [](const void* it) { (*static_cast<const Body*>(it))(); }, &body);
}

const Index3& thread_index();
const Index3& block_index();
const Index3& block_size();
const Index3& grid_size();

enum class Access : uint8_t { kRead, kWrite, kAtomic };
struct SharedBlock;  // one shared array of the running block
SharedBlock* shared_block(const void* key, size_t count, size_t element_bytes);
void* shared_data(SharedBlock* block);
// Checks the access and notes it; `name` is for the message.
void touch_shared(SharedBlock* block, size_t index, Access access, const char* name);

// An element of shared memory.
template <class T>
class SharedElement {
 public:
  SharedElement(SharedBlock* block, size_t index, const char* name) : block_(block), index_(index), name_(name) {}
  operator T() const {  // NOLINT: it is used as the value
    touch_shared(block_, index_, Access::kRead, name_);
    return *place();
  }
  SharedElement& operator=(T value) {
    touch_shared(block_, index_, Access::kWrite, name_);
    *place() = value;
    return *this;
  }
  SharedElement& operator=(const SharedElement& other) { return *this = static_cast<T>(other); }
  SharedElement(const SharedElement&) = default;
  T add(T value) const {
    touch_shared(block_, index_, Access::kAtomic, name_);
    return std::atomic_ref<T>(*place()).fetch_add(value, std::memory_order_relaxed);
  }

 private:
  T* place() const { return static_cast<T*>(shared_data(block_)) + index_; }
  SharedBlock* block_;
  size_t index_;
  const char* name_;
};

template <class T>
class SharedArray {
 public:
  SharedArray(const void* key, size_t count, const char* name)
      : block_(shared_block(key, count, sizeof(T))), name_(name) {}
  template <class I>
  SharedElement<T> operator[](I index) const {
    return {block_, static_cast<size_t>(index), name_};
  }

 private:
  SharedBlock* block_;
  const char* name_;
};

void pass_barrier(const char* file, int line);
constexpr unsigned kWarp = 32, kMostExchanged = 32;
// The `count` values, at most kMostExchanged, become those of lane `source`. One call takes as long as one with a single value.
void exchange_in_warp(uint64_t* values, unsigned count, unsigned source, const char* file, int line);
// A bit for each lane.
unsigned vote_in_warp(bool vote, const char* file, int line);
unsigned lane_index();

template <class T>
T exchange(T value, unsigned source, const char* file, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  exchange_in_warp(&bits, 1, source, file, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// As `count` calls of __shfl_xor_sync.
template <int kMost>
void exchange_all(float (&values)[kMost], int count, int mask, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  static_assert(kMost <= kMostExchanged);
  uint64_t bits[kMost] = {};
  for (int i = 0; i < count; ++i) std::memcpy(&bits[i], &values[i], sizeof values[i]);
  exchange_in_warp(bits, static_cast<unsigned>(count), lane_index() ^ static_cast<unsigned>(mask), file, line);
  for (int i = 0; i < count; ++i) std::memcpy(&values[i], &bits[i], sizeof values[i]);
}

// multiply_in_warp() of dialect.cuh: each lane gets the rows and columns that its sums need from the lanes that have them.
inline void multiply_by_exchanges(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const unsigned group = lane_index() / 4, own = lane_index() % 4;
  const auto term = [](uint64_t pair, int half) {
    const auto bits = static_cast<uint32_t>(pair >> (16 * half)) << 16;
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    return number;
  };
  for (unsigned t = 0; t < 4; ++t) {
    uint64_t rows[4] = {a[0], a[1], a[2], a[3]};
    exchange_in_warp(rows, 4, group * 4 + t, file, line);
    for (unsigned column = 0; column < 2; ++column) {
      uint64_t terms[2] = {b[0], b[1]};
      exchange_in_warp(terms, 2, (2 * own + column) * 4 + t, file, line);
      for (int half = 0; half < 2; ++half) {
        for (unsigned row = 0; row < 2; ++row)
          for (unsigned part = 0; part < 2; ++part)
            sum[2 * row + column] += term(rows[2 * part + row], half) * term(terms[part], half);
      }
    }
  }
}

}  // namespace mortise::cuda

#define threadIdx (::mortise::cuda::thread_index())
#define blockIdx (::mortise::cuda::block_index())
#define blockDim (::mortise::cuda::block_size())
#define gridDim (::mortise::cuda::grid_size())

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  mortise::cuda::pass_barrier(file, line);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return mortise::cuda::exchange(value, mortise::cuda::lane_index() ^ static_cast<unsigned>(mask), file, line);
}
// A lane below `distance` keeps its own value, as on a device.
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned lane = mortise::cuda::lane_index();
  return mortise::cuda::exchange(value, lane >= distance ? lane - distance : lane, file, line);
}
template <class T>
T __shfl_sync(unsigned, T value, int source, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return mortise::cuda::exchange(value, static_cast<unsigned>(source) % 32, file, line);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline unsigned __ballot_sync(unsigned, bool vote, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return mortise::cuda::vote_in_warp(vote, file, line);
}
