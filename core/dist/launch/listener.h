// Waits for the process that serves the store.
#pragma once

#include <chrono>
#include <string>

namespace mortise {

// True as soon as something listens at this TCP address, false if nothing does within the timeout. c10d's own wait backs
// off, and can take twice its limit.
bool wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace mortise
