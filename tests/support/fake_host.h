// FakeHost: a host small enough to read, for tests of packs and of the SDK.
//
// It loads a pack with dlopen, finds plugins in its table, gives parameters from a map of TOML spellings (else the
// declared defaults), and records metrics, failed rows, log lines and error texts. One FakeHost at a time per thread.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "mortise/mortise.h"

// What the ABI calls opaque: here, the host's state of one call.
struct mortise_call {
  struct Metric {
    double sum = 0, weight = 0;
    int32_t reduction = 0;
    double mean() const { return sum / weight; }
  };
  struct FailedRow {
    int32_t code;
    std::string text;
  };
  const mortise_descriptor* plugin = nullptr;
  std::map<std::string, std::string> params;
  std::map<std::string, Metric> metrics;
  std::map<int64_t, FailedRow> failed_rows;
  std::vector<std::string> log;
  int32_t code = 0;
  std::string error;
  int threads = 1;
  bool cancel = false;
  int64_t deadline_ns = 0;  // CLOCK_MONOTONIC; 0 = none
  void* stream = nullptr;   // null: the tensors are in host memory
  std::vector<std::unique_ptr<char[]>> scratch;
};

namespace mortise::test {

inline std::map<std::string, const void*>& extensions() {
  static std::map<std::string, const void*> all;
  return all;
}

inline std::string str(mortise_text t) { return std::string(t.data == nullptr ? "" : t.data, t.size); }

// The text a parameter has in this call: what the test set, else its declared default.
inline const std::string* param_text(mortise_call* call, const char* name, int32_t type) {
  static thread_local std::string text;
  for (uint32_t i = 0; i < call->plugin->num_params; ++i) {
    const mortise_param* p = call->plugin->params[i];
    if (std::string_view(p->name) != name || p->type != type) continue;
    const auto set = call->params.find(name);
    if (set != call->params.end()) return &set->second;
    if (p->default_text == nullptr) return nullptr;
    text = p->default_text;
    return &text;
  }
  return nullptr;
}

namespace slots {
inline const void* get_extension(const char* id) noexcept {
  const auto it = extensions().find(id);
  return it == extensions().end() ? nullptr : it->second;
}
inline void log(mortise_call* call, int32_t, mortise_text text) noexcept {
  if (call != nullptr) call->log.push_back(str(text));
}
inline void metric(mortise_call* call, mortise_text name, double sum, double weight, int32_t reduction) noexcept {
  const auto [it, added] = call->metrics.try_emplace(str(name));
  mortise_call::Metric& m = it->second;
  m.reduction = reduction;
  if (reduction == MORTISE_REDUCE_MAX) {
    m.sum = added || sum > m.sum ? sum : m.sum;
  } else if (reduction == MORTISE_REDUCE_MIN) {
    m.sum = added || sum < m.sum ? sum : m.sum;
  } else {
    m.sum += sum;
    m.weight += weight;
  }
}
inline int32_t fail(mortise_call* call, int32_t code, mortise_text text) noexcept {
  call->code = code;
  call->error = str(text);
  return code;
}
inline int32_t fail_row(mortise_call* call, int64_t row, int32_t code, mortise_text text) noexcept {
  call->failed_rows[row] = {code, str(text)};
  return code;
}
inline int32_t cancelled(mortise_call* call) noexcept { return call->cancel ? 1 : 0; }
inline int64_t deadline_ns(mortise_call* call) noexcept { return call == nullptr ? 0 : call->deadline_ns; }
inline void progress(mortise_call*, double) noexcept {}
inline void* alloc(mortise_call* call, uint64_t size, uint64_t align) noexcept {
  call->scratch.push_back(std::make_unique<char[]>(size + align));
  const auto at = reinterpret_cast<uintptr_t>(call->scratch.back().get());
  return reinterpret_cast<void*>((at + align - 1) / align * align);
}
inline void* stream(mortise_call* call) noexcept { return call == nullptr ? nullptr : call->stream; }
// Pieces are handed out back to front, to show that their order does not matter.
inline void parallel_for(mortise_call* call, int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t),
                         void* arg) noexcept {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t at = 0; at < n; at += grain) pieces.emplace_back(at, std::min(n, at + grain));
  const auto work = [&](size_t first) {
    for (size_t i = first; i < pieces.size(); i += size_t(call->threads)) {
      const auto& piece = pieces[pieces.size() - 1 - i];
      fn(arg, piece.first, piece.second);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < call->threads; ++t) threads.emplace_back(work, size_t(t));
  work(0);
  for (std::thread& t : threads) t.join();
}
inline void random_u64(mortise_call*, uint64_t lane, uint64_t counter, uint64_t n, uint64_t* out) noexcept {
  for (uint64_t i = 0; i < n; ++i) {  // splitmix64 of (lane, counter)
    uint64_t z = lane * 0x9e3779b97f4a7c15ULL + (counter + i + 1) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    out[i] = z ^ (z >> 31);
  }
}
inline int32_t param_f64(mortise_call* call, const char* name, double* out) noexcept {
  const std::string* text = param_text(call, name, MORTISE_PARAM_F64);
  if (text == nullptr) return MORTISE_NOT_FOUND;
  *out = *text == "none" ? std::numeric_limits<double>::quiet_NaN() : std::strtod(text->c_str(), nullptr);
  return MORTISE_OK;
}
inline int32_t param_i64(mortise_call* call, const char* name, int64_t* out) noexcept {
  const std::string* text = param_text(call, name, MORTISE_PARAM_I64);
  if (text == nullptr) return MORTISE_NOT_FOUND;
  *out = std::strtoll(text->c_str(), nullptr, 10);
  return MORTISE_OK;
}
inline int32_t param_bool(mortise_call* call, const char* name, int32_t* out) noexcept {
  const std::string* text = param_text(call, name, MORTISE_PARAM_BOOL);
  if (text == nullptr) return MORTISE_NOT_FOUND;
  *out = *text == "true" ? 1 : 0;
  return MORTISE_OK;
}
inline int32_t param_text_slot(mortise_call* call, const char* name, mortise_text* out) noexcept {
  const std::string* text = param_text(call, name, MORTISE_PARAM_TEXT);
  if (text == nullptr) return MORTISE_NOT_FOUND;
  *out = {text->data(), text->size()};
  return MORTISE_OK;
}
}  // namespace slots

