// The threads that run Mortise's own CPU kernels in the trainer. libtorch's parallel regions give every thread a fixed
// part and wait for all threads. If another program has the core of one of them, all wait until it runs again. Here a
// thread takes the next task when it is free, and nobody waits for a thread that has not begun one.
#pragma once

#include <cstdint>
#include <functional>

namespace mortise {

// How many threads compute_tasks() uses: libtorch's number, also while a LibtorchAlone lives. 1 inside a task.
[[nodiscard]] int compute_threads();

// While it lives, libtorch's own operations run on the calling thread alone. MKL's products and compute_tasks() keep their
// threads. Libtorch shares operations from 32,768 numbers on. To wake a thread takes longer than such an operation, and on
// a busy machine the thread that wakes has no core. That pays if `is_on` is said of small tensors.
class LibtorchAlone {
 public:
  explicit LibtorchAlone(bool is_on);
  LibtorchAlone(const LibtorchAlone&) = delete;
  LibtorchAlone& operator=(const LibtorchAlone&) = delete;
  ~LibtorchAlone();

 private:
  int threads_ = 0;  // libtorch's, before; 0: off
  int mkl_threads_ = 0;
};

// While it lives, libraries and compute_tasks() compute on the calling thread alone.
class OneThread {
 public:
  OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread();

 private:
  int num_threads_, next_to_libtorch_, mkl_threads_;
};

// task(member, i) for each i of [0, count), on at most compute_threads() threads, the caller as member 0. A task must
// write to its own memory or its member's; then no number depends on who runs it. Products and libtorch operations that
// a task calls run on its thread alone, and a task may call this function: it then does all. If a task throws, tasks
// that nobody has begun are left out, and the first exception is thrown. Any thread may call. If another one computes
// at the same time, libtorch's threads run the tasks.
void compute_tasks(int64_t count, const std::function<void(int member, int64_t i)>& task);

// body(begin, end) on ranges of [0, count) of at least `grain` (the last one may have fewer), by compute_tasks().
void compute_ranges(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace mortise
