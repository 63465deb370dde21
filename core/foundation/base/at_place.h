// at_place(): the error of a callee that does not know what its caller was at, with that place named first.
// Thread rule: a free function without state.
#pragma once

#include <string>

#include "foundation/base/result.h"

namespace mortise {

// eg: "run.toml:12:1, reward judge@acme.match 1.0.0 (1a2b3c), create: no such judge".
template <class T>
Result<T> at_place(const std::string& place, Result<T> result) {
  if (!result.ok()) result.error().where = result.error().where.empty() ? place : place + ", " + result.error().where;
  return result;
}

}  // namespace mortise
