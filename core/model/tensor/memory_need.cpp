// See memory_need.h.
#include "model/tensor/memory_need.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr size_t kPartsTold = 3;  // the largest ones

struct Told {
  std::mutex mutex;
  std::optional<MemoryNeed> need;
  std::function<std::optional<DeviceMemory>()> state;
};
Told& told() {
  static Told it;
  return it;
}

std::string size(double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); }

const char* name_of(MemoryUse use) {
  switch (use) {
    case MemoryUse::kStart:
      return "while the run starts";
    case MemoryUse::kSampling:
      return "while it samples";
    case MemoryUse::kUpdates:
      break;
  }
  return "in updates";
}

// `parts`: the largest first.
std::string predicted(const MemoryNeed& need, MemoryUse use, const std::vector<MemoryPart>& parts) {
  std::string out = fmt::format("--dry-run predicts {} of the GPU's memory for this run, and {} {}", size(need.most()),
                                size(need.bytes(use)), name_of(use));
  for (size_t i = 0; i < std::min(parts.size(), kPartsTold); ++i)
    out += fmt::format("{}{} {}", i == 0 ? ": " : ", ", parts[i].name, size(parts[i].bytes));
  return out;
}

std::string what_to_lower(const std::vector<MemoryPart>& parts) {
  std::vector<std::string> ways;
  for (const MemoryPart& part : parts) {
    if (ways.size() == kPartsTold) break;
    if (!part.lowered_by.empty() && std::ranges::find(ways, part.lowered_by) == ways.end())
      ways.push_back(part.lowered_by);
  }
  return join(ways, ", or ");
}

// Without a run, whose need is known.
std::string keys_to_lower(MemoryUse use) {
  if (use == MemoryUse::kSampling) return "lower rollout.kv_cache_mib or rollout.max_num_seqs";
  return "lower actor.ppo_max_token_len_per_gpu or rollout.max_num_seqs; `mortise train RUN.toml --dry-run` says what "
         "the run needs";
}

}  // namespace

const std::vector<MemoryPart>& MemoryNeed::parts(MemoryUse use) const {
  return use == MemoryUse::kStart ? start : use == MemoryUse::kSampling ? sampling : learning;
}

double MemoryNeed::bytes(MemoryUse use) const {
  double sum = 0;
  for (const MemoryPart& part : parts(use)) sum += part.bytes;
  return sum;
}

double MemoryNeed::most() const {
  return std::max({bytes(MemoryUse::kStart), bytes(MemoryUse::kSampling), bytes(MemoryUse::kUpdates)});
}

void tell_memory_need(MemoryNeed need, std::function<std::optional<DeviceMemory>()> state) {
  const std::lock_guard lock(told().mutex);
  told().need = std::move(need);
  told().state = std::move(state);
}

Error full_memory_error(const std::string& what, MemoryUse use, const c10::OutOfMemoryError& error) {
  Error out{ErrorKind::kInternal, fmt::format("{}the GPU has no memory left: {}", what, error.what_without_backtrace()),
            "model.device", keys_to_lower(use)};
  const std::lock_guard lock(told().mutex);
  if (!told().need || told().need->most() <= 0) return out;  // an empty need tells nothing
  std::vector<MemoryPart> parts = told().need->parts(use);
  std::erase_if(parts, [](const MemoryPart& part) { return part.bytes <= 0; });
  std::ranges::stable_sort(parts, std::greater<>(), &MemoryPart::bytes);
  out.what += fmt::format(" ({}", predicted(*told().need, use, parts));
  if (const auto state = told().state ? told().state() : std::nullopt)
    out.what += fmt::format("; now {} of {} are free", format_bytes(state->free), format_bytes(state->all));
  out.what += ")";
  if (std::string ways = what_to_lower(parts); !ways.empty()) out.next = std::move(ways);
  return out;
}

}  // namespace mortise
