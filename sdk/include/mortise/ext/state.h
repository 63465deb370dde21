/* Plugin extension mortise.state/1: what an instance must keep across a resume.
 *
 * vtable->get_extension(self, MORTISE_EXT_STATE) returns a `const mortise_state*`. The plugin chooses the format of the
 * bytes; a later version of the plugin must read or refuse them. Every checkpoint saves them; they are loaded right
 * after create.
 */
#ifndef MORTISE_EXT_STATE_H_
#define MORTISE_EXT_STATE_H_

#include "../host.h"

#define MORTISE_EXT_STATE "mortise.state/1"

typedef struct mortise_state_sink {
  uint32_t struct_size;
  uint32_t flags;
  void* context;
  /* Appends a copy; may be called many times. From the thread that runs the slot, until the slot returns. */
  void (*write)(void* context, mortise_bytes bytes) MORTISE_NOEXCEPT;
} mortise_state_sink;

typedef struct mortise_state {
  uint32_t struct_size;
  uint32_t flags;
  /* Mandatory. Writes everything that `load` needs to `sink`; called between two slot calls. A failure fails the
   * checkpoint, which stops the run. [control] */
  int32_t (*save)(void* self, mortise_call* call, const mortise_state_sink* sink) MORTISE_NOEXCEPT;
  /* Mandatory. Called at most once, right after create, with all bytes that `save` wrote. Returns MORTISE_DATA_LOSS for
   * bytes that it cannot read; the run then does not start. [control] */
  int32_t (*load)(void* self, mortise_call* call, mortise_bytes bytes) MORTISE_NOEXCEPT;
} mortise_state;

#endif /* MORTISE_EXT_STATE_H_ */
