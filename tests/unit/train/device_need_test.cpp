// What a run needs of its device's memory while it starts, samples and learns.
#include "train/run/device_need.h"

#include <gtest/gtest.h>

#include <string>

namespace mortise {
namespace {

// Losses and the program itself stay on the host.
TEST(DeviceNeed, ADeviceHasEveryModelAndWhatItDoesNow) {
  MemoryEstimate memory;
  double MemoryEstimate::*const on_device[] = {&MemoryEstimate::weights, &MemoryEstimate::reference,
                                               &MemoryEstimate::critic, &MemoryEstimate::teacher,
                                               &MemoryEstimate::reward_models};
  double bytes = 1.0;
  for (double MemoryEstimate::*const part : on_device) memory.*part = bytes *= 2.0;
  memory.program = 1000.0;
  RunConfig config;
  constexpr double kModels = 2.0 + 4.0 + 8.0 + 16.0 + 32.0;
  EXPECT_EQ(device_need(memory, config, 1).most(), kModels);
  memory.activations = 3.0;
  memory.started = 5.0;
  EXPECT_EQ(device_need(memory, config, 1).most(), kModels + 5.0) << "no pass runs while a run starts";
  memory.kv_cache = 7.0;
  EXPECT_EQ(device_need(memory, config, 1).bytes(MemoryUse::kUpdates), kModels + 7.0 + 3.0);
  EXPECT_EQ(device_need(memory, config, 1).bytes(MemoryUse::kSampling), kModels + 7.0);
  memory.gradients = 11.0;
  EXPECT_EQ(device_need(memory, config, 1).bytes(MemoryUse::kUpdates), kModels + 7.0 + 3.0 + 11.0);
  EXPECT_EQ(device_need(memory, config, 1).bytes(MemoryUse::kSampling), kModels + 7.0 + 11.0)
      << "until the next update";
  config.ranks.zero_stage = 1;
  EXPECT_EQ(device_need(memory, config, 2).bytes(MemoryUse::kSampling), kModels + 7.0) << "a step frees them";
  memory.expert_pass = 17.0;
  EXPECT_EQ(device_need(memory, config, 2).bytes(MemoryUse::kSampling), kModels + 7.0 + 17.0);
  EXPECT_EQ(device_need(memory, config, 2).bytes(MemoryUse::kUpdates), kModels + 7.0 + 3.0 + 11.0);
  memory.expert_pass = 0.0;
  memory.gradients = 0.0;
  memory.graphs = 13.0;
  config.rollout.sleep_while_training = true;
  EXPECT_EQ(device_need(memory, config, 1).bytes(MemoryUse::kUpdates), kModels + 3.0) << "cache and graphs are freed";
}

TEST(DeviceNeed, NamesTheKeysThatLowerAPart) {
  MemoryEstimate memory;
  const auto way = [&](const RunConfig& config, MemoryUse use, const std::string& part) {
    const MemoryNeed need = device_need(memory, config, 1);
    for (const MemoryPart& one : need.parts(use))
      if (one.name == part) return one.lowered_by;
    return std::string("no such part");
  };
  RunConfig config;
  EXPECT_EQ(way(config, MemoryUse::kSampling, "KV cache"), "lower rollout.kv_cache_mib");
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "KV cache"), "set rollout.sleep_while_training = true");
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "optimizer"), "set actor.optim.offload = \"file\"");
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "reference"), "set ref.offload = \"file\"");
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "activations"),
            "lower actor.ppo_max_token_len_per_gpu or set model.enable_gradient_checkpointing = true");
  config.actor.optim.offload = StateOffloading::kFile;
  config.model.enable_gradient_checkpointing = true;
  config.model.lora_rank = 8;
  config.actor.ppo_micro_batch_size_per_gpu = 2;
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "optimizer"), "") << "it is in files already";
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "reference"), "") << "an adapter's base is no model of its own";
  EXPECT_EQ(way(config, MemoryUse::kUpdates, "activations"), "lower actor.ppo_micro_batch_size_per_gpu");
}

}  // namespace
}  // namespace mortise
