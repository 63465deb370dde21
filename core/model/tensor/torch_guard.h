// The border to libtorch: what it throws becomes an Error of kind kInternal (out of memory says so).
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "foundation/base/result.h"
#include "model/tensor/memory_need.h"

namespace mortise {

// body() returns a Result; exceptions of libtorch and of allocation become an Error. `what` names the operation, and `use`
// what a device takes memory for.
template <class Body>
auto guard_torch(const std::string& what, const Body& body, MemoryUse use = MemoryUse::kUpdates) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {  // only a GPU throws it
    return full_memory_error(what + ": ", use, error);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool memory = text.find("allocate") != std::string::npos || text.find("memory") != std::string::npos;
    return Error{ErrorKind::kInternal,
                 what + ": " + text,
                 {},
                 memory ? "use a smaller model, smaller micro-batches, or free memory" : "please report this"};
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::kInternal, what + ": out of memory", {}, "use a smaller model or free memory"};
  } catch (const std::exception& error) {
    return Error{ErrorKind::kInternal, what + ": " + error.what(), {}, "please report this"};
  }
}

}  // namespace mortise
