// What only the two files that include c10d's headers see.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dist/gloo/c10d_store.h"

namespace mortise {

struct C10dStore::Handle {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace mortise
