// The environment variables that workers get: a list of harmless names, and what the config adds.
//
// A trainer's environment holds tokens (HF_TOKEN, WANDB_API_KEY, cloud keys) that no reward needs by default. Programs
// that a reward starts inherit the worker's environment. Thread rule: no thread may change the environment meanwhile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mortise {

// Names that the worker finds in these variables, separated by ',': the variables from the config, whose values are
// secrets, and the trainer's variables that the worker lacks, for hints in errors.
inline constexpr const char* kAddedNames = "MORTISE_ENV_ADDED";
inline constexpr const char* kWithheldNames = "MORTISE_ENV_WITHHELD";

// Whether rewards get a variable without being asked: paths, locale, threads, devices, caches, certificates.
[[nodiscard]] bool is_harmless_variable(std::string_view name);

// "NAME=value" for a worker, out of `all` (as environ): the harmless ones and those named in `added`. A proxy's address
// with a login in it is withheld too.
[[nodiscard]] std::vector<std::string> worker_environment(const char* const* all,
                                                          const std::vector<std::string>& added);

}  // namespace mortise
