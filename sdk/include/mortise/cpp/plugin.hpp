/* What every C++ plugin is built on: parameters, the call, errors, and the macros that put a class into the pack.
 *
 * A plugin is a class that derives from its kind's base (losses.hpp, advantage.hpp, reward.hpp, rollout.hpp) and names
 * its parameters where it reads them:
 *     double eps = param("clip_ratio", 0.2, "half width of the trust band").range(0, 1);
 * The class is constructed once while the library loads, in declaring mode, to learn its parameter table; so a
 * constructor must do nothing but read parameters. Work that needs their values belongs in setup(), which runs in
 * `create`. Exceptions never leave the pack: they become a status and a text (guarded() below).
 * Header-only C++17, no libraries; never part of the ABI.
 */
#ifndef MORTISE_CPP_PLUGIN_HPP_
#define MORTISE_CPP_PLUGIN_HPP_

#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <initializer_list>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../mortise.h"

namespace mortise {

// An error of the plugin with its canonical code; any other exception is reported as MORTISE_INTERNAL.
class Failure : public std::runtime_error {
 public:
  Failure(std::int32_t status, const std::string& text) : std::runtime_error(text), code(status) {}
  std::int32_t code;
};

[[noreturn]] inline void fail(std::int32_t code, const std::string& text) { throw Failure(code, text); }

inline mortise_text to_text(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view view(mortise_text t) { return {t.data == nullptr ? "" : t.data, t.size}; }

// Contiguous elements that another object owns.
template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::int64_t size) : data_(data), size_(size) {}
  Span(std::vector<std::remove_const_t<T>>& v) : data_(v.data()), size_(std::int64_t(v.size())) {}  // NOLINT
  T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::int64_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

// The host's services for one slot call. Cheap to copy; do not keep it after the slot returns.
class Call {
 public:
  Call(const mortise_host* host, mortise_call* call) : host_(host), call_(call) {}

  void log(std::int32_t level, std::string_view text) const { host_->log(call_, level, to_text(text)); }
  void metric(std::string_view name, double sum, double weight, std::int32_t reduction = MORTISE_REDUCE_MEAN) const {
    host_->metric(call_, to_text(name), sum, weight, reduction);
  }
  bool cancelled() const { return MORTISE_HAS(host_, cancelled) && host_->cancelled(call_) != 0; }
  void progress(double fraction) const {
    if (MORTISE_HAS(host_, progress)) host_->progress(call_, fraction);
  }
  std::int32_t fail_row(std::int64_t row, std::int32_t code, std::string_view text) const {
    return host_->fail_row(call_, row, code, to_text(text));
  }
  // The cudaStream_t of the call's device; null on the CPU.
  void* stream() const { return MORTISE_HAS(host_, stream) ? host_->stream(call_) : nullptr; }
  void random(std::uint64_t lane, std::uint64_t counter, Span<std::uint64_t> out) const {
    host_->random_u64(call_, lane, counter, std::uint64_t(out.size()), out.data());
  }

  // Calls work(begin, end) over [0, n) on the host's threads; inline if it has none. `work` must not throw.
  template <class F>
  void parallel_for(std::int64_t n, std::int64_t grain, const F& work) const {
    if (n <= grain || !MORTISE_HAS(host_, parallel_for)) {
      if (n > 0) work(std::int64_t(0), n);
      return;
    }
    host_->parallel_for(
        call_, n, grain,
        [](void* arg, std::int64_t begin, std::int64_t end) { (*static_cast<const F*>(arg))(begin, end); },
        const_cast<F*>(&work));
  }

  const mortise_host* host() const { return host_; }
  mortise_call* raw() const { return call_; }

 private:
  const mortise_host* host_;
  mortise_call* call_;
};

// "not set": the default of a number that falls back to something else. Such a parameter reads as NaN.
struct None {};
inline constexpr None none{};
// No default: the user must give a value.
struct Required {};
inline constexpr Required required{};
inline bool is_set(double value) { return !std::isnan(value); }

namespace detail {

// The parameter table of one class, filled in declaring mode. Lives as long as the library.
struct ParamTable {
  struct Entry {
    std::string name, default_text, doc;
    std::vector<std::string> choices;
    std::vector<const char*> choice_pointers;
    bool has_default = false;
    mortise_param param{};
  };
  std::deque<Entry> entries;
  std::vector<const mortise_param*> pointers;

