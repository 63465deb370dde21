// A search for packs runs none of their code, however many there are. A hundred packs have constructors that leave a
// mark. `./dev bench scan` measures the time.
#include <cstdlib>
#include <fstream>

#include "plugin/host/registry.h"
#include "test_packs.h"

namespace mortise {
namespace {

constexpr int kNumPacks = 100;

// Copies with a byte or more behind the last section: other files, other hashes, the same pack.
void fill(const Path& folder, const std::vector<std::string>& packs) {
  for (int i = 0; i < kNumPacks; ++i) {
    const std::string& name = packs[static_cast<size_t>(i) % packs.size()];
    const Path file = folder / ("p" + std::to_string(i) + ".so");
    std::filesystem::copy_file(test::pack_path(name), file);
    std::ofstream(file, std::ios::app) << i;
  }
}

TEST(ScanTest, AHundredPacksAreListedWithoutRunningTheirCode) {
  const test::TempDir temp;
  const Path mark = temp / "mark";
  ::setenv("MORTISE_TEST_MARK", mark.c_str(), 1);
  std::filesystem::create_directory(temp / "packs");
  // Good packs, refused packs and duplicates. Each has a constructor that writes the file.
  fill(temp / "packs", {"constructor", "newer_host"});
  RegistryOptions options = test::only({});
  options.paths = {temp / "packs"};
  ASSERT_OK_AND_ASSIGN(PluginRegistry registry, PluginRegistry::open(options));
  EXPECT_EQ(registry.candidates().size(), 50U);
  EXPECT_EQ(registry.rejected().size(), 50U);
  EXPECT_FALSE(std::filesystem::exists(mark)) << "code of a pack ran";
  // The very same file does run it once it is loaded: the mark is a test that can fail.
  options.paths = {};
  options.files = {temp / "packs/p0.so"};
  ASSERT_OK_AND_ASSIGN(PluginRegistry one, PluginRegistry::open(options));
  EXPECT_FALSE(std::filesystem::exists(mark));
  EXPECT_OK(one.load("reward", "one"));
  EXPECT_TRUE(std::filesystem::exists(mark));
}

}  // namespace
}  // namespace mortise
