// The structs and arrays of one call of a slot, in guarded memory. Names are for the text of a fault.
//
// `tail_bytes`: bytes that a newer host adds to structs. Threading: one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "conformance/guarded_memory.h"

namespace mortise::check {

class GuardedArguments {
 public:
  explicit GuardedArguments(size_t tail_bytes) : tail_bytes_(tail_bytes) {}

  template <class T>
  T* make(const char* name) {
    GuardedMemory& memory = memory_.emplace_back(name, sizeof(T) + tail_bytes_, alignof(T));
    std::memset(memory.data(), 0x5D, memory.size());
    T* out = memory.as<T>();
    *out = T{};
    out->struct_size = static_cast<uint32_t>(memory.size());
    return out;
  }
  template <class T>
  const T* array(const std::string& name, std::span<const T> values) {
    GuardedMemory& memory = memory_.emplace_back(name, values.size_bytes(), alignof(T));
    if (!values.empty()) std::memcpy(memory.data(), values.data(), memory.size());
    arrays_.push_back(&memory);
    return memory.as<T>();
  }
  template <class T>
  const T* array(const std::string& name, const std::vector<T>& values) {
    return array(name, std::span<const T>(values));
  }
  GuardedMemory& output(const char* name, size_t bytes) { return memory_.emplace_back(name, bytes, 8); }

  // Arrays become read-only. Structs and outputs do not.
  void protect_arrays() {
    for (GuardedMemory* memory : arrays_) memory->make_read_only();
  }
  // For a call that has no outputs in memory of the host.
  void protect_all() {
    for (GuardedMemory& memory : memory_) memory.make_read_only();
  }

 private:
  size_t tail_bytes_;
  std::deque<GuardedMemory> memory_;
  std::vector<GuardedMemory*> arrays_;
};

}  // namespace mortise::check
