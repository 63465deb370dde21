// A device for tests: its memory cannot be read or written by the host, as that of a GPU. It stands in for CUDA in tests of
// what a device run does at its borders.
//
// libtorch calls such a device "privateuseone". Its operators copy their inputs to the host, run there and copy back. The
// pages of its memory are locked except while libtorch copies to or from them, so that a kernel or a memcpy of Mortise on a
// device tensor ends the test with a segmentation fault. Operators that mix tensors of host and device are refused, as CUDA
// refuses them.
// There are several, so that each rank has one of its own. Backward runs in a thread for each of them, as for GPUs.
// Thread rule: any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace mortise::test {

inline constexpr int kNumLockedDevices = 4;

// Registers them once in a process. All have the same kind of memory.
c10::Device locked_device(int index = 0);

// Is this an address of its memory?
bool is_on_locked_device(const void* address);

// Is one of them the current device of this thread, as a kernel of CUDA needs it? It is so only within a guard of c10.
bool locked_device_is_current();

// Between the two the host can reach the memory, as a kernel of the device can.
void open_locked_memory();
void close_locked_memory();

// Bytes of the tensors that are there, in whole pages.
size_t bytes_on_locked_device();
// How many operators have run on it.
long operators_on_locked_device();
// How often the host had to wait for it: copies to the host, and operators whose result has a size that only the device knows.
long waits_for_locked_device();

}  // namespace mortise::test
