// Reading structs of the C ABI that may be older or newer than ours (growth rules R1-R9 of sdk/include/mortise/abi.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace mortise {

// A copy of *ptr in today's layout: fields that the other side does not have are zero.
template <class T>
T read_abi_struct(const T* ptr) {
  T out{};
  std::memcpy(static_cast<void*>(&out), ptr, std::min<size_t>(sizeof(T), ptr->struct_size));
  return out;
}

// An empty struct for the other side to read.
template <class T>
T make_abi_struct() {
  T out{};
  out.struct_size = sizeof(T);
  return out;
}

// The slot through a type without noexcept. A call through it may throw, so the guard can catch the exceptions of a
// careless pack. A call through the noexcept type would end the program.
template <class R, class... Args>
auto catchable(R (*slot)(Args...) noexcept) -> R (*)(Args...) {
  return slot;
}

}  // namespace mortise
