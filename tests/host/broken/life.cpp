// create, destroy and get_extension of the broken plugins, with what goes wrong there.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "plugins.h"

extern "C" __attribute__((visibility("hidden"))) const mortise_descriptor* const __start_mortise_plugins[];
extern "C" __attribute__((visibility("hidden"))) const mortise_descriptor* const __stop_mortise_plugins[];
const mortise_pack mortise_pack_v1 = {
    sizeof(mortise_pack),    MORTISE_PACK_MINOR,
    MORTISE_MIN_HOST_MINOR,  uint32_t(__stop_mortise_plugins - __start_mortise_plugins),
    MORTISE_PACK_ID,         MORTISE_PACK_VERSION,
    __start_mortise_plugins, nullptr};

namespace broken {
namespace {

const mortise_param kScale = {
    sizeof(mortise_param), MORTISE_PARAM_F64, "scale", "1.0", "factor of the result", 0, 0, 0, 0, nullptr, 0, 0};
const mortise_param kMode = {
    sizeof(mortise_param), MORTISE_PARAM_TEXT, "mode", "plain", "how", 0, 0, 0, 0, nullptr, 0, 0};

int num_alive = 0;  // instances of contract_create_destroy

// The side effects of a careless create.
void litter(const Instance& instance) {
  if (instance.is("hygiene_signals")) ::signal(SIGUSR1, SIG_IGN);
  if (instance.is("hygiene_locale")) std::setlocale(LC_ALL, "C.UTF-8");
  if (instance.is("hygiene_directory") && ::chdir("/") != 0) std::abort();
  if (instance.is("hygiene_environment")) ::setenv("BROKEN_PLUGIN", "was here", 1);
  if (instance.is("hygiene_umask")) ::umask(077);
  if (instance.is("hygiene_floating_point")) std::fesetround(FE_UPWARD);
  if (instance.is("hygiene_descriptors") && ::open("/dev/null", O_RDONLY) < 0) std::abort();
  if (instance.is("hygiene_threads")) std::thread([] { ::sleep(100); }).detach();
  if (instance.is("hygiene_children") && ::fork() == 0) {
    ::sleep(100);
    ::_exit(0);
  }
  if (instance.is("hygiene_output")) std::puts("hello from a plugin");
  if (instance.is("hygiene_create_growth")) *static_cast<volatile char*>(std::malloc(64)) = 1;  // it leaks
}

int32_t read_params(Instance& instance, mortise_call* call) {
  const mortise_host* host = instance.host;
  mortise_text mode = {nullptr, 0};
  const int32_t code = host->param_text(call, "mode", &mode);
  if (instance.is("negotiation_no_params")) instance.calls = mode.data[0] == 'x' ? 1 : 0;
  if (code != MORTISE_OK || host->param_f64(call, "scale", &instance.scale) != MORTISE_OK)
    return host->fail(call, MORTISE_NOT_FOUND, text("a declared parameter has no value"));
  instance.mode = instance.is("negotiation_text_params") ? std::string(mode.data) : std::string(mode.data, mode.size);
  double unknown = 0;
  if (instance.is("negotiation_declared_params")) host->param_f64(call, "temperature", &unknown);
  return MORTISE_OK;
}

// The slot that a host of the future has behind today's last.
bool has_future_slot(const mortise_host* host) {
  const char* end = reinterpret_cast<const char*>(host) + sizeof(mortise_host);
  return *reinterpret_cast<void* const volatile*>(end) != nullptr;
}

int32_t save(void* self, mortise_call*, const mortise_state_sink* sink) noexcept {
  sink->write(sink->context, {&of(self).calls, sizeof(int64_t)});
  return MORTISE_OK;
}
int32_t load(void* self, mortise_call* call, mortise_bytes bytes) noexcept {
  Instance& instance = of(self);
  if (instance.is("contract_state_round_trip")) return MORTISE_OK;  // as if nothing had been saved
  if (bytes.size != sizeof(int64_t) && !instance.is("contract_state_damaged"))
    return instance.host->fail(call, MORTISE_DATA_LOSS, text("the saved state is damaged"));
  std::memcpy(&instance.calls, bytes.data, bytes.size < sizeof(int64_t) ? bytes.size : sizeof(int64_t));
  return MORTISE_OK;
}
const mortise_state kState = {sizeof(mortise_state), 0, save, load};

}  // namespace

const mortise_param* const params[2] = {&kScale, &kMode};
thread_local bool is_home = false;  // set by contract_any_thread

int32_t make(const mortise_host* host, mortise_call* call, void** self, const char* fault) noexcept {
  auto* instance = new (std::nothrow) Instance;
  if (instance == nullptr) return host->fail(call, MORTISE_RESOURCE_EXHAUSTED, text("out of memory"));
  instance->host = host;
  instance->fault = fault;
  int32_t code = read_params(*instance, call);
  if (instance->is("negotiation_older_host") && has_future_slot(host)) instance->calls = 1;
  if (instance->is("negotiation_newer_host") && host->struct_size != sizeof(mortise_host))
    code = host->fail(call, MORTISE_FAILED_PRECONDITION, text("this is not the host that I was built for"));
  if (instance->is("negotiation_no_extensions")) {
    const void* table = host->get_extension(MORTISE_EXT_GENERATE);
    instance->calls = *static_cast<const volatile uint32_t*>(table);
  }
  if (instance->is("contract_create_destroy") && num_alive++ > 0)
    code = host->fail(call, MORTISE_ALREADY_EXISTS, text("there can be only one"));
  if (code != MORTISE_OK) {
    delete instance;
    return code;
  }
  is_home = true;
  litter(*instance);
  *self = instance;
  return MORTISE_OK;
}

void destroy(void* self) noexcept {
  if (self == nullptr) return;
  if (of(self).is("contract_create_destroy")) --num_alive;
  delete &of(self);
}

const void* extension(void* self, const char* id) noexcept {
  const Instance& instance = of(self);
  const bool keeps_state = instance.is("fine_state") || std::strncmp(instance.fault, "contract_state", 14) == 0;
  if (keeps_state && std::strcmp(id, MORTISE_EXT_STATE) == 0) return &kState;
  return instance.is("negotiation_unknown_extension") ? &kState : nullptr;
}

}  // namespace broken
