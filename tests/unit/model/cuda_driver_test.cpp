// What a machine without a usable GPU is told. A small library stands in for the driver.
#include "model/device/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "model/device/compute_device.h"

namespace mortise {
namespace {

using testing::HasSubstr;

class CudaDriver : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"VERSION", "INIT", "COUNT", "CAPABILITY"}) unsetenv(name_of(name).c_str());
  }
  static std::string name_of(const std::string& answer) { return "FAKE_DRIVER_" + answer; }
  static void answer(const std::string& name, const std::string& value) {
    setenv(name_of(name).c_str(), value.c_str(), 1);
  }
  // The error for cuda:`index`; empty if there is none.
  [[nodiscard]] std::string error(int index = 0, bool needs_bfloat16 = false) const {
    const auto gpu = ask_driver(places_, index, needs_bfloat16);
    return gpu.ok() ? "" : gpu.error().to_string();
  }
  const CudaPlaces places_{MORTISE_FAKE_DRIVER, "/nowhere/lib"};
};

TEST_F(CudaDriver, DescribesTheGpu) {
  const auto gpu = ask_driver(places_, 0, true);
  ASSERT_TRUE(gpu.ok()) << gpu.error().to_string();
  EXPECT_EQ(gpu->name, "Fake GPU");
  EXPECT_EQ(gpu->major, 9);
  EXPECT_EQ(gpu->minor, 0);
  EXPECT_EQ(gpu->memory_bytes, uint64_t{80} << 30);
}

TEST_F(CudaDriver, NoDriver) {
  const auto gpu = ask_driver({"/nowhere/libcuda.so.1", ""}, 0, false);
  ASSERT_FALSE(gpu.ok());
  EXPECT_EQ(gpu.error().kind, ErrorKind::kConfig);
  EXPECT_THAT(gpu.error().to_string(), HasSubstr("no NVIDIA driver was found"));
  EXPECT_THAT(gpu.error().to_string(), HasSubstr("model.device = \"cpu\""));
}

TEST_F(CudaDriver, AnOldDriverIsToldFromItsVersion) {
  answer("VERSION", "12040");
  answer("INIT", "999");  // is not asked
  EXPECT_THAT(error(), HasSubstr("too old: it supports CUDA 12.4, and libtorch needs 13.0"));
}

TEST_F(CudaDriver, NoGpuAndOtherFaults) {
  answer("INIT", "100");
  EXPECT_THAT(error(), HasSubstr("sees no GPU"));
  answer("INIT", "999");
  EXPECT_THAT(error(), HasSubstr("cuInit of the NVIDIA driver failed: unknown error (999)"));
  answer("INIT", "0");
  EXPECT_THAT(error(1), HasSubstr("no GPU number 1: the driver sees 1"));
}

TEST_F(CudaDriver, ArchitecturesWithoutKernels) {
  answer("CAPABILITY", "70");
  EXPECT_THAT(error(), HasSubstr("compute capability 7.0"));
  answer("CAPABILITY", "75");
  EXPECT_EQ(error(), "");
  EXPECT_THAT(error(0, true), HasSubstr("bfloat16, which needs compute capability 8.0"));
  answer("CAPABILITY", "80");
  EXPECT_EQ(error(0, true), "");
}

TEST_F(CudaDriver, LibrariesThatWereNotFetched) {
  const auto device = open_device({DeviceKind::kCuda}, false, places_);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().to_string(), HasSubstr("is not in /nowhere/lib"));
  EXPECT_THAT(device.error().to_string(), HasSubstr("./dev deps --cuda"));
}

TEST(DeviceName, TextsAndNothingElse) {
  EXPECT_EQ(parse_device_name("cuda:3")->index, 3);
  EXPECT_EQ(parse_device_name("cuda")->kind, DeviceKind::kCuda);
  EXPECT_EQ(parse_device_name("auto")->kind, DeviceKind::kAuto);
  EXPECT_EQ(parse_device_name("cpu-as-device")->kind, DeviceKind::kCpuAsDevice);
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:999", "CUDA"})
    EXPECT_FALSE(parse_device_name(text).has_value()) << text;
}

}  // namespace
}  // namespace mortise
