/* Host extension mortise.generate/1: the engine's own generator on the weights that are being trained.
 *
 * host->get_extension(MORTISE_EXT_GENERATE) is a `const mortise_rollout_backend_vtable*`, or null in a process without
 * a model. It is there from `create` on of a plugin with MORTISE_FLAG_NEEDS_ENGINE. Use it like any rollout backend:
 * create, submit, poll, destroy.
 */
#ifndef MORTISE_EXT_GENERATE_H_
#define MORTISE_EXT_GENERATE_H_

#include "../kinds/rollout_backend.h"

#define MORTISE_EXT_GENERATE "mortise.generate/1"

#endif /* MORTISE_EXT_GENERATE_H_ */
