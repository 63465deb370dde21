// A stop signal that another process of the same run got. See signal.h.
#pragma once

namespace mortise {

// stop_requested() from now on. The first signal that this process gets itself is still a request, and does not end it.
// 0 changes nothing. Thread rule: any thread.
void follow_stop_signal(int signal);

}  // namespace mortise
