// What only the files that include c10d's headers see.
#pragma once

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <string>

#include "dist/gloo/c10d_store.h"

namespace mortise {

// What an exception of c10d says, without the stack of libtorch.
inline std::string c10d_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

struct C10dStore::Handle {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace mortise
