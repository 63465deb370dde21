/* Plugin extension mortise.device/1: the devices on which a plugin's tensors may lie.
 *
 * descriptor->get_extension(MORTISE_EXT_DEVICE) returns a `const mortise_device*`. A plugin without it gets tensors in
 * host memory alone, and a host whose tensors are elsewhere copies them for each call. The list has the CPU, each type
 * once, and the plugin takes tensors of every type in it. A host refuses another list. A type that the host does not
 * know or does not give is no fault.
 *
 * All tensors of a call are on one device: device_type and device_id of each say which. Layouts, texts and columns stay
 * in host memory. For tensors on MORTISE_CUDA:
 * - The slot puts its work on host->stream(call). The inputs are ready at the place that the stream has at entry, and
 *   outputs count as written at the place that it has when the slot returns. The plugin need not wait for the stream,
 *   and never waits for the whole device. A metric is a number of the host, so a plugin with metrics waits for its
 *   stream.
 * - The data of inputs and outputs stay valid until the stream has passed the place that it had when the slot returned.
 *   Structs, shapes, layouts and all else in host memory are borrowed until the slot returns, as everywhere.
 * - host->alloc gives host memory, which ends with the slot: it is no source of a copy that may still run then. A
 *   plugin that needs room on the device takes it in the order of the stream (cudaMallocAsync), or keeps it from call
 *   to call in its instance.
 * - Calls of one instance on one device are ordered on the device as they are on the host: they have one stream, or the
 *   host makes the later stream wait for the earlier.
 * - Before `destroy` the host has waited for all work of the instance's calls. `destroy` has no stream.
 * - At entry the thread's current CUDA device is that of the tensors. When the slot returns it is what it was at entry.
 * - A call is never captured into a CUDA graph.
 */
#ifndef MORTISE_EXT_DEVICE_H_
#define MORTISE_EXT_DEVICE_H_

#include "../host.h"

#define MORTISE_EXT_DEVICE "mortise.device/1"

/* eg: both: num_device_types 2, device_types {MORTISE_CPU, MORTISE_CUDA}. */
typedef struct mortise_device {
  uint32_t struct_size;
  uint32_t flags;              /* 0 */
  uint32_t num_device_types;   /* 4 bytes follow that no later field may use: they would not change struct_size */
  const int32_t* device_types; /* MORTISE_CPU, MORTISE_CUDA; each once */
} mortise_device;

#endif /* MORTISE_EXT_DEVICE_H_ */
