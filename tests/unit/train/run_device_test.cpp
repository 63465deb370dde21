// What a dry run says about a GPU that the driver named.
#include "train/run/run_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/device/kernel_table.h"
#include "train/loop/critic.h"
#include "train/run/run_options.h"

namespace mortise {
namespace {

using testing::HasSubstr;

DeviceChoice gpu() {
  DeviceChoice out;
  out.name = {DeviceKind::kCuda};
  out.gpu = GpuFacts{"NVIDIA H200", 9, 0, uint64_t{139} << 30, 1};
  return out;
}

TEST(RunDevice, ADryRunSaysWhatComputesOnTheGpu) {
  LoadedConfig loaded;
  loaded.config.model.device = "cuda";
  const bool has_kernels = why_no_gpu_kernels().empty();  // nvcc was there when this was built
  const std::string line = device_line(loaded, gpu(), 1e9);
  EXPECT_THAT(line, HasSubstr("# device: cuda:0, NVIDIA H200 with 139"));
  EXPECT_THAT(line, HasSubstr(has_kernels ? "# kernels: those of core/cuda, where they can compute\n"
                                          : "# kernels: none of core/cuda, because "));
  EXPECT_EQ(device_json(loaded.config, gpu(), 1e9).at("kernels"), has_kernels);

  loaded.config.model.dtype = ModelDtype::kFloat64;
  EXPECT_THAT(device_line(loaded, gpu(), 1e9),
              HasSubstr("# kernels: none of core/cuda, because model.dtype is \"float64\"\n"));
  EXPECT_EQ(device_json(loaded.config, gpu(), 1e9).at("kernels"), false);
}

TEST(RunDevice, PassesOnAGpuHaveMoreTokensByDefault) {
  RunConfig config;
  config.model.device = "auto";  // the default follows the chosen device, not the key
  for (const auto& [by_operators, tokens] : {std::pair{false, 2048}, {true, 16384}}) {
    EXPECT_EQ(micro_batch_options(config, by_operators).token_budget, tokens);
    EXPECT_EQ(learner_options(config, by_operators).micro_batch.token_budget, tokens);
    EXPECT_EQ(reference_pass_options(config, by_operators).token_budget, tokens);
    EXPECT_EQ(critic_pass_options(config, by_operators).token_budget, tokens);
  }
  config.actor.ppo_max_token_len_per_gpu = 4000;
  EXPECT_EQ(micro_batch_options(config, true).token_budget, 4000);
}

}  // namespace
}  // namespace mortise
