// The services of the simulated host, and its table for a given ABI version.
#include "conformance/sim_host.h"

#include <fmt/core.h>

#include <cstring>
#include <deque>
#include <map>

#include "conformance/echo_engine.h"
#include "conformance/echo_scorer.h"
#include "conformance/guarded_memory.h"
#include "foundation/base/env.h"
#include "foundation/base/text.h"
#include "mortise/ext/generate.h"
#include "plugin/host/host_services.h"

namespace mortise::check {
namespace {

HostShape simulated;  // the host that plugins meet now

const void* get_extension(const char* id) noexcept {
  if (!simulated.extensions || id == nullptr) return nullptr;
  if (std::strcmp(id, MORTISE_EXT_SCORE_MODEL) == 0) return echo_scorer();
  return std::strcmp(id, MORTISE_EXT_GENERATE) == 0 ? echo_engine() : nullptr;
}

void log(mortise_call*, int32_t level, mortise_text text) noexcept {
  const std::lock_guard lock(host_log().mutex);
  if (host_log().lines.size() < 1000)
    host_log().lines.push_back(fmt::format("{} {}", level, std::string(text.data, text.size)));
}

int32_t cancelled(mortise_call*) noexcept {
  return simulated.cancel_ns != 0 && default_env().monotonic_ns() >= simulated.cancel_ns ? 1 : 0;
}
int64_t deadline_ns(mortise_call*) noexcept { return simulated.cancel_ns; }

void* alloc(mortise_call* call, uint64_t size, uint64_t align) noexcept {
  return simulated.memory ? host_table()->alloc(call, size, align) : nullptr;
}

void parallel_for(mortise_call*, int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* arg) noexcept {
  ++host_log().num_parallel;
  if (n <= 0 || fn == nullptr) return;
  const int64_t piece = std::max<int64_t>(grain, 1), num_pieces = (n + piece - 1) / piece;
  for (int64_t i = 0; i < num_pieces; ++i) {
    const int64_t k = simulated.backwards ? num_pieces - 1 - i : i;
    fn(arg, k * piece, std::min(n, (k + 1) * piece));
  }
}

// Passes the answer on; a miss is a parameter that the plugin did not declare, or declared with another type.
int32_t noted(const char* service, const char* name, int32_t code) {
  if (code != MORTISE_OK) {
    const std::lock_guard lock(host_log().mutex);
    host_log().undeclared.push_back(
        fmt::format("{} {}: {}", service, quote(name == nullptr ? "(null)" : name), status_name(code)));
  }
  return code;
}
int32_t param_f64(mortise_call* call, const char* name, double* out) noexcept {
  return simulated.params ? noted("param_f64", name, host_table()->param_f64(call, name, out)) : MORTISE_NOT_FOUND;
}
int32_t param_i64(mortise_call* call, const char* name, int64_t* out) noexcept {
  return simulated.params ? noted("param_i64", name, host_table()->param_i64(call, name, out)) : MORTISE_NOT_FOUND;
}
int32_t param_bool(mortise_call* call, const char* name, int32_t* out) noexcept {
  return simulated.params ? noted("param_bool", name, host_table()->param_bool(call, name, out)) : MORTISE_NOT_FOUND;
}

// Text exactly as the ABI promises it, without a zero at its end. One copy per text, because there may be many
// instances.
mortise_text without_end(mortise_text text) {
  static auto* const copies = new std::map<std::string, GuardedMemory>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string key(text.data, text.size);
  auto it = copies->find(key);
  if (it == copies->end()) {
    GuardedMemory memory("text of a parameter", text.size, 1);
    std::memcpy(memory.data(), text.data, text.size);
    memory.make_read_only();
    it = copies->emplace(key, std::move(memory)).first;
  }
  return {it->second.as<const char>(), text.size};
}
int32_t param_text(mortise_call* call, const char* name, mortise_text* out) noexcept {
  if (!simulated.params) return MORTISE_NOT_FOUND;
  const int32_t code = noted("param_text", name, host_table()->param_text(call, name, out));
  if (code == MORTISE_OK) *out = without_end(*out);
  return code;
}

}  // namespace

HostLog& host_log() {
  static auto* const log = new HostLog;
  return *log;
}

const mortise_host* make_host(const HostShape& wanted) {
  simulated = wanted;
  static auto* const tables = new std::deque<GuardedMemory>;
  GuardedMemory& memory = tables->emplace_back("the host's table", sizeof(mortise_host) + wanted.tail_bytes, 8);
  std::memset(memory.data(), 0x5D, memory.size());  // 0x5d5d...: no address of user space
  mortise_host& host = *memory.as<mortise_host>();
  host = *host_table();
  host.struct_size = static_cast<uint32_t>(memory.size());
  if (wanted.tail_bytes > 0) host.abi_minor = MORTISE_ABI_MINOR + 1000;
  host.get_extension = get_extension;
  host.log = log;
  host.cancelled = cancelled;
  host.deadline_ns = deadline_ns;
  host.alloc = alloc;
  host.parallel_for = parallel_for;
  host.param_f64 = param_f64;
  host.param_i64 = param_i64;
  host.param_bool = param_bool;
  host.param_text = param_text;
  if (!wanted.optional) {
    host.cancelled = nullptr;
    host.deadline_ns = nullptr;
    host.progress = nullptr;
    host.alloc = nullptr;
    host.stream = nullptr;
    host.parallel_for = nullptr;
  }
  memory.make_read_only();
  HostLog& fresh = host_log();
  const std::lock_guard lock(fresh.mutex);
  fresh.lines.clear();
  fresh.undeclared.clear();
  fresh.num_parallel = 0;
  return &host;
}

}  // namespace mortise::check
