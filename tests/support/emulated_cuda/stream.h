// What a pack that was built for the emulator of CUDA gets as its stream: memory of the device that the test plays, and
// the way to unlock it. The pack is a library of its own, so that these are functions of the test.
#pragma once

#include <cstddef>

namespace mortise::test {

struct EmulatedStream {
  void* (*allocate)(size_t bytes);
  void (*release)(void* data);
  void (*open)();  // the host may use the memory until close()
  void (*close)();
  void (*launched)();  // a kernel starts
};

}  // namespace mortise::test