  void finish() {
    for (Entry& e : entries) {
      for (const std::string& choice : e.choices) e.choice_pointers.push_back(choice.c_str());
      e.param.struct_size = sizeof(mortise_param);
      e.param.name = e.name.c_str();
      e.param.default_text = e.has_default ? e.default_text.c_str() : nullptr;
      e.param.doc = e.doc.c_str();
      e.param.num_choices = std::uint32_t(e.choices.size());
      e.param.choices = e.choice_pointers.empty() ? nullptr : e.choice_pointers.data();
      pointers.push_back(&e.param);
    }
  }
};

// The tables of the library that contains this code. They are hidden, so that no two packs share them.
__attribute__((visibility("hidden"))) inline std::deque<ParamTable>& param_tables() {
  static std::deque<ParamTable> tables;
  return tables;
}

// The source of parameters for the plugin under construction: a table to declare them in, or a host to read them from.
struct Building {
  ParamTable* table = nullptr;
  const mortise_host* host = nullptr;
  mortise_call* call = nullptr;
};
inline thread_local const Building* building = nullptr;

struct BuildingScope {
  explicit BuildingScope(const Building& b) : previous(building) { building = &b; }
  ~BuildingScope() { building = previous; }
  const Building* previous;
};

inline std::string spell(double x) {
  if (std::isnan(x)) return "none";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  std::string out(text, end);
  return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}
inline std::string spell(std::int64_t x) { return std::to_string(x); }
inline std::string spell(bool x) { return x ? "true" : "false"; }
inline std::string spell(const std::string& x) { return x; }

inline constexpr std::int32_t param_type(const double*) { return MORTISE_PARAM_F64; }
inline constexpr std::int32_t param_type(const std::int64_t*) { return MORTISE_PARAM_I64; }
inline constexpr std::int32_t param_type(const bool*) { return MORTISE_PARAM_BOOL; }
inline constexpr std::int32_t param_type(const std::string*) { return MORTISE_PARAM_TEXT; }

inline std::int32_t read(const Building& b, const char* name, double* out) {
  return b.host->param_f64(b.call, name, out);
}
inline std::int32_t read(const Building& b, const char* name, std::int64_t* out) {
  return b.host->param_i64(b.call, name, out);
}
inline std::int32_t read(const Building& b, const char* name, bool* out) {
  std::int32_t value = 0;
  const std::int32_t status = b.host->param_bool(b.call, name, &value);
  *out = value != 0;
  return status;
}
inline std::int32_t read(const Building& b, const char* name, std::string* out) {
  mortise_text text{};
  const std::int32_t status = b.host->param_text(b.call, name, &text);
  *out = std::string(view(text));
  return status;
}

}  // namespace detail

// A parameter being declared or read. It converts to its value. See Plugin::param.
template <class T>
class Param {
 public:
  Param(const char* name, T fallback, bool has_default, const char* doc) : fallback_(std::move(fallback)) {
    entry_.name = name;
    entry_.doc = doc;
    entry_.has_default = has_default;
    entry_.param.type = detail::param_type(static_cast<const T*>(nullptr));
  }

  // Inclusive. A number whose default is `none` may still be omitted.
  Param& range(double low, double high) { return at_least(low).at_most(high); }
  Param& at_least(double low) {
    open_range();
    entry_.param.min = low;
    return *this;
  }
  Param& at_most(double high) {
    open_range();
    entry_.param.max = high;
    return *this;
  }
  // Exclusive: above(0) allows every positive number.
  Param& above(double low) { return at_least(next(low, 1)); }
  Param& below(double high) { return at_most(next(high, -1)); }
  Param& choices(std::initializer_list<const char*> allowed) {
    entry_.choices.assign(allowed.begin(), allowed.end());
    return *this;
  }
  // What the text names (MORTISE_ROLE_*, pack.h): the host checks, follows or hides it.
  Param& column() { return role(1); }
  Param& file() { return role(2); }
  Param& folder() { return role(3); }
  Param& model() { return role(4); }
  Param& secret() { return role(5); }

