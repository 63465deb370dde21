// Seals for memory that a program maps from a descriptor. Thread rule: pure functions.
#pragma once

#include <chrono>

namespace mortise {

inline constexpr std::chrono::milliseconds kSealTime{60'000};

// Sets the seals (F_SEAL_*) of the memfd `fd`; false with errno where that fails. The kernel refuses F_SEAL_WRITE with
// EBUSY while anyone still holds a page of the file, which a busy machine does for moments after the last write. So
// EBUSY is tried again until `time` is over.
bool seal_memory(int fd, int seals, std::chrono::milliseconds time = kSealTime);

}  // namespace mortise
