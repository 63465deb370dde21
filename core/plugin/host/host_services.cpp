// The functions of the host table, and the state of the current call that they write to.
#include "plugin/host/host_services.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <utility>

#include "foundation/base/cpus.h"
#include "foundation/base/env.h"
#include "foundation/base/limits.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/secrets.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/base/thread_pool.h"
#include "plugin/host/running_code.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxArenaBytes = 16 * 1024 * limits::kMiB;
constexpr uint64_t kMaxAlign = 4096;
constexpr int64_t kMaxPieces = 256;  // pieces of a parallel_for: enough for balance, few enough to cost nothing

constexpr std::array<std::string_view, 17> kStatusNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

std::string_view view(mortise_text text) {
  return text.data == nullptr ? std::string_view() : std::string_view(text.data, text.size);
}

// A text must not move the cursor of a terminal or begin a line that looks like ours.
void escape_controls(std::string& text) {
  const auto is_control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
  };
  if (std::none_of(text.begin(), text.end(), is_control)) return;
  std::string out;
  for (const char c : text) is_control(c) ? out += one_line({&c, 1}) : out += c;
  text = std::move(out);
}

// Bad UTF-8 of a plugin must not reach logs and JSON files, nor a whole completion that an exception quotes.
std::string clean(mortise_text text) {
  constexpr size_t kMost = 4096;
  std::string out(view(text).substr(0, kMost));
  if (text.size > kMost) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80)
      out.pop_back();  // no half character
    if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0x80) != 0) out.pop_back();
    out += fmt::format(" ... ({} bytes)", text.size);
  }
  if (find_invalid_utf8(out)) out = quote(out, kMost);
  escape_controls(out);
  return redacted(out);
}

struct Extensions {
  std::mutex mutex;
  std::map<std::string, const void*, std::less<>> by_id;
};
Extensions& extensions() {
  static Extensions* const all = new Extensions;  // plugins may ask until the process ends
  return *all;
}

std::function<void(int32_t, const std::string&)>& log_sink() {
  static auto* const sink = new std::function<void(int32_t, const std::string&)>;
  return *sink;
}

std::function<void(const std::string&)>& progress_sink() {
  static auto* const sink = new std::function<void(const std::string&)>;
  return *sink;
}

std::string prefix_of(const mortise_call* call) {
  return fmt::format("[{}] ", call != nullptr && call->identity != nullptr ? call->identity->prefix : "plugin");
}

struct Workers {
  std::mutex mutex;
  std::atomic<int> num_threads = 0;
  std::unique_ptr<ThreadPool> pool;
};
Workers& workers() {
  static Workers* const all = new Workers;  // its threads must outlive every static destructor of packs
  return *all;
}
ThreadPool& pool() {
  Workers& all = workers();
  const std::lock_guard lock(all.mutex);
  // The calling thread works too, so the pool has one fewer.
  if (!all.pool) all.pool = std::make_unique<ThreadPool>(std::max(1, plugin_threads() - 1));
  return *all.pool;
}
thread_local bool inside_parallel_for = false;

const void* get_extension(const char* id) noexcept {
  if (id == nullptr) return nullptr;
  Extensions& all = extensions();
  const std::lock_guard lock(all.mutex);
  const auto it = all.by_id.find(std::string_view(id));
  return it == all.by_id.end() ? nullptr : it->second;
}

void log(mortise_call* call, int32_t level, mortise_text text) noexcept try {
  const LogLevel levels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError};
  const std::string line = prefix_of(call) + clean(text);
  if (log_sink()) return log_sink()(std::clamp(level, 0, 3), line);
  log_message(levels[std::clamp(level, 0, 3)], line);
} catch (...) {  // out of memory: a lost line is the least of it
}

void metric(mortise_call* call, mortise_text name, double sum, double weight, int32_t reduction) noexcept try {
  if (call == nullptr) return;
  const std::lock_guard lock(call->mutex);
  call->metrics.push_back({clean(name), sum, weight, reduction});
} catch (...) {
}

int32_t fail(mortise_call* call, int32_t code, mortise_text text) noexcept try {
  if (call == nullptr) return code;
  const std::lock_guard lock(call->mutex);
  if (call->fail_code == MORTISE_OK) {  // the first cause is the one to know
    call->fail_code = code == MORTISE_OK ? MORTISE_UNKNOWN : code;
    call->fail_text = clean(text);
  }
  return code;
} catch (...) {
  return code;
}

