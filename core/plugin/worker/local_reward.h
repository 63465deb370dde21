// A reward in this process. It is called with all rows at once, or, if it rewards single rows and declares
// MORTISE_FLAG_CONCURRENT, on several threads.
//
// The pieces for threads depend only on the number of rows, so results do not depend on the threads. It does not copy
// the rows. Threading: one thread at a time.
#pragma once

#include <memory>

#include "plugin/worker/reward_function.h"

namespace mortise {

[[nodiscard]] std::unique_ptr<RewardFunction> make_local_reward(Reward reward);

}  // namespace mortise
