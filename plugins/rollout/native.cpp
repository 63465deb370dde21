// native: the engine's own generator, on the weights that are being trained.
//
// The host extension mortise.generate/1 is a rollout vtable; every slot is handed on to it, the call included, so that
// errors, deadlines and metrics are the generator's own. Written over the C ABI: there is nothing to add.
#include <mortise/cpp/plugin.hpp>

namespace {

using Vtable = mortise_rollout_backend_vtable;

struct Native {
  const Vtable* engine;
  void* self;
};

const Native& of(void* self) { return *static_cast<const Native*>(self); }

std::int32_t create(const mortise_host* host, mortise_call* call, void** self) noexcept {
  const auto* engine = static_cast<const Vtable*>(host->get_extension(MORTISE_EXT_GENERATE));
  if (engine == nullptr) {
    return host->fail(call, MORTISE_FAILED_PRECONDITION,
                      mortise::to_text("this process holds no model (no host extension mortise.generate/1)"));
  }
  auto* native = new (std::nothrow) Native{engine, nullptr};
  if (native == nullptr) return host->fail(call, MORTISE_RESOURCE_EXHAUSTED, mortise::to_text("out of memory"));
  const std::int32_t status = engine->create(host, call, &native->self);
  if (status != MORTISE_OK) {
    delete native;
    return status;
  }
  *self = native;
  return MORTISE_OK;
}
void destroy(void* self) noexcept {
  if (self == nullptr) return;
  of(self).engine->destroy(of(self).self);
  delete static_cast<Native*>(self);
}
const void* get_extension(void* self, const char* id) noexcept {
  const Native& n = of(self);
  return MORTISE_HAS(n.engine, get_extension) ? n.engine->get_extension(n.self, id) : nullptr;
}
std::int32_t set_version(void* self, mortise_call* call, std::int64_t version) noexcept {
  return of(self).engine->set_version(of(self).self, call, version);
}
std::int32_t submit(void* self, mortise_call* call, const mortise_rollout_request* const* requests,
                    std::uint64_t num_requests, std::uint64_t* accepted) noexcept {
  return of(self).engine->submit(of(self).self, call, requests, num_requests, accepted);
}
std::int32_t poll(void* self, mortise_call* call, const mortise_rollout_sink* sink, std::int64_t timeout_ns,
                  std::uint64_t* outstanding) noexcept {
  return of(self).engine->poll(of(self).self, call, sink, timeout_ns, outstanding);
}
std::int32_t abort(void* self, mortise_call* call, std::int64_t request_id) noexcept {
  const Native& n = of(self);
  return MORTISE_HAS(n.engine, abort) ? n.engine->abort(n.self, call, request_id) : MORTISE_OK;
}
std::int32_t sleep(void* self, mortise_call* call, std::int32_t level) noexcept {
  const Native& n = of(self);
  return MORTISE_HAS(n.engine, sleep) ? n.engine->sleep(n.self, call, level) : MORTISE_OK;
}
std::int32_t wake(void* self, mortise_call* call) noexcept {
  const Native& n = of(self);
  return MORTISE_HAS(n.engine, wake) ? n.engine->wake(n.self, call) : MORTISE_OK;
}

// The weights are the engine's own: no begin_update, update_weight, end_update.
constexpr Vtable vtable = {sizeof(Vtable), 0,       create, destroy, get_extension, set_version, nullptr,
                           nullptr,        nullptr, submit, poll,    abort,         sleep,       wake};

const mortise_descriptor native = {sizeof(mortise_descriptor),
                                   MORTISE_FLAG_NEEDS_ENGINE,
                                   MORTISE_KIND_ROLLOUT_BACKEND,
                                   "native",
                                   "the engine's own generator, in this process",
                                   nullptr,
                                   MORTISE_COUPLING_TOKEN,
                                   0,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   &vtable,
                                   nullptr,
                                   nullptr};

}  // namespace

MORTISE_DESCRIPTOR(native)
