// What host extensions (mortise.generate/1, mortise.score_model/1) share: errors of the engine as statuses of the ABI.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "foundation/base/result.h"
#include "mortise/host.h"

namespace mortise {

inline int32_t extension_fail(const mortise_host* host, mortise_call* call, int32_t code, const std::string& text) {
  return host->fail(call, code, {text.data(), text.size()});
}

inline int32_t status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kData:
      return MORTISE_INVALID_ARGUMENT;
    case ErrorKind::kConfig:
      return MORTISE_FAILED_PRECONDITION;
    case ErrorKind::kNumerics:
      return MORTISE_DATA_LOSS;
    case ErrorKind::kSignal:
      return MORTISE_CANCELLED;
    default:
      return MORTISE_INTERNAL;
  }
}

// body() -> Result<>. Nothing thrown crosses the border; `what` is who ran out of memory. data_status: of errors of
// kind kData, which are the caller's arguments unless the call is about files; read when body() is done.
template <class Body>
int32_t guard_extension(const mortise_host* host, mortise_call* call, const char* what, const Body& body,
                        const int32_t& data_status = MORTISE_INVALID_ARGUMENT) noexcept {
  try {
    const Result<> result = body();
    if (result.ok()) return MORTISE_OK;
    const ErrorKind kind = result.error().kind;
    return extension_fail(host, call, kind == ErrorKind::kData ? data_status : status_of(kind),
                          result.error().to_string());
  } catch (const std::bad_alloc&) {
    return extension_fail(host, call, MORTISE_RESOURCE_EXHAUSTED, std::string("out of memory in ") + what);
  } catch (const std::exception& e) {
    return extension_fail(host, call, MORTISE_INTERNAL, e.what());
  }
}

}  // namespace mortise
