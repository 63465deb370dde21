/* What the broken plugins share: the fault that an instance has, named as the case that must find it ('_' for '.'). */
#ifndef MORTISE_TESTS_BROKEN_PLUGINS_H_
#define MORTISE_TESTS_BROKEN_PLUGINS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mortise/mortise.h"

#define MORTISE_DESCRIPTOR(object)                                                                                  \
  __attribute__((section("mortise_plugins"), used)) static const mortise_descriptor* const mortise_entry_##object = \
      &object;

namespace broken {

struct Request {  // a rollout backend's request
  const mortise_rollout_request* kept;
  int64_t id, sample;
  int32_t finish;
  std::vector<int64_t> ids;
};

struct Instance {
  const mortise_host* host = nullptr;
  const char* fault = "";
  double scale = 1;
  std::string mode;
  int64_t calls = 0;
  float carry = 0;
  int64_t version = 0;
  bool stuck = false;
  std::vector<Request> ready;

  bool is(const char* name) const { return std::strcmp(fault, name) == 0; }
};
inline Instance& of(void* self) { return *static_cast<Instance*>(self); }
inline mortise_text text(const char* s) { return {s, std::strlen(s)}; }

int32_t make(const mortise_host* host, mortise_call* call, void** self, const char* fault) noexcept;
void destroy(void* self) noexcept;
const void* extension(void* self, const char* id) noexcept;

// The float32 or uint8 data of a view. One fault ignores the byte_offset here.
template <class T>
T* data(const Instance& instance, const mortise_tensor* t) {
  return static_cast<T*>(instance.is("contract_byte_offset") ? t->data : mortise_tensor_data(t));
}

extern const mortise_param* const params[2];

}  // namespace broken

// A plugin with the name of its fault. `kind` is policy_loss, kl_estimator, ...; `...` are the slots of its vtable.
#define BROKEN_PLUGIN(kind, KIND, name, flag, ...)                                                         \
  static int32_t create_##name(const mortise_host* host, mortise_call* call, void** self) noexcept {       \
    return broken::make(host, call, self, #name);                                                          \
  }                                                                                                        \
  static const mortise_##kind##_vtable vtable_##name = {                                                   \
      sizeof(mortise_##kind##_vtable), 0, create_##name, broken::destroy, broken::extension, __VA_ARGS__}; \
  static const mortise_descriptor descriptor_##name = {sizeof(mortise_descriptor),                         \
                                                       flag,                                               \
                                                       MORTISE_KIND_##KIND,                                \
                                                       #name,                                              \
                                                       "broken on purpose",                                \
                                                       nullptr,                                            \
                                                       MORTISE_COUPLING_ROW,                               \
                                                       2,                                                  \
                                                       broken::params,                                     \
                                                       nullptr,                                            \
                                                       nullptr,                                            \
                                                       &vtable_##name,                                     \
                                                       nullptr,                                            \
                                                       nullptr};                                           \
  MORTISE_DESCRIPTOR(descriptor_##name)

#endif /* MORTISE_TESTS_BROKEN_PLUGINS_H_ */
