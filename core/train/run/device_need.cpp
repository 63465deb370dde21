// See device_need.h.
#include "train/run/device_need.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/core.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/run/run_size.h"

namespace mortise {
namespace {

using Parts = std::vector<MemoryPart>;

template <class Place>
std::string offloaded_by(const std::string& key, Place now) {
  return now != Place::kFile ? fmt::format("set {} = \"file\"", key) : "";
}

// What of the models rests on the host at a time: the policy's part, and the critic's.
struct Resting {
  double masters = 0, moments = 0, critic = 0;
};

// While a run starts there is no state yet, and the masters are read.
Resting resting_at_start(const MemoryEstimate& memory) { return {0, memory.resting, memory.resting_critic}; }

Resting resting_while_sampling(const MemoryEstimate& memory) {
  return {memory.resting_masters, memory.resting, memory.resting_critic + memory.resting_critic_masters};
}

// The policy and the critic learn one after the other, and what is not learning rests: the smaller one counts as resting.
Resting resting_in_updates(const MemoryEstimate& memory) {
  Resting out = resting_while_sampling(memory);
  if (out.masters + out.moments < out.critic)
    out.critic = 0;
  else
    out.masters = out.moments = 0;
  return out;
}

// What stays from the first step to the last, but for what rests.
Parts held_parts(const MemoryEstimate& memory, const RunConfig& config, const Resting& resting) {
  const bool moves_reference = !config.model.trains_adapter() || config.ref.has_own_weights();
  return {
      {"weights", memory.weights - resting.masters, ""},
      {"optimizer", memory.moments - resting.moments, offloaded_by("actor.optim.offload", config.actor.optim.offload)},
      {"reference", memory.reference, moves_reference ? offloaded_by("ref.offload", config.ref.offload) : ""},
      {"critic", memory.critic - resting.critic, offloaded_by("critic.optim.offload", config.critic.optim.offload)},
      {"teacher", memory.teacher, ""},
      {"reward models", memory.reward_models, ""}};
}

std::string passes_lowered_by(const RunConfig& config) {
  const ActorConfig& actor = config.actor;
  const bool by_rows = actor.ppo_micro_batch_size_per_gpu && !actor.use_dynamic_bsz;
  return by_rows ? "lower actor.ppo_micro_batch_size_per_gpu" : "lower actor.ppo_max_token_len_per_gpu";
}

Parts joined(Parts first, const Parts& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The driver counts what libtorch keeps for later as taken.
std::optional<DeviceMemory> memory_of(at::Device device) {
  if (device.is_cpu()) {
    const long page = sysconf(_SC_PAGESIZE), free = sysconf(_SC_AVPHYS_PAGES), all = sysconf(_SC_PHYS_PAGES);
    if (page <= 0 || free < 0 || all < 0) return std::nullopt;
    const auto bytes = [page](long pages) { return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page); };
    return DeviceMemory{bytes(free), bytes(all)};
  }
  try {
    const auto [free, all] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    return DeviceMemory{free, all};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

Result<MemoryNeed> need_of(const RunSettings& run, const PluginRegistry& registry) {
  RunSize size = TRY(begin_run_size(run.env, run.loaded, run.kind));
  const DeviceName device{run.device.device.is_cuda() ? DeviceKind::kCuda : DeviceKind::kCpuAsDevice};
  // Its validation rows are not read yet: as many as sample at once.
  const int64_t num_val = run.config.data.val_files.empty() ? 0 : run.config.rollout.max_num_seqs;
  TRY(measure_run(run.env, registry, run.loaded, device, run.ranks.size(), num_val, size));
  return device_need(size.memory, run.config, run.ranks.size());
}

}  // namespace

MemoryNeed device_need(const MemoryEstimate& memory, const RunConfig& config, int num_ranks) {
  const Parts held = held_parts(memory, config, resting_while_sampling(memory));
  const Parts cache = {{"weights that sample", memory.rollout, ""},
                       {"KV cache", memory.kv_cache, "lower rollout.kv_cache_mib"},
                       {"decode graphs", memory.graphs, "set rollout.enforce_eager = true"}};
  Parts kept = cache;
  for (MemoryPart& part : kept) {
    if (config.rollout.sleep_while_training) part.bytes = 0;
    part.lowered_by = "set rollout.sleep_while_training = true";
  }
  // An update frees those of the one before. Ranks that share the steps free theirs in each step.
  const bool gradients_stay = config.ranks.zero_stage == 0 || num_ranks == 1;
  const std::string passes = passes_lowered_by(config);
  const std::string layers = config.model.enable_gradient_checkpointing
                                 ? passes
                                 : passes + " or set model.enable_gradient_checkpointing = true";
  MemoryNeed need;
  need.start =
      joined(held_parts(memory, config, resting_at_start(memory)), {{"weights that are read", memory.started, ""}});
  need.sampling =
      joined(joined(held, cache), {{"gradients of the last update", gradients_stay ? memory.gradients : 0.0, ""},
                                   {"experts of a pass", memory.expert_pass, "lower rollout.max_num_batched_tokens"}});
  // Passes and steps alternate, so the larger counts. Shorter passes have no smaller head, but for very short ones: it computes
  // a chunk of the tokens at a time.
  Parts update = {{"activations", memory.activations, layers}, {"head", memory.head, ""}};
  if (memory.stepped > memory.activations + memory.head)
    update = {{"copies of parameters in steps", memory.stepped, ""}};
  need.learning = joined(joined(joined(held_parts(memory, config, resting_in_updates(memory)), kept),
                                {{"gradients", memory.gradients, ""}}),
                         update);
  return need;
}

void predict_device_memory(const RunSettings& run, const PluginRegistry& registry) {
  Result<MemoryNeed> need = need_of(run, registry);
  if (!need.ok()) {
    log_info("device memory: not known: " + need.error().to_string());
    return;
  }
  const at::Device device = run.device.device;
  const std::optional<DeviceMemory> state = memory_of(device);
  const auto size = [](double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  const std::string text = fmt::format("device memory: about {} while the run samples, {} in updates{}",
                                       size(need->bytes(MemoryUse::kSampling)), size(need->bytes(MemoryUse::kUpdates)),
                                       state ? fmt::format(", of {}", format_bytes(state->all)) : "");
  if (state && need->most() > static_cast<double>(state->all))
    log_warn(text + ": that does not fit; --dry-run shows the parts");
  else
    log_info(text);
  tell_memory_need(*std::move(need), [device] { return memory_of(device); });
}

}  // namespace mortise
