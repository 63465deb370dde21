// A shared library of its own, so that its constructor runs before libgomp's: libgomp reads how its threads wait from
// the environment, once, when it is loaded.
//
// By default its threads spin for milliseconds at the end of every parallel region. That is free on an idle machine. If
// another process needs the core, a step takes two to three times as long, since a spinning thread keeps the core from
// the thread that it waits for. We bound the spinning; then a waiting thread sleeps. What the user says in
// OMP_WAIT_POLICY or GOMP_SPINCOUNT wins. No number that a program computes depends on it.
//
// Order: the dynamic linker runs the constructor of the library that a program names last first, unless another one
// needs it. So mortise_torch links this library behind libtorch and libgomp; a test asks libgomp what it has read.
#include <cstdlib>

namespace {

constexpr const char* kSpins = "1000";  // about 20 us: longer than a parallel region of ours waits on an idle machine

__attribute__((constructor)) void bound_spinning() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr)
    ::setenv("GOMP_SPINCOUNT", kSpins, 0);
}

}  // namespace
