// The files of a checkpoint, and which rank writes which. Rank 0 has the texts; the weight files of huggingface/ are spread
// over all ranks. A model of at least kSmallestRankFile per rank is cut into about as many files as there are ranks.
// Thread rule: as the Communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/writer.h"
#include "learn/optim/parts_to_save.h"
#include "plugin/host/registry.h"
#include "train/loop/parts.h"

namespace mortise {

inline constexpr std::string_view kSettingsFile = "config.resolved.toml";
inline constexpr std::string_view kPackLockFile = "mortise.lock";
inline constexpr int64_t kSmallestRankFile = int64_t{64} << 20;
// What to do if ranks that must have the same numbers differ.
inline constexpr const char* kLeaveRankOut =
    "resume from the last checkpoint without the machine of that rank, whose memory or processor may be faulty";

// What a checkpoint is made from. Borrows all of it.
struct CheckpointSource {
  const RunSettings& run;
  const PluginRegistry& registry;    // for mortise.lock
  const PolicyParts& policy;         // for huggingface/
  const RunProgress& progress;       // the step, and the updates that are done inside one
  const StatefulRegistry& stateful;  // the state
  bool is_spread = false;            // each rank has only a part of the state
};

// The size limit of weight files with which `num_ranks` ranks share `weight_bytes`; 0: they stay one file.
[[nodiscard]] int64_t rank_file_bytes(int64_t weight_bytes, int num_ranks);

// Files of huggingface/ with the ranks that write them. All ranks make the same plan.
struct PolicyPlan {
  std::vector<FolderFile> files;
  std::vector<int> ranks;  // the writer of each file
  // What gives a rank the weights that it writes, one part of the model after another. Null: each rank has all. Writing is a
  // collective then.
  std::unique_ptr<PartsToSave> parts;
  // Every rank, when it has written its files or has none: helps the others until all are written.
  [[nodiscard]] Result<> finish() const { return parts != nullptr ? parts->finish() : Result<>(); }
};
Result<PolicyPlan> plan_policy(const CheckpointSource& source);

// Rank 0 reads texts from the disk for it.
Result<CheckpointRequest> checkpoint_request(const CheckpointSource& source, const PolicyPlan& plan,
                                             const CheckpointPlace& place, StateSnapshot state);

[[nodiscard]] SaveShare save_share(const Communicator& ranks);

// A digest of everything in a checkpoint that all ranks have and any of them may write: the policy, but for weights that
// are spread or split, and the tensors of the state. Ranks with different digests must not write one checkpoint.
Result<std::string> digest_of_shared(const CheckpointSource& source, const StateSnapshot& state);
// The same of what only ranks with the same part of split layers have, for which policy.model->model_part() is not null.
Result<std::string> digest_of_own_part(const CheckpointSource& source, const StateSnapshot& state);

// A collective. The room that the next checkpoint takes on the disk, the files of all ranks together.
Result<uint64_t> measure_next_checkpoint(const CheckpointSource& source);

}  // namespace mortise
