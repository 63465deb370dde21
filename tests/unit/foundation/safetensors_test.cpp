// Reading what the reference library wrote, and writing the same bytes.
#include "foundation/formats/safetensors.h"

#include <gmock/gmock.h>

#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Path kGolden = Path(MORTISE_SOURCE_DIR) / "tests/golden/formats";

TEST(Safetensors, ReadsTheReferenceFile) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                       SafetensorsFile::open(default_env(), kGolden / "all_dtypes.safetensors"));
  EXPECT_EQ(file.tensors().size(), 15u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_OK_AND_ASSIGN(const TensorView f64, file.get("w.f64"));
  EXPECT_THAT(f64.shape, ElementsAre(2, 2));
  EXPECT_THAT(f64.as<double>(), ElementsAre(0.1, -2.5, 3e300, 4.0));
  EXPECT_THAT(file.find("w.f32")->as<float>(), ElementsAre(0.0f, 1.0f / 7, 2.0f / 7, 3.0f / 7, 4.0f / 7, 5.0f / 7));
  EXPECT_TRUE(file.find("b/f32")->shape.empty());
  EXPECT_THAT(file.find("b/f32")->as<float>(), ElementsAre(1.5f));
  EXPECT_THAT(file.find("i.i64")->as<int64_t>(), ElementsAre(-1, int64_t{1} << 62));
  EXPECT_THAT(file.find("i.i16")->as<int16_t>(), ElementsAre(-7, 8, 9));
  EXPECT_THAT(file.find("u.u8")->as<uint8_t>(), ElementsAre(255, 0, 1));
  EXPECT_THAT(file.find("m.bool")->as<uint8_t>(), ElementsAre(1, 0));
  EXPECT_THAT(file.find("empty")->shape, ElementsAre(0, 4));
  EXPECT_NE(file.find("name \"quoted\" \xC3\xA9\n"), nullptr);
  EXPECT_THAT(error_of(file.get("w.f65")), HasSubstr("did you mean 'w.f64'"));
}

TEST(Safetensors, WritesTheReferenceBytes) {
  for (const char* name : {"all_dtypes.safetensors", "empty.safetensors"}) {
    const test::TempDir dir;
    ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(default_env(), kGolden / name));
    std::vector<TensorView> shuffled(file.tensors().rbegin(), file.tensors().rend());
    ASSERT_OK(write_safetensors_file(default_env(), dir / "out", shuffled, file.metadata()));
    EXPECT_EQ(dir.read("out"), *default_env().read_file(kGolden / name));
  }
}

TEST(Safetensors, ViewsStayWhenTheFileMoves) {
  ASSERT_OK_AND_ASSIGN(SafetensorsFile file, SafetensorsFile::open(default_env(), kGolden / "all_dtypes.safetensors"));
  const auto* bytes = file.find("w.f32")->bytes.data();
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.find("w.f32")->bytes.data(), bytes);
  EXPECT_EQ(moved.find("w.f32")->as<float>()[1], 1.0f / 7);
}

TEST(Safetensors, EveryTensorIsAlignedToItsType) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                       SafetensorsFile::open(default_env(), kGolden / "all_dtypes.safetensors"));
  for (const TensorView& tensor : file.tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % dtype_bytes(tensor.dtype), 0u) << tensor.name;
}

TEST(Safetensors, WriterRefuses) {
  const test::TempDir dir;
  const std::vector<float> values{1, 2};
  const auto write = [&](std::vector<TensorView> tensors) {
    return error_of(write_safetensors_file(default_env(), dir / "out", tensors));
  };
  const TensorView good = view_of<float>("a", values);
  EXPECT_THAT(write({good, good}), HasSubstr("two tensors named 'a'"));
  EXPECT_THAT(write({view_of<float>("", values)}), HasSubstr("bad name"));
  EXPECT_THAT(write({view_of<float>("__metadata__", values)}), HasSubstr("bad name"));
  EXPECT_THAT(write({view_of<float>("a\xFF", values)}), HasSubstr("bad name"));
  EXPECT_THAT(write({view_of<float>("a", values, {3})}), HasSubstr("do not fit its shape"));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre());  // and leaves nothing behind
}

TEST(Safetensors, AFailedWriteLeavesTheOldFile) {
  const std::vector<float> old_values{1, 2}, new_values{3, 4};
  for (int64_t k = 1;; ++k) {
    const test::TempDir dir;
    ASSERT_OK(write_safetensors_file(default_env(), dir / "f", std::vector{view_of<float>("a", old_values)}));
    test::FaultEnv env(default_env());
    env.fail_at(k);
    const Result<> done = write_safetensors_file(env, dir / "f", std::vector{view_of<float>("a", new_values)});
    ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(default_env(), dir / "f"));
    EXPECT_THAT(file.find("a")->as<float>()[0], testing::AnyOf(1.0f, 3.0f));
    EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("f"));
    if (done.ok()) {
      EXPECT_EQ(file.find("a")->as<float>()[0], 3.0f);
      EXPECT_GE(k, 8);
      break;
    }
  }
}

}  // namespace
}  // namespace mortise
