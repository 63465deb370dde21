// Every cap of the engine in one place: what an input may cost at most before it is refused by name.
// Sizes are bytes. A limit that a user may raise is a config key instead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parse/limits.h"

namespace mortise::limits {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

inline constexpr uint64_t kMaxTextFileBytes = 512 * kMiB;            // JSON, TOML, templates read in one piece
inline constexpr uint64_t kMaxConfigFileBytes = 4 * kMiB;            // one TOML file
inline constexpr int kMaxConfigIncludeDepth = 16;                    // base = "..." chains
inline constexpr int kMaxJsonDepth = parse::kMaxJsonDepth;           // nested arrays and objects
inline constexpr uint64_t kMaxJsonlLineBytes = 64 * kMiB;            // one data row
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // as the reference reader
inline constexpr size_t kMaxTensorRank = 16;
inline constexpr uint64_t kMaxManifestBytes = 64 * kMiB;
inline constexpr size_t kMaxManifestEntries = 100'000;
inline constexpr size_t kMaxPathBytes = 1024;  // an entry's path in a checkpoint or pack
inline constexpr size_t kMaxMetricNameBytes = 256;
inline constexpr size_t kMaxMetricNames = 20'000;            // a plugin that makes names without end is stopped
inline constexpr size_t kWriteChunkBytes = size_t{4} << 20;  // one write(2), one step of hashing

}  // namespace mortise::limits
