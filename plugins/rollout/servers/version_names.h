// The names that a run gives to its versions on a server: decimal numbers, which tell it from any other run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace mortise {

// The last nine digits are the version, those before them the run's mark: 482913000000012 is version 12 of run 482913.
// Servers take and give back a name as a text or as a number, and this is exact as both.
inline constexpr std::int64_t kMarkUnit = 1'000'000'000;

// The mark of this run: six digits that are the same for all its processes and pools. 0: the ranks of this run have
// nothing in common that another run lacks, and names are plain versions.
std::int64_t run_mark();
// Is this process one of several ranks of a run?
bool is_one_of_ranks();
// The value of an environment variable; empty: it is not set.
using Variable = std::function<std::string(const char* name)>;
std::int64_t make_run_mark(const Variable& variable);

// Precondition: 0 <= version < kMarkUnit.
inline std::int64_t version_name(std::int64_t version) { return run_mark() * kMarkUnit + version; }
inline std::int64_t mark_of(std::int64_t name) { return name < 0 ? 0 : name / kMarkUnit; }
inline std::int64_t version_of(std::int64_t name) { return name < 0 ? -1 : name % kMarkUnit; }

}  // namespace mortise