int32_t fail_row(mortise_call* call, int64_t row, int32_t code, mortise_text text) noexcept try {
  if (call == nullptr) return code;
  const std::lock_guard lock(call->mutex);
  if (row < 0 || row >= call->num_rows) {
    if (call->misuse.empty()) {
      call->misuse = fmt::format("called fail_row for row {} of a batch of {}", row, call->num_rows);
    }
    return code;
  }
  call->failed_rows.push_back({row, code, text.size == 0 ? "failed with " + status_name(code) : clean(text)});
  return code;
} catch (...) {
  return code;
}

int64_t deadline_ns(mortise_call* call) noexcept { return call == nullptr ? 0 : call->deadline_ns; }

int32_t cancelled(mortise_call* call) noexcept {
  if (call == nullptr) return 0;
  if (call->cancelled != nullptr && call->cancelled->load(std::memory_order_relaxed)) return 1;
  return call->deadline_ns != 0 && default_env().monotonic_ns() >= call->deadline_ns ? 1 : 0;
}

void progress(mortise_call* call, double fraction) noexcept try {
  constexpr int64_t kPauseNs = 100'000'000;  // for people, who read ten lines a second at most
  if (call == nullptr || std::isnan(fraction)) return;
  const int64_t now = default_env().monotonic_ns();
  const std::lock_guard lock(call->mutex);
  if (call->progress_ns != 0 && fraction < 1 && now - call->progress_ns < kPauseNs) return;
  call->progress_ns = now;
  const auto percent = static_cast<int>(100 * std::clamp(fraction, 0.0, 1.0));
  const std::string line = fmt::format("{}{}%", prefix_of(call), percent);
  progress_sink() ? progress_sink()(line) : log_progress_line(line);
} catch (...) {  // a line lost
}

void* alloc(mortise_call* call, uint64_t size, uint64_t align) noexcept try {
  if (call == nullptr || align == 0 || (align & (align - 1)) != 0 || align > kMaxAlign) return nullptr;
  const std::lock_guard lock(call->mutex);
  if (size > kMaxArenaBytes - call->arena_bytes) return nullptr;
  void* const memory = call->arena.allocate(std::max<uint64_t>(size, 1), align);
  call->arena_bytes += size;
  return memory;
} catch (...) {
  return nullptr;
}

void* stream(mortise_call* call) noexcept { return call == nullptr ? nullptr : call->stream; }

// Pieces depend only on n and grain, so sums over them do not depend on the number of threads.
void parallel_for(mortise_call*, int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* arg) noexcept {
  if (n <= 0 || fn == nullptr) return;
  const int64_t piece = std::max<int64_t>(std::max<int64_t>(grain, 1), (n + kMaxPieces - 1) / kMaxPieces);
  const int64_t num_pieces = (n + piece - 1) / piece;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) fn(arg, i * piece, std::min(n, (i + 1) * piece));
  };
  if (num_pieces == 1 || inside_parallel_for || workers().num_threads == 1) return run(0, num_pieces);
  try {
    const RunningCode* const code = RunningCode::current();
    pool().parallel_for(0, num_pieces, 1, [&, code](int64_t first, int64_t last) {
      const RunningCode running(code);
      const bool outer = std::exchange(inside_parallel_for, true);
      run(first, last);
      inside_parallel_for = outer;
    });
  } catch (const std::bad_alloc&) {
    // Pieces may have run already, and continuing would run them twice.
    log_error("out of memory in parallel_for of a plugin");
    std::abort();
  }
}

void random_u64_service(mortise_call* call, uint64_t lane, uint64_t counter, uint64_t n, uint64_t* out) noexcept {
  if (out == nullptr) return;
  constexpr uint64_t kPerKey = uint64_t{1} << 32;  // values of one key before the next token is taken
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t place = counter + i;
    const RngKey key{.seed = call == nullptr || call->identity == nullptr ? 0 : call->identity->rng_seed,
                     .purpose = RandomPurpose::kPlugin,
                     .step = call == nullptr ? 0 : static_cast<uint64_t>(call->step),
                     .sample = lane,
                     .token = static_cast<uint32_t>(place / kPerKey)};
    out[i] = random_u64(key, place % kPerKey);
  }
}

const Json* find_param(mortise_call* call, const char* name) {
  if (call == nullptr || call->identity == nullptr || name == nullptr) return nullptr;
  return json_find(call->identity->params, name);
}

