// Why a setting of another framework changes nothing here, in words that several tables of rules use. Constant data.
#pragma once

#include <string_view>

namespace mortise::reasons {

inline constexpr std::string_view kEngine = "Mortise samples in the trainer's process, on its own weights";
inline constexpr std::string_view kOwnEngine =
    "Mortise samples in the trainer's process; to sample on servers that you start, import with "
    "--servers http://HOST:PORT (docs/servers.md)";
inline constexpr std::string_view kServersEngine = "the command lines of the servers decide";
inline constexpr std::string_view kMemory = "trades memory for time; numbers do not change";
inline constexpr std::string_view kPrecision =
    "Mortise computes in model.dtype (float32), which rounds less; with bfloat16 it computes as they do";
inline constexpr std::string_view kFourBits =
    "Mortise reads weights in four bits but does not quantize: let bitsandbytes save the model with load_in_4bit, "
    "and name that folder as the model";
inline constexpr std::string_view kQuantization = "Mortise does not quantize weights";
inline constexpr std::string_view kKernels = "the same formulas in other kernels";
inline constexpr std::string_view kPadding = "rows are always packed without padding";
inline constexpr std::string_view kRowBound = "data.max_prompt_length and data.max_response_length bound a row";
inline constexpr std::string_view kSpeed = "changes memory and speed only";
inline constexpr std::string_view kHydra = "used only by Hydra";
inline constexpr std::string_view kPython = "Python code is not loaded";
inline constexpr std::string_view kWhereItRuns = "changes where and how the work runs, not what is computed";
inline constexpr std::string_view kRanks =
    "batch sizes are those of the whole run; `mortise launch --nproc N` starts N processes (docs/ranks.md)";
inline constexpr std::string_view kMismatch =
    "corrects the difference between vLLM's log-probs and the trainer's; here both are the "
    "same weights and code, and the ratio is 1";

}  // namespace mortise::reasons
