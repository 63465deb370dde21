/* Plugin extension mortise.device/1: the devices on which a plugin's tensors may lie.
 *
 * descriptor->get_extension(MORTISE_EXT_DEVICE) returns a `const mortise_device*`. A plugin without it gets tensors in
 * host memory alone, and a host whose tensors are elsewhere copies them for each call. A host refuses a plugin that
 * lists none of the devices that it can give.
 *
 * All tensors of a call are on one device: device_type and device_id of each say which. Layouts, texts and columns stay
 * in host memory. On MORTISE_CUDA the inputs are ready on host->stream(call), outputs count as written at that place of
 * the stream, and the plugin never waits for the whole device. A metric is a number of the host, so a plugin that has
 * metrics waits for its stream. The thread's current CUDA device is what it was when the slot returns.
 * host->alloc gives host memory. A plugin that needs room on the device takes it in the order of the stream
 * (cudaMallocAsync), or keeps it from call to call in its instance.
 */
#ifndef MORTISE_EXT_DEVICE_H_
#define MORTISE_EXT_DEVICE_H_

#include "../host.h"

#define MORTISE_EXT_DEVICE "mortise.device/1"

/* eg: both: num_device_types 2, device_types {MORTISE_CPU, MORTISE_CUDA}. */
typedef struct mortise_device {
  uint32_t struct_size;
  uint32_t flags;              /* 0 */
  uint32_t num_device_types;   /* 4 unused bytes follow */
  const int32_t* device_types; /* MORTISE_CPU, MORTISE_CUDA; each once */
} mortise_device;

#endif /* MORTISE_EXT_DEVICE_H_ */
