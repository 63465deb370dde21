// What the commands of `mortise checkpoint` share. cmd_checkpoint.cpp calls them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "commands.h"
#include "foundation/formats/json.h"

namespace mortise {

// The checkpoint at `path`: the folder itself, or the newest complete one of a run's folder. It is verified and open.
Result<Checkpoint> open_checkpoint(Env& env, const Path& path);

// A value that two checkpoints do not share; "" where one of them has none.
struct ChangedText {
  std::string before, after;
};

// How the numbers of a tensor differ.
struct ChangedTensor {
  std::string name;  // a tensor of the state ("actor.optim/...") or of the model ("huggingface/...")
  std::string note;  // why the numbers cannot be compared: another shape, or one checkpoint lacks the tensor
  int64_t num_numbers = 0;
  int64_t num_different = 0;
  double max_abs_difference = 0.0;  // NaN if one side is not finite where the other is
};

struct CheckpointDifferences {
  std::map<std::string, ChangedText> settings;  // "actor.optim.lr"
  std::map<std::string, ChangedText> plugins;   // "reward match" -> pack, version and hash
  std::map<std::string, ChangedText> state;     // scalars, "run/step"
  std::vector<ChangedTensor> tensors;           // those that differ, by name
  int64_t num_tensors = 0;                      // all that were compared

  [[nodiscard]] bool same() const { return settings.empty() && plugins.empty() && state.empty() && tensors.empty(); }
};

Result<CheckpointDifferences> compare_checkpoints(Env& env, const Checkpoint& before, const Checkpoint& after);
[[nodiscard]] Json differences_json(const CheckpointDifferences& differences);
void print_differences(const CheckpointDifferences& differences, std::ostream& out);

}  // namespace mortise
