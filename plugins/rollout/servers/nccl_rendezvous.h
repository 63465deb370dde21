// How vLLM's workers learn NCCL's unique id: from the call itself as base64, or from a TCPStore as a pickled object, as
// its StatelessProcessGroup publishes it.
#pragma once

#include <string>

namespace mortise {

inline constexpr const char* kUniqueIdKey = "broadcast_from/0/0";
// Precondition of both: the 128 bytes of ncclGetUniqueId.
std::string pickled_unique_id(const std::string& id);
std::string base64_of(const std::string& bytes);

}  // namespace mortise
