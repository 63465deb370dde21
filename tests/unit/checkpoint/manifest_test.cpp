// The manifest of a checkpoint: what is written is read, and every other text is refused with its reason.
#include "checkpoint/manifest.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

Manifest example() {
  const std::string hash(64, 'a');
  return {{5, {}}, {{"mortise", "0.1.0"}}, {{"a/b.json", 3, hash}, {"state.json", 0, hash}}};
}

TEST(Manifest, DeepNestingIsRefused) {
  EXPECT_FALSE(parse_manifest(std::string(300'000, '['), "m").ok());
  EXPECT_FALSE(parse_manifest(std::string(300'000, '[') + std::string(300'000, ']'), "m").ok());
}

TEST(Manifest, RoundTrip) {
  const std::string text = manifest_text(example());
  ASSERT_OK_AND_ASSIGN(const Manifest back, parse_manifest(text, "m"));
  EXPECT_EQ(back.place.step, 5);
  EXPECT_EQ(back.entries.size(), 2u);
  EXPECT_EQ(back.find("a/b.json")->size_bytes, 3u);
  EXPECT_EQ(back.find("a"), nullptr);
  EXPECT_EQ(manifest_text(back), text);
  Manifest bare = example();
  bare.info.clear();
  bare.entries.clear();
  EXPECT_OK(parse_manifest(manifest_text(bare), "m"));
}

TEST(Manifest, APlaceInsideAStep) {
  Manifest manifest = example();
  manifest.place.update = 0;
  ASSERT_OK_AND_ASSIGN(const Manifest back, parse_manifest(manifest_text(manifest), "m"));
  EXPECT_EQ(back.place, manifest.place);
}

TEST(Manifest, AnyOtherTextIsRefused) {
  const std::string text = manifest_text(example());
  for (size_t n = 0; n < text.size(); ++n)
    ASSERT_FALSE(parse_manifest(std::string_view(text).substr(0, n), "m").ok()) << n;
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      ASSERT_FALSE(parse_manifest(flipped, "m").ok()) << i << " bit " << bit;
    }
  }
  EXPECT_THAT(error_of(parse_manifest(text + " ", "m")), HasSubstr("its digest does not match"));
}

TEST(Manifest, RefusesWithTheRightWords) {
  Manifest manifest = example();
  manifest.entries[0].path = "../../etc/passwd";
  EXPECT_THAT(error_of(parse_manifest(manifest_text(manifest), "m")), HasSubstr("is not allowed"));
  manifest = example();
  manifest.entries[0].sha256 = "xyz";
  EXPECT_THAT(error_of(parse_manifest(manifest_text(manifest), "m")), HasSubstr("has no SHA-256"));
  manifest = example();
  manifest.entries.push_back(manifest.entries.back());
  EXPECT_THAT(error_of(parse_manifest(manifest_text(manifest), "m")), HasSubstr("twice"));
  EXPECT_THAT(error_of(parse_manifest(R"({"format":"mortise-checkpoint","version":3})", "m")),
              HasSubstr("format version 3, this program reads 1 to 2"));
  EXPECT_THAT(error_of(parse_manifest(R"({"format":"other","version":1})", "m")), HasSubstr("format is 'other'"));
}

// A program of before the index then says that it is too old, in place of a missing tensor.
TEST(Manifest, TheIndexOfSeveralRanksHasAVersionOfItsOwn) {
  Manifest manifest = example();
  EXPECT_THAT(manifest_text(manifest), HasSubstr(R"("version": 1)"));
  manifest.entries.push_back({std::string(kStateIndexFile), 1, std::string(64, 'a')});
  std::ranges::sort(manifest.entries, {}, &ManifestEntry::path);
  const std::string text = manifest_text(manifest);
  EXPECT_THAT(text, HasSubstr(R"("version": 2)"));
  EXPECT_TRUE(parse_manifest(text, "m").ok());
}

TEST(Manifest, SafePaths) {
  for (const char* good : {"a", "a/b", "a.b/c-d_e", "caf\xC3\xA9"}) EXPECT_TRUE(is_safe_entry_path(good)) << good;
  for (const std::string& bad :
       {std::string(""), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string("a/./b"), std::string("../a"), std::string("a/.."), std::string("a\\b"), std::string("a\nb"),
        std::string("a\0b", 3), std::string("\xFF"), std::string(2000, 'x')})
    EXPECT_FALSE(is_safe_entry_path(bad)) << bad;
}

}  // namespace
}  // namespace mortise