inline const mortise_host* host() {
  static const mortise_host table = {
      sizeof(mortise_host), MORTISE_ABI_MINOR, slots::get_extension,  slots::log,         slots::metric,
      slots::fail,          slots::fail_row,   slots::cancelled,      slots::deadline_ns, slots::progress,
      slots::alloc,         slots::stream,     slots::parallel_for,   slots::random_u64,  slots::param_f64,
      slots::param_i64,     slots::param_bool, slots::param_text_slot};
  return &table;
}

// The table of a pack, loaded once and kept.
inline const mortise_pack* load_pack(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto* pack = static_cast<const mortise_pack*>(dlsym(library, "mortise_pack_v1"));
  if (pack == nullptr) throw std::runtime_error(path + " has no mortise_pack_v1");
  return pack;
}

inline const mortise_descriptor* find_plugin(const mortise_pack* pack, std::string_view kind, std::string_view name) {
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    if (pack->plugins[i]->kind == kind && pack->plugins[i]->name == name) return pack->plugins[i];
  }
  throw std::runtime_error("no plugin " + std::string(name) + " in " + pack->id);
}

// One instance of a plugin, with the vtable type of its kind. Calls share `call`, so clear what a test does not want to
// see.
template <class Vtable>
class Instance {
 public:
  Instance(const mortise_descriptor* descriptor, std::map<std::string, std::string> params = {})
      : vtable(static_cast<const Vtable*>(descriptor->vtable)) {
    call.plugin = descriptor;
    call.params = std::move(params);
    status = vtable->create(host(), &call, &self);
  }
  ~Instance() {
    if (self != nullptr) vtable->destroy(self);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const Vtable* vtable;
  mortise_call call;
  void* self = nullptr;
  int32_t status = 0;  // what create returned
};

}  // namespace mortise::test
