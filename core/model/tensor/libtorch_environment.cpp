// Sets the environment variables that libtorch's own libraries read once, before the first line of main. This is a
// shared library of its own, so that its constructor runs before libgomp's. A variable that the user has set wins.
//
// How OpenMP's threads wait: by default they spin for milliseconds at the end of every parallel region. That costs
// nothing on an idle machine. If another process needs the core, a step takes two to three times as long, because a
// spinning thread keeps the core from the thread that it waits for. We limit the spinning; then a waiting thread
// sleeps. No computed number depends on it.
//
// How MKL computes products: by default the bits of a product depend on the number of threads on some processors.
// AUTO,STRICT removes that on Intel's at no measurable cost, and has no effect on AMD's, where blas.cpp cuts products into
// tiles.
//
// What c10d remembers: by default each group records its last 2,000 collectives. The record's table of groups has no lock,
// so groups that begin at the same time in several threads can crash. Mortise names ranks that fail by its own means
// (core/dist/watch), so the record is off.
//
// Order: the dynamic linker runs the constructor of the last named library first, unless another one needs it. So
// mortise_torch links this library after libtorch and libgomp. A test asks libgomp what it has read.
#include <cstdlib>

namespace {

constexpr const char* kSpins = "1000";  // about 20 us: longer than a parallel region of ours waits on an idle machine

__attribute__((constructor)) void set_environment() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", kSpins, 0);
  ::setenv("MKL_CBWR", "AUTO,STRICT", 0);
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

}  // namespace
