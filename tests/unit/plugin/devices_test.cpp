// mortise.device/1: a plugin that takes tensors of a CUDA device too runs on the CPU; one that takes no others is refused.
#include "plugin/host/devices.h"

#include "plugin/host/kinds/reward.h"
#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

Result<std::vector<int32_t>> types_of(PluginRegistry& registry) {
  const PluginRef ref = TRY(registry.find("reward", "one"));
  const LoadedPlugin loaded = TRY(registry.load(ref));
  return device_types(*loaded.descriptor);
}

TEST(PluginDevicesTest, TheCpuWithoutTheTable) {
  PluginRegistry plain = test::open_registry({"minimal"}), reads = test::open_registry({"reads"});
  ASSERT_OK_AND_ASSIGN(const auto types, types_of(plain));
  EXPECT_THAT(types, ElementsAre(MORTISE_CPU));
  ASSERT_OK_AND_ASSIGN(const auto other, types_of(reads));
  EXPECT_THAT(other, ElementsAre(MORTISE_CPU)) << "it has another extension";
}

TEST(PluginDevicesTest, APluginForBothRunsOnTheCpu) {
  PluginRegistry registry = test::open_registry({"cpu_and_cuda"});
  ASSERT_OK_AND_ASSIGN(const auto types, types_of(registry));
  EXPECT_THAT(types, ElementsAre(MORTISE_CUDA, MORTISE_CPU));
  EXPECT_OK(Reward::create(registry, "one", ordered_json::object(), {}));
}

TEST(PluginDevicesTest, WhoTakesNoHostMemoryIsRefusedWithTheReason) {
  PluginRegistry alone = test::open_registry({"cuda_alone"}), twice = test::open_registry({"cuda_twice"});
  EXPECT_THAT(error_of(Reward::create(alone, "one", ordered_json::object(), {})),
              testing::AllOf(HasSubstr("one@test.cuda_alone"), HasSubstr("does not list the CPU"), HasSubstr("R46")));
  EXPECT_THAT(error_of(Reward::create(twice, "one", ordered_json::object(), {})),
              HasSubstr("lists the device type 2 twice"));
}

}  // namespace
}  // namespace mortise
