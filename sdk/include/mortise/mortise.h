/* All of the plugin ABI. Read abi.h, tensor.h, host.h, pack.h, then the header of your kind. */
#ifndef MORTISE_MORTISE_H_
#define MORTISE_MORTISE_H_

#include "abi.h"
#include "ext/device.h"
#include "ext/generate.h"
#include "ext/reads.h"
#include "ext/row_text.h"
#include "ext/score_model.h"
#include "ext/state.h"
#include "host.h"
#include "kinds/advantage_estimator.h"
#include "kinds/environment.h"
#include "kinds/kl_estimator.h"
#include "kinds/policy_loss.h"
#include "kinds/reward.h"
#include "kinds/rollout_backend.h"
#include "pack.h"
#include "tensor.h"

#endif /* MORTISE_MORTISE_H_ */
