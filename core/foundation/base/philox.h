// The constants of Philox4x32 (rng.h names the paper). rng.cpp and model/tensor/philox_operators.cpp compute with them.
#pragma once

#include <cstdint>

namespace mortise {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxStep0 = 0x9E3779B9;  // golden ratio
inline constexpr uint32_t kPhiloxStep1 = 0xBB67AE85;  // sqrt(3) - 1

}  // namespace mortise