int32_t param_f64(mortise_call* call, const char* name, double* out) noexcept {
  const Json* value = find_param(call, name);
  if (value == nullptr) return MORTISE_NOT_FOUND;
  if (out == nullptr || !(value->is_number_float() || value->is_null())) return MORTISE_INVALID_ARGUMENT;
  if (value->is_null()) {  // not set
    *out = std::numeric_limits<double>::quiet_NaN();
    return MORTISE_OK;
  }
  *out = *value->get_ptr<const double*>();
  return MORTISE_OK;
}

int32_t param_i64(mortise_call* call, const char* name, int64_t* out) noexcept {
  const Json* value = find_param(call, name);
  if (value == nullptr) return MORTISE_NOT_FOUND;
  if (out == nullptr || !value->is_number_integer()) return MORTISE_INVALID_ARGUMENT;
  *out = value->get<int64_t>();
  return MORTISE_OK;
}

int32_t param_bool(mortise_call* call, const char* name, int32_t* out) noexcept {
  const Json* value = find_param(call, name);
  if (value == nullptr) return MORTISE_NOT_FOUND;
  if (out == nullptr || !value->is_boolean()) return MORTISE_INVALID_ARGUMENT;
  *out = value->get<bool>() ? 1 : 0;
  return MORTISE_OK;
}

// "env:NAME" is the value of that variable. It is looked up here, so that no config, message or file contains it.
int32_t param_text(mortise_call* call, const char* name, mortise_text* out) noexcept try {
  const Json* value = find_param(call, name);
  if (value == nullptr) return MORTISE_NOT_FOUND;
  if (out == nullptr || !value->is_string()) return MORTISE_INVALID_ARGUMENT;
  const auto& text = *value->get_ptr<const std::string*>();
  *out = {text.data(), text.size()};
  const std::string_view secret = secret_reference(text);
  if (secret.empty()) return MORTISE_OK;
  const std::string variable(secret);
  const char* const content = std::getenv(variable.c_str());
  if (content == nullptr || *content == '\0') {
    const std::string what =
        fmt::format("{}: the environment variable {} is not set. Export it before the run, or give the value itself",
                    name, variable);
    fail(call, MORTISE_FAILED_PRECONDITION, {what.data(), what.size()});
    return MORTISE_FAILED_PRECONDITION;
  }
  add_secret(variable, content);
  *out = {content, std::strlen(content)};
  return MORTISE_OK;
} catch (...) {  // out of memory
  return MORTISE_RESOURCE_EXHAUSTED;
}

constexpr mortise_host make_table(int32_t abi) {
  mortise_host host{};
  host.struct_size = sizeof(mortise_host);
  host.abi_minor = static_cast<uint32_t>(newest_minor(abi));
  host.get_extension = get_extension;
  host.log = log;
  host.metric = metric;
  host.fail = fail;
  host.fail_row = fail_row;
  host.cancelled = cancelled;
  host.deadline_ns = deadline_ns;
  host.progress = progress;
  host.alloc = alloc;
  host.stream = stream;
  host.parallel_for = parallel_for;
  host.random_u64 = random_u64_service;
  host.param_f64 = param_f64;
  host.param_i64 = param_i64;
  host.param_bool = param_bool;
  host.param_text = param_text;
  return host;
}

constexpr mortise_host kHost = make_table(MORTISE_ABI_MAJOR);
constexpr mortise_host kHostV0 = make_table(0);

}  // namespace

std::string status_name(int32_t code) {
  if (code >= 0 && code < static_cast<int32_t>(kStatusNames.size()))
    return std::string(kStatusNames[static_cast<size_t>(code)]);
  return "status " + std::to_string(code);
}

const mortise_host* host_table(int32_t abi) { return abi == 0 ? &kHostV0 : &kHost; }

void register_host_extension(std::string_view id, const void* extension) {
  Extensions& all = extensions();
  const std::lock_guard lock(all.mutex);
  if (extension == nullptr) {
    all.by_id.erase(std::string(id));
  } else {
    all.by_id[std::string(id)] = extension;
  }
}

void set_plugin_log(std::function<void(int32_t level, const std::string& line)> sink) { log_sink() = std::move(sink); }

void set_plugin_progress(std::function<void(const std::string& line)> sink) { progress_sink() = std::move(sink); }

int plugin_threads() {
  const int asked = workers().num_threads;
  return asked > 0 ? asked : pool_threads();
}

void set_plugin_threads(int num_threads) {
  Workers& all = workers();
  const std::lock_guard lock(all.mutex);
  all.num_threads = num_threads;
  all.pool.reset();
}

}  // namespace mortise
