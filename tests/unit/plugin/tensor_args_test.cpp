// Tensors as plugins see them: shapes, strides, alignment, cleared outputs.
#include "plugin/host/kinds/tensor_args.h"

#include "test_packs.h"

namespace mortise {
namespace {

bool aligned(const mortise_tensor* t) { return reinterpret_cast<uintptr_t>(mortise_tensor_data(t)) % 64 == 0; }

TEST(TensorArgsTest, AlignedSpansAreBorrowedOthersCopied) {
  alignas(64) float values[40] = {};
  for (int i = 0; i < 40; ++i) values[i] = static_cast<float>(i);
  TensorArgs args;
  const mortise_tensor* whole = args.input(std::span<const float>(values, 32));
  EXPECT_EQ(mortise_tensor_data(whole), values);
  const mortise_tensor* part = args.input(std::span<const float>(values + 3, 5));
  EXPECT_TRUE(aligned(part));
  EXPECT_NE(mortise_tensor_data(part), values + 3);
  EXPECT_EQ(static_cast<float*>(mortise_tensor_data(part))[4], 7.0F);
  EXPECT_EQ(part->shape[0], 5);
}

TEST(TensorArgsTest, OutputsAreClearedAndComeBack) {
  alignas(64) float values[16];
  std::fill_n(values, 16, 9.0F);
  TensorArgs args;
  const mortise_tensor* out = args.output(std::span(values + 1, 4));
  auto* data = static_cast<float*>(mortise_tensor_data(out));
  EXPECT_EQ(data[0], 0.0F);
  data[2] = 5.0F;
  args.finish();
  EXPECT_EQ(values[0], 9.0F);
  EXPECT_EQ(values[1], 0.0F);
  EXPECT_EQ(values[3], 5.0F);
  EXPECT_EQ(values[5], 9.0F);
}

TEST(TensorArgsTest, EmptyTensorsHaveANonNullAddress) {
  TensorArgs args;
  const mortise_tensor* empty = args.input(std::span<const float>());
  EXPECT_NE(mortise_tensor_data(empty), nullptr);
  EXPECT_EQ(empty->shape[0], 0);
  EXPECT_NE(mortise_tensor_data(args.output({})), nullptr);
}

TEST(TensorArgsTest, ShapesAndStrides) {
  const std::vector<float> values(6);
  const int64_t shape[] = {2, 3};
  TensorArgs args;
  const mortise_tensor* t = args.input(values, shape);
  EXPECT_EQ(t->ndim, 2);
  EXPECT_EQ(t->strides[0], 3);
  EXPECT_EQ(t->strides[1], 1);
}

}  // namespace
}  // namespace mortise