  operator T() const {  // NOLINT: reads like the value that it is
    const detail::Building* b = detail::building;
    if (b == nullptr) fail(MORTISE_INTERNAL, "parameter '" + entry_.name + "' read outside a plugin's constructor");
    if (b->table != nullptr) {
      b->table->entries.push_back(entry_);
      if (entry_.has_default) b->table->entries.back().default_text = detail::spell(fallback_);
      return fallback_;
    }
    T value{};
    const std::int32_t status = detail::read(*b, entry_.name.c_str(), &value);
    if (status != MORTISE_OK) fail(status, "the host has no value for the declared parameter '" + entry_.name + "'");
    return value;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Param& role(std::int32_t role) {
    static_assert(std::is_same_v<T, std::string>, "only a text can stand for a column, a file, a folder or a secret");
    entry_.param.role = role;
    return *this;
  }
  void open_range() {
    if (entry_.param.has_range != 0) return;
    entry_.param.has_range = 1;
    entry_.param.min = -kInfinity;
    entry_.param.max = kInfinity;
  }
  // The next number of the parameter's type after `x` in that direction.
  static double next(double x, int direction) {
    if (std::is_same_v<T, std::int64_t>) return direction > 0 ? std::floor(x) + 1 : std::ceil(x) - 1;
    return std::nextafter(x, direction * kInfinity);
  }

  T fallback_;
  detail::ParamTable::Entry entry_;
};

// Base of every plugin class. A derived class may hide these members with its own.
class Plugin {
 public:
  static constexpr const char* summary = "";
  static constexpr const char* doc = nullptr;
  static constexpr std::uint32_t flags = 0;
  // Null-terminated, eg: static constexpr const char* requires_inputs[] = {"ref_log_prob", nullptr};
  static constexpr const char* const* requires_inputs = nullptr;
  static constexpr const char* const* consumes = nullptr;
  // As `update_metrics` of the descriptor; null-terminated.
  static constexpr const char* const* update_metrics = nullptr;
  // The plugin's table for an extension that needs no instance, eg "mortise.reads/1". A class hides it with a static
  // function of its own.
  static const void* plugin_extension(const char*) noexcept { return nullptr; }

  virtual ~Plugin() = default;
  // Runs once in `create`, after the parameters are read: compile patterns, open files. May throw.
  virtual void setup(Call) {}
  // The instance's table for a plugin extension, eg "mortise.state/1"; null if it has none.
  virtual const void* extension(const char*) { return nullptr; }

