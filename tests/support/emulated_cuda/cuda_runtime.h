// CUDA's runtime and language for packs whose kernels the emulator runs (core/cuda/emulate): what
// mortise/cpp/cuda_loop.hpp uses of them. Copies and kernels wait for nothing: all is done when a call returns. Without
// a stream the device's memory is that of the host.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/emulate/emulator.h"
#include "support/emulated_cuda/stream.h"

using cudaStream_t = const mortise::test::EmulatedStream*;
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorLaunchFailure };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

namespace mortise::test {

inline cudaError_t& last_cuda_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}

// The host may use the device's memory while it lives.
class Opened {
 public:
  explicit Opened(cudaStream_t stream) : stream_(stream) {
    if (stream_ != nullptr) stream_->open();
  }
  ~Opened() {
    if (stream_ != nullptr) stream_->close();
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  cudaStream_t stream_;
};

template <class Body>
void launch_on(cudaStream_t stream, unsigned blocks, unsigned threads, const Body& body) {
  const Opened opened(stream);
  if (stream != nullptr) stream->launched();
  try {
    cuda::launch({blocks}, {threads}, body);
  } catch (const cuda::EmulatorError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    last_cuda_error() = cudaErrorLaunchFailure;
  }
}

}  // namespace mortise::test

#define MORTISE_SHARED(type, name, count) \
  static const char name##_key = 0;       \
  const ::mortise::cuda::SharedArray<type> name(&name##_key, count, #name)
#define MORTISE_LAUNCH(kernel, blocks, threads, stream, ...) \
  ::mortise::test::launch_on(stream, blocks, threads, [&] { kernel(__VA_ARGS__); })

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "launch failure";
}
inline cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  *data = stream == nullptr ? std::malloc(bytes) : stream->allocate(bytes);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (stream == nullptr) std::free(data);
  if (stream != nullptr) stream->release(data);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const mortise::test::Opened opened(stream);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = mortise::test::last_cuda_error();
  mortise::test::last_cuda_error() = cudaSuccess;
  return error;
}
