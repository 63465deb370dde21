// What to do next, for errors that several rooms report in the same words. Constant data.
#pragma once

namespace mortise::hints {

inline constexpr const char* kDamagedCheckpoint = "this checkpoint is damaged; resume from an earlier one";
inline constexpr const char* kOneBuildOfRanks = "start all ranks from one build of Mortise with the same settings";
inline constexpr const char* kOneBuildOfWorkers = "install mortise and mortise-worker of one build";
inline constexpr const char* kSharedDisk = "set trainer.default_local_dir to a folder on a disk that all ranks share";

}  // namespace mortise::hints
