// The memory that libtorch gives to losses on a device, with tensors of the CPU in place of those of a GPU.
#include "train/run/plugin_memory.h"

#include "support/temp_dir.h"
#include "unit/plugin/device_rows.h"

namespace mortise {
namespace {

TEST(PluginMemoryTest, BytesGoThereAndAPartComesBack) {
  const auto device = plugin_device(at::kCPU);
  EXPECT_EQ(device->type(), MORTISE_CUDA);
  EXPECT_EQ(device->index(), 0);
  ASSERT_OK_AND_ASSIGN(const auto bytes, device->mirror(256));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes->host()) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes->device()) % 64, 0U);
  ASSERT_NE(bytes->host(), bytes->device());
  EXPECT_EQ(bytes->stream(), nullptr) << "the CPU has none";
  for (size_t i = 0; i < 256; ++i) bytes->host()[i] = std::byte(i);
  ASSERT_OK(bytes->send(256));
  for (size_t i = 0; i < 256; ++i) {
    ASSERT_EQ(bytes->device()[i], std::byte(i));
    bytes->device()[i] = std::byte(255 - i);
  }
  ASSERT_OK(bytes->receive(64, 128));
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(bytes->host()[i], std::byte(i >= 64 && i < 192 ? 255 - i : i)) << i;
}

TEST(PluginMemoryTest, LossesComputeInIt) {
  const auto device = plugin_device(at::kCPU);
  RunKey key;
  key.device = device.get();
  for (const char* name : {"vanilla", "gspo", "decoupled"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const test::Computed host, test::loss_of(name, {}));
    ASSERT_OK_AND_ASSIGN(const test::Computed there, test::loss_of(name, key));
    test::expect_same(host, there);
  }
  ASSERT_OK_AND_ASSIGN(const test::Computed host, test::kl_of("k3", {}));
  ASSERT_OK_AND_ASSIGN(const test::Computed there, test::kl_of("k3", key));
  test::expect_same(host, there);
}

}  // namespace
}  // namespace mortise
