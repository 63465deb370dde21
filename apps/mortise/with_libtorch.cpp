// The parts of mortise-engine that `mortise` lacks (engine_parts.h).
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <cstdlib>

#include "engine_parts.h"
#include "foundation/base/cpus.h"
#include "foundation/base/freed_memory.h"
#include "model/tensor/torch_guard.h"
#include "train/loop/score_extension.h"

namespace mortise {
namespace {

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
  return full_memory_error("", MemoryUse::kUpdates, *memory);
}

}  // namespace mortise
