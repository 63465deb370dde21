// A reward that is called in this process: with all rows at once, or, where it rewards single rows and says that it may
// be (MORTISE_FLAG_CONCURRENT), on several threads.
//
// What a thread gets at a time depends on the number of rows alone, so results do not depend on the threads. No copy of
// the rows is made. Threading: one thread at a time.
#pragma once

#include <memory>

#include "plugin/worker/reward_function.h"

namespace mortise {

[[nodiscard]] std::unique_ptr<RewardFunction> make_local_reward(Reward reward);

}  // namespace mortise
