// What whole runs with model.device say and share.
#pragma once

#include <string>

#include "program.h"
#include "run_bits.h"
#include "support/test_device.h"

namespace mortise::test {

inline const std::string kAsDevice = "model.device=" + test_device() + " ";
inline const std::string kTold = tests_gpu() ? "device: cuda:" : "device: the CPU, with the code of a device";
inline const std::string kFew =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=4 trainer.total_training_steps=3 "
    "trainer.save_freq=1 trainer.logger='[]' actor.use_kl_loss=true ";

// Why two ranks of devices cannot run here; empty if they can. NCCL wants a GPU for each rank.
inline std::string why_not_two_ranks() {
  if (!tests_gpu()) return "";
  if (test_device() != "cuda") return test_device() + " is one GPU; --device cuda tests two ranks";
  const TempDir dir;
  const Outcome second =
      run("python3 " + std::string(MORTISE_SOURCE_DIR) + "/apps/dev/device_report.py ask cuda:1", dir.path());
  constexpr int kNoSuchGpu = 13;
  EXPECT_TRUE(second.code == 0 || second.code == kNoSuchGpu) << second.output;
  return second.code == kNoSuchGpu ? "two ranks need two GPUs: " + second.output : "";
}

}  // namespace mortise::test
