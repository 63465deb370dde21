// Slurm's short form of a list of hosts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mortise {

// The first host of SLURM_JOB_NODELIST: "node[07-12,20],login1" -> "node07". Nothing if the text is malformed.
std::optional<std::string> first_slurm_host(std::string_view list);

}  // namespace mortise
