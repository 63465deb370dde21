// Memory of the decoder: aligned, zeroed, and kept when less is asked for.
#include "model/tensor/aligned.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace mortise {
namespace {

// Small ones and those on huge pages alike.
TEST(FloatBuffer, IsZeroedAndAligned) {
  FloatBuffer buffer;
  for (const int64_t size : {1L, 1000L, (1L << 20) - 1, 1L << 20, 3'000'001L}) {
    buffer.reserve(size);
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size, [](float x) { return x == 0.0F; })) << size;
    std::fill(buffer.data(), buffer.data() + size, 1.0F);
    FloatBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data()[size - 1], 1.0F);
    buffer = std::move(moved);
    buffer.reserve(size / 2);  // keeps the existing one
    EXPECT_EQ(buffer.data()[size - 1], 1.0F);
  }
  buffer.free();
  EXPECT_EQ(buffer.data(), nullptr);
}

}  // namespace
}  // namespace mortise
