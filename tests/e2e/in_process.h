// Whole runs inside the test's process, on an Env of its choice, so that the operations on the disk can be counted and
// made to fail.
#pragma once

#include <string>
#include <vector>

#include "run_bits.h"
#include "support/fault_env.h"
#include "train/loop/sft.h"
#include "train/loop/trainer.h"

namespace mortise::test {

// Relative paths of settings start at the working folder.
class InFolder {
 public:
  explicit InFolder(const Path& dir) : before_(std::filesystem::current_path()) { std::filesystem::current_path(dir); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() { std::filesystem::current_path(before_); }

 private:
  Path before_;
};

// A run of TinyTask's rl.toml of so many steps, in the working folder.
inline Result<TrainSummary> train_on(Env& env, const std::string& out, int64_t num_steps,
                                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"trainer.default_local_dir=" + out, "trainer.rollout_data_dir=" + out + "/dump",
                                    "trainer.logger=[]", "trainer.total_training_steps=" + std::to_string(num_steps),
                                    "trainer.max_actor_ckpt_to_keep=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  const LoadedConfig config = TRY(load_config(default_env(), "rl.toml", settings));
  return train(env, config, {});
}

// The same of sft.toml.
inline Result<TrainSummary> sft_on(Env& env, const std::string& out, int64_t num_steps,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"trainer.default_local_dir=" + out, "trainer.logger=[]",
                                    "sft.total_training_steps=" + std::to_string(num_steps),
                                    "trainer.max_actor_ckpt_to_keep=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  const LoadedConfig config = TRY(load_config(default_env(), "sft.toml", settings));
  return TRY(sft(env, config, {})).train;
}

// The place (1-based) of the operation by which `latest` names a checkpoint.
inline int64_t announcement_of(const FaultEnv& env, const std::string& checkpoint) {
  const std::vector<std::string>& all = env.operations();
  bool stands = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].starts_with("rename ")) continue;
    stands = stands || all[i].ends_with("/" + checkpoint);
    if (stands && all[i].ends_with("/latest")) return static_cast<int64_t>(i) + 1;
  }
  ADD_FAILURE() << "there never was a " << checkpoint;
  return 1;
}

}  // namespace mortise::test
