// See offloading.h.
#include "train/run/offloading.h"

#include <malloc.h>

#include <memory>

#include "checkpoint/room.h"
#include "config/optim_groups.h"
#include "foundation/base/at_place.h"
#include "learn/optim/weight_shards.h"
#include "model/tensor/torch_guard.h"
#include "train/report/stage_timer.h"

namespace mortise {
namespace {

// The files have no names, so nothing appears next to a run's folder, which may not exist yet.
std::shared_ptr<Offload> offload_files(Env& env, const TrainerConfig& trainer) {
  if (trainer.offload_dir) return std::make_shared<Offload>(Path(*trainer.offload_dir));
  return std::make_shared<Offload>(nearest_folder(env, Path(trainer.default_local_dir)));
}

}  // namespace

void give_freed_pages_back() {
  ::mallopt(M_MMAP_THRESHOLD, 512 << 10);
  ::malloc_trim(0);
}

void give_freed_matrices_back() { ::mallopt(M_MMAP_THRESHOLD, 4 << 20); }

Result<> offload_optimizer(Env& env, const LoadedConfig& loaded, int num_ranks, const std::string& table, Model& model,
                           Optimizer& optimizer) {
  const RunConfig& config = loaded.config;
  const OptimConfig& optim = optim_of(config, table);
  const bool keeps_masters = model.device().by_operators && masters_stay_on_device(config, num_ranks);
  if (optimizer.rests() && !keeps_masters) return model.rest_masters_on_host();
  if (optim.offload != StateOffloading::kFile) return {};
  const std::shared_ptr<Offload> files = offload_files(env, config.trainer);
  TRY(at_place(loaded.where("trainer.offload_dir"), optimizer.offload(files)));
  if (keeps_masters) {
    give_freed_pages_back();
    return {};
  }
  TRY(at_place(loaded.where("trainer.offload_dir"), model.offload_masters(files)));
  WeightShards* const shards = shards_of(model);
  if (shards != nullptr) TRY(at_place(loaded.where("trainer.offload_dir"), shards->offload_masters(files)));
  give_freed_pages_back();
  return {};
}

Result<> fetch_state(const Optimizer& optimizer, Model& model) {
  if (!optimizer.rests()) return {};
  return guard_torch("moving master weights to the device", [&]() -> Result<> {
    model.fetch_masters();
    return {};
  });
}

Result<> rest_state(Optimizer& optimizer, Model& model, MetricSet& metrics) {
  if (!optimizer.rests()) return {};
  const StageTimer timer(metrics, "timing_s/offload_optimizer");
  TRY(optimizer.rest());
  return guard_torch("moving master weights to the host", [&]() -> Result<> {
    model.rest_masters();
    return {};
  });
}

Result<> offload_reference(Env& env, const LoadedConfig& loaded, Model& reference) {
  if (loaded.config.ref.offload == Offloading::kNone) return {};
  const std::shared_ptr<Offload> files = offload_files(env, loaded.config.trainer);
  WeightShards* const shards = shards_of(reference);
  TRY(at_place(loaded.where("trainer.offload_dir"),
               shards != nullptr ? shards->offload_numbers(files) : reference.offload_weights(files)));
  give_freed_pages_back();
  return {};
}

}  // namespace mortise
