// How a script starts a training: which of its commands it is, which words are the trainer's arguments, and how many
// processes the launcher in front of them starts. Batch sizes of TRL and ms-swift count per process.
//
// Launchers: accelerate launch, torchrun (python -m torch.distributed.run), deepspeed, and ms-swift's own, which reads
// NPROC_PER_NODE and NNODES. Private to this room. Threading: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "import/shell.h"

namespace mortise {

struct PeerSetting;

struct Launch {
  std::optional<int64_t> processes;  // nothing: the script does not start more than one, or does not say how many
  std::string how;                   // "accelerate launch --num_processes 8"; "" without a launcher
  std::string unknown;               // why the number is not known; "" if it is
};

struct TrainingCommand {
  std::string program;  // the script or module that trains: "verl.trainer.main_ppo"; "" without one
  std::vector<ShellWord> arguments;
  Launch launch;
  size_t num_others = 0;  // further commands of the script that train
};

// `dotted`: verl, whose arguments are key=value.
TrainingCommand find_training(const ShellScript& script, bool dotted);

// `trl grpo` accepts the options of accelerate among its own. They are removed from the settings.
void take_launch_settings(std::vector<PeerSetting>& settings, Launch& launch);

}  // namespace mortise