 protected:
  static Param<double> param(const char* name, double fallback, const char* about) {
    return {name, fallback, true, about};
  }
  static Param<double> param(const char* name, None, const char* about) {
    return {name, std::numeric_limits<double>::quiet_NaN(), true, about};
  }
  static Param<std::int64_t> param(const char* name, int fallback, const char* about) {
    return {name, fallback, true, about};
  }
  static Param<std::int64_t> param(const char* name, std::int64_t fallback, const char* about) {
    return {name, fallback, true, about};
  }
  static Param<bool> param(const char* name, bool fallback, const char* about) { return {name, fallback, true, about}; }
  static Param<std::string> param(const char* name, const char* fallback, const char* about) {
    return {name, fallback, true, about};
  }
  template <class T>
  static Param<T> param(const char* name, Required, const char* about) {
    return {name, T{}, false, about};
  }
};

namespace detail {

// Runs `work`. An exception becomes the call's status and text.
template <class F>
std::int32_t guarded(const mortise_host* host, mortise_call* call, const F& work) noexcept {
  const auto report = [&](std::int32_t code, const char* text) { return host->fail(call, code, to_text(text)); };
  try {
    work();
    return MORTISE_OK;
  } catch (const Failure& e) {
    return report(e.code, e.what());
  } catch (const std::bad_alloc&) {
    return report(MORTISE_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::invalid_argument& e) {
    return report(MORTISE_INVALID_ARGUMENT, e.what());
  } catch (const std::out_of_range& e) {
    return report(MORTISE_OUT_OF_RANGE, e.what());
  } catch (const std::exception& e) {
    return report(MORTISE_INTERNAL, e.what());
  } catch (...) {
    return report(MORTISE_UNKNOWN, "an exception that is not a std::exception");
  }
}

// The object at `self`.
template <class T>
using Self = std::pair<const mortise_host*, T*>;

template <class T>
std::int32_t create(const mortise_host* host, mortise_call* call, void** self) noexcept {
  return guarded(host, call, [&] {
    struct Holder {
      T* plugin;
      ~Holder() { delete plugin; }
    } holder{nullptr};
    const Building b{nullptr, host, call};
    {
      const BuildingScope scope(b);
      holder.plugin = new T();
    }
    holder.plugin->setup(Call(host, call));
    *self = new std::pair<const mortise_host*, T*>(host, holder.plugin);
    holder.plugin = nullptr;
  });
}

template <class T>
void destroy(void* self) noexcept {
  if (self == nullptr) return;
  auto* instance = static_cast<Self<T>*>(self);
  delete instance->second;
  delete instance;
}

template <class T>
const void* get_extension(void* self, const char* id) noexcept {
  try {
    return static_cast<Self<T>*>(self)->second->extension(id);
  } catch (...) {
    return nullptr;
  }
}

// Runs `work(plugin, call)` for a slot.
template <class T, class F>
std::int32_t run(void* self, mortise_call* call, const F& work) noexcept {
  auto* instance = static_cast<Self<T>*>(self);
  return guarded(instance->first, call, [&] { work(*instance->second, Call(instance->first, call)); });
}

// The descriptor of class T, made while the library loads. A class whose constructor throws gets no vtable, and its
// summary says why; the note maker and the host refuse such a plugin.
template <class T, class Vtable>
mortise_descriptor describe(const char* kind, const char* name, std::int32_t coupling, const Vtable* vtable) noexcept {
  mortise_descriptor d{};
  d.struct_size = sizeof d;
  d.flags = T::flags;
  d.kind = kind;
  d.name = name;
  d.summary = T::summary;
  d.doc = T::doc;
  d.coupling = coupling;
  d.requires_inputs = T::requires_inputs;
  d.consumes = T::consumes;
  d.update_metrics = T::update_metrics;
  d.get_extension = T::plugin_extension;
  try {
    ParamTable* table = &param_tables().emplace_back();
    const Building b{table, nullptr, nullptr};
    const BuildingScope scope(b);
    T declared;
    table->finish();
    d.num_params = std::uint32_t(table->pointers.size());
    d.params = table->pointers.data();
    d.vtable = vtable;
  } catch (const std::exception& e) {
    static char why[256];
    std::snprintf(why, sizeof why, "the constructor threw while the library loaded: %s", e.what());
    d.summary = why;
  } catch (...) {
    d.summary = "the constructor threw while the library loaded";
  }
  return d;
}

}  // namespace detail
}  // namespace mortise

// A plugin of the pack. Its descriptor's address goes into a section of the library, where MORTISE_PACK finds all of
// them, so that a pack may have one file per plugin. `Adapter` belongs to the kind; see MORTISE_TOKEN_LOSS and the
// other macros.
#define MORTISE_PLUGIN(name, ...) MORTISE_PLUGIN_NUMBERED(__COUNTER__, name, __VA_ARGS__)
#define MORTISE_PLUGIN_NUMBERED(n, name, ...) MORTISE_PLUGIN_ENTRY(n, name, __VA_ARGS__)
#define MORTISE_PLUGIN_ENTRY(n, name, ...)                                                                     \
  static const mortise_descriptor mortise_descriptor_##n = ::mortise::detail::__VA_ARGS__::describe(name);     \
  __attribute__((section("mortise_plugins"), used)) static const mortise_descriptor* const mortise_entry_##n = \
      &mortise_descriptor_##n;

// The same for a hand-written descriptor over the C ABI.
#define MORTISE_DESCRIPTOR(object)                                                                                  \
  __attribute__((section("mortise_plugins"), used)) static const mortise_descriptor* const mortise_entry_##object = \
      &object;

// Once in every pack: the exported object. Write it around the plugins, one or several of any kinds, with nothing
// between them: MORTISE_PACK(MORTISE_REWARD("match", Match) MORTISE_TOKEN_LOSS("clip", Clip)). Or, if each file has the
// macros of its plugins, write MORTISE_PACK() in one of the files. The names of one kind must differ.
// mortise_add_pack() defines MORTISE_PACK_ID and MORTISE_PACK_VERSION.
#define MORTISE_PACK(...)                                                                                     \
  __VA_ARGS__                                                                                                 \
  extern "C" __attribute__((visibility("hidden"))) const mortise_descriptor* const __start_mortise_plugins[]; \
  extern "C" __attribute__((visibility("hidden"))) const mortise_descriptor* const __stop_mortise_plugins[];  \
  const mortise_pack mortise_pack_v1 = {                                                                      \
      sizeof(mortise_pack),    MORTISE_PACK_MINOR,                                                            \
      MORTISE_MIN_HOST_MINOR,  std::uint32_t(__stop_mortise_plugins - __start_mortise_plugins),               \
      MORTISE_PACK_ID,         MORTISE_PACK_VERSION,                                                          \
      __start_mortise_plugins, nullptr};

#endif  // MORTISE_CPP_PLUGIN_HPP_
