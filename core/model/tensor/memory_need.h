// What a run needs of its device's memory, as `--dry-run` predicts it, and the error of a full memory, which tells it.
// Thread rule: any thread.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

// What a device does when it takes memory.
enum class MemoryUse { kStart, kSampling, kUpdates };  // kUpdates: and passes for log-probs

struct MemoryPart {
  std::string name;        // "KV cache"
  double bytes = 0;        // at most
  std::string lowered_by;  // "lower rollout.kv_cache_mib"; empty: no key lowers it alone
};

// What is in memory at once, by what the device does.
struct MemoryNeed {
  std::vector<MemoryPart> start, sampling, learning;
  [[nodiscard]] const std::vector<MemoryPart>& parts(MemoryUse use) const;
  [[nodiscard]] double bytes(MemoryUse use) const;
  [[nodiscard]] double most() const;
};

struct DeviceMemory {
  uint64_t free = 0, all = 0;
};

// Errors tell `need` from now on, and what `state` says. A null `state` or an empty need: they tell none. A later call replaces
// both.
void tell_memory_need(MemoryNeed need, std::function<std::optional<DeviceMemory>()> state);

// `what`: who asked for the memory, with a colon behind it, or nothing.
Error full_memory_error(const std::string& what, MemoryUse use, const c10::OutOfMemoryError& error);

}  // namespace mortise
