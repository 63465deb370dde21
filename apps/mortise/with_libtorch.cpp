// The parts of mortise-engine that `mortise` lacks (engine_parts.h).
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <cstdlib>

#include "engine_parts.h"
#include "foundation/base/cpus.h"
#include "model/tensor/torch_guard.h"
#include "train/loop/score_extension.h"

namespace mortise {
namespace {

// Big tensors come and go every step: keep their pages instead of giving them back to the kernel each time (6-8% of a
// training step at 12 M parameters).
void keep_freed_memory() {
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  mallopt(M_TOP_PAD, 64 << 20);
}

// libtorch takes a thread for each processor that this process may run on. A control group may grant it less time than
// that: more threads would only wait for each other. trainer.num_threads and the user's environment win.
void use_no_more_threads_than_granted() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr) return;
  if (at::get_num_threads() > usable_cpus()) at::set_num_threads(usable_cpus());
}

}  // namespace

void prepare_engine() {
  keep_freed_memory();
  use_no_more_threads_than_granted();
  offer_score_models();
}

std::optional<Error> engine_error(const std::exception& exception) {
  const auto* const memory = dynamic_cast<const c10::OutOfMemoryError*>(&exception);  // only a GPU throws it
  if (memory == nullptr) return std::nullopt;
  return gpu_memory_error("", *memory);
}

}  // namespace mortise
