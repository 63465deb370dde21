// Finding plugins by name over packs, versions and folders.
#include "plugin/host/registry.h"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "plugin/host/instance.h"
#include "plugin/host/kinds/reward.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using test::only;
using test::open_registry;
using test::pack_dir;
using test::pack_path;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(RegistryTest, FindsByBareAndFullNameAndKind) {
  const PluginRegistry registry = open_registry({"minimal", "rude"});
  ASSERT_OK_AND_ASSIGN(const PluginRef bare, registry.find("reward", "one"));
  EXPECT_EQ(bare.pack->id, "test.minimal");
  EXPECT_OK(registry.find("mortise.reward/1", "test.minimal/one"));
  EXPECT_OK(registry.find("reward", "test.minimal/one@^1.0"));
  EXPECT_OK(registry.find("reward", "one@>=0.9 <2"));
  EXPECT_THAT(error_of(registry.find("reward", "one@^2")),
              AllOf(HasSubstr("no version of 'one' fits '^2'"), HasSubstr("1.0.0")));
  EXPECT_THAT(error_of(registry.find("reward", "one@soon")), HasSubstr("bad version range"));
}

TEST(RegistryTest, UnknownNameTellsNearestSearchedAndRejected) {
  RegistryOptions options = only({"minimal", "rude", "wrong_abi"});
  options.builtin_dir = "/nowhere/at/all";
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  const std::string text = error_of(registry->find("policy_loss", "plian"));
  EXPECT_THAT(text, AllOf(HasSubstr("no policy_loss is named 'plian'"), HasSubstr("did you mean 'plain'?")));
  EXPECT_THAT(text, AllOf(HasSubstr(pack_dir("minimal").string()), HasSubstr("/nowhere/at/all (does not exist)")));
  EXPECT_THAT(text, AllOf(HasSubstr(pack_path("wrong_abi").string()), HasSubstr("built for plugin ABI 7")));
  EXPECT_THAT(error_of(registry->find("policy_loss", "one")), HasSubstr("test.minimal/one, a reward"));
  EXPECT_THAT(error_of(registry->find("reward", "other.pack/one")), HasSubstr("there is test.minimal/one"));
}

TEST(RegistryTest, TwoPacksOfOneBareName) {
  const PluginRegistry registry = open_registry({"twin_a", "twin_b"});
  EXPECT_THAT(error_of(registry.find("reward", "twin")),
              AllOf(HasSubstr("more than one reward"), HasSubstr(pack_path("twin_a").string()),
                    HasSubstr(pack_path("twin_b").string())));
  EXPECT_OK(registry.find("reward", "test.twin_b/twin"));
}

TEST(RegistryTest, NewestVersionOfAFolderUnlessARangeSays) {
  const PluginRegistry registry = open_registry({"versions"});
  EXPECT_EQ(registry.find("reward", "aged")->pack->version, "2.0.0");
  EXPECT_EQ(registry.find("reward", "aged@^1.0")->pack->version, "1.2.0");
  EXPECT_EQ(registry.find("reward", "test.versions/aged@=1.0.0")->pack->version, "1.0.0");
}

TEST(RegistryTest, TwoFilesOfOneVersionInOneFolder) {
  const PluginRegistry registry = open_registry({"same_version"});
  EXPECT_THAT(error_of(registry.find("reward", "same")),
              AllOf(HasSubstr("same_version_a.so"), HasSubstr("same_version_b.so"),
                    HasSubstr("different files of one pack id and version")));
}

TEST(RegistryTest, AnEarlierFolderHidesTheSameVersion) {
  const test::TempDir temp;
  std::filesystem::copy_file(pack_dir("same_version") / "same_version_a.so", temp / "a.so");
  RegistryOptions options = only({});
  options.paths = {temp.path(), pack_dir("same_version")};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  ASSERT_OK_AND_ASSIGN(const PluginRef ref, registry->find("reward", "same"));
  EXPECT_EQ(ref.pack->path, (temp / "a.so").string());
  ASSERT_EQ(registry->candidates().size(), 3U);
  EXPECT_EQ(registry->candidates()[2].hidden_by, (temp / "a.so").string());
}

TEST(RegistryTest, BuiltinNamesCannotBeShadowed) {
  RegistryOptions options = only({"shadow"});
  options.builtin_dir = pack_dir("builtin");
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  ASSERT_OK_AND_ASSIGN(const PluginRef ref, registry->find("reward", "known"));
  EXPECT_EQ(ref.pack->id, "mortise.fake");
  EXPECT_EQ(ref.candidate->origin, PackOrigin::kBuiltin);
  EXPECT_EQ(registry->find("reward", "test.shadow/known")->pack->id, "test.shadow");
}

TEST(RegistryTest, BuiltinIdsAreRefusedElsewhere) {
  const PluginRegistry registry = open_registry({"builtin"});
  ASSERT_EQ(registry.rejected().size(), 1U);
  EXPECT_THAT(registry.rejected()[0].reason.to_string(),
              HasSubstr("'mortise.fake' is kept for the packs of the installation"));
}

TEST(RegistryTest, ANamedFileThatIsRefusedIsAnError) {
  RegistryOptions options = only({});
  options.files = {pack_path("run_path")};
  EXPECT_THAT(error_of(PluginRegistry::open(options)), HasSubstr("run path"));
  options.files = {"/absent.so"};
  EXPECT_THAT(error_of(PluginRegistry::open(options)), HasSubstr("/absent.so"));
}

TEST(RegistryTest, WhatWasNamedTellsWhoNamedIt) {
  RegistryOptions options = only({});
  options.files = {{pack_path("run_path"), "run.toml:7:9"}};
  EXPECT_THAT(error_of(PluginRegistry::open(options)), AllOf(HasSubstr("run.toml:7:9: /"), HasSubstr("run path")));
}

TEST(RegistryTest, ANamedFolderThatIsNotThereIsAnError) {
  RegistryOptions options = only({"minimal"});
  options.paths.emplace_back("/nowhere/at/all", "run.toml:3:9");
  EXPECT_EQ(error_of(PluginRegistry::open(options)),
            "run.toml:3:9: the folder of packs '/nowhere/at/all' does not exist; correct the path, or make the folder");
  options.paths = {"not/here"};
  EXPECT_THAT(error_of(PluginRegistry::open(options)),
              HasSubstr("a relative path starts at " + std::filesystem::current_path().string()));
  options.paths = {pack_path("minimal")};
  EXPECT_THAT(error_of(PluginRegistry::open(options)),
              AllOf(HasSubstr("is a file, not a folder of packs"), HasSubstr("plugins.files")));
}

TEST(RegistryTest, APluginOfAKindThatIsNotKnownIsNamed) {
  const PluginRegistry registry = open_registry({"next_kind"});
  EXPECT_THAT(error_of(registry.find("reward", "one")),
              HasSubstr("test.next_kind/one, of the kind mortise.reward/2 which this program does not know"));
}

TEST(RegistryTest, OtherFilesAreLeftAlone) {
  const test::TempDir temp;
  temp.write("README.md", "packs live here");
  temp.write("broken.so", "not a library");
  std::filesystem::copy_file(pack_path("minimal"), temp / "ok.so");
  std::filesystem::create_directory(temp / "folder.so");
  RegistryOptions options = only({});
  options.paths = {temp.path()};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  EXPECT_EQ(registry->candidates().size(), 1U);
  EXPECT_EQ(registry->rejected().size(), 2U);
}

TEST(LoadTest, ListingRunsNoCodeLoadingDoes) {
  const test::TempDir temp;
  ::setenv("MORTISE_TEST_MARK", (temp / "mark").c_str(), 1);
  PluginRegistry registry = open_registry({"constructor", "newer_host"});
  EXPECT_EQ(registry.rejected().size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(temp / "mark"));
  EXPECT_FALSE(registry.load("reward", "test.minimal/one").ok());  // newer_host is refused, and so not loaded
  EXPECT_FALSE(std::filesystem::exists(temp / "mark"));
  ASSERT_OK(registry.load("reward", "one"));
  EXPECT_TRUE(std::filesystem::exists(temp / "mark"));
  ::unsetenv("MORTISE_TEST_MARK");
}

TEST(LoadTest, TheSameBytesAreLoadedOnce) {
  PluginRegistry first = open_registry({"minimal"});
  PluginRegistry second = open_registry({"minimal"});
  ASSERT_OK_AND_ASSIGN(const LoadedPlugin a, first.load("reward", "one"));
  ASSERT_OK_AND_ASSIGN(const LoadedPlugin b, second.load("reward", "one"));
  EXPECT_EQ(a.vtable, b.vtable);
  EXPECT_EQ(a.pack, b.pack);
}

// Packs of ABI 0 load, also those that were compiled with the headers of ABI 1. Of two symbols the newer one counts.
TEST(LoadTest, PacksOfAbi0) {
  PluginRegistry registry = open_registry({"abi_0", "abi_0_headers", "both_symbols"});
  for (const auto& [pack, abi] : std::map<std::string, int>{{"abi_0", 0}, {"abi_0_headers", 0}, {"both_symbols", 1}}) {
    ASSERT_OK_AND_ASSIGN(const LoadedPlugin loaded, registry.load("reward", "test." + pack + "/one"));
    EXPECT_EQ(loaded.pack->abi, abi) << pack;
    EXPECT_EQ(loaded.pack->id, "test." + pack);
    EXPECT_OK(
        PluginInstance::create(registry, "reward", "test." + pack + "/one", nlohmann::ordered_json::object(), {}));
  }
}

// A host takes the newest major that it reads, and ignores the symbols and notes of others.
TEST(LoadTest, AFileMayHoldPacksOfSeveralMajors) {
  PluginRegistry registry = open_registry({"next_major", "next_major_abi_0"});
  ASSERT_OK_AND_ASSIGN(const LoadedPlugin newer, registry.load("reward", "test.next_major/one"));
  EXPECT_EQ(newer.pack->abi, 1);
  ASSERT_OK_AND_ASSIGN(const LoadedPlugin older, registry.load("reward", "test.next_major_abi_0/one"));
  EXPECT_EQ(older.pack->abi, 0);
}

// Each pack sees the minor of its own ABI, and the texts of rows from its first call on.
TEST(LoadTest, WhatOpenSeesOfTheHost) {
  PluginRegistry registry = open_registry({"sees_host", "sees_host_abi_0"});
  EXPECT_OK(registry.load("reward", "test.sees_host/one"));
  EXPECT_OK(registry.load("reward", "test.sees_host_abi_0/one"));
}

// A source of ABI 0 that asks for its minor 2 gets 1.0. A later minor may have roles that this host does not know.
TEST(LoadTest, PacksOfOtherMinors) {
  PluginRegistry registry = open_registry({"minimal", "minor_2", "minor_9"});
  const auto role_of = [&](const std::string& pack) {
    const auto loaded = registry.load("reward", pack + "/one");
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    const ParamInfo* param = loaded.ok() ? loaded->plugin->find_param("with_role") : nullptr;
    return param == nullptr ? "none" : std::string(param_role_name(param->role));
  };
  EXPECT_EQ(role_of("test.minimal"), "none");
  EXPECT_EQ(role_of("test.minor_2"), "column");
  EXPECT_EQ(role_of("test.minor_9"), "plain");
  EXPECT_OK(PluginInstance::create(registry, "reward", "test.minimal/one", nlohmann::ordered_json::object(), {}));
}

TEST(LoadTest, NoteAndTableMustAgree) {
  PluginRegistry versions = open_registry({"note_differs"});
  EXPECT_THAT(error_of(versions.load("reward", "one")),
              AllOf(HasSubstr("table and its metadata note differ (version '1.0.0' against '1.0.1')"),
                    HasSubstr("note_differs.so")));
  PluginRegistry params = open_registry({"param_differs"});
  EXPECT_THAT(error_of(params.load("reward", "one")), HasSubstr("plugin 'one': parameter 'factor'"));
}

TEST(LoadTest, OpenMayRefuse) {
  PluginRegistry registry = open_registry({"open_refuses"});
  EXPECT_THAT(error_of(registry.load("reward", "one")), HasSubstr("open() refused to start: FAILED_PRECONDITION"));
}

TEST(LoadTest, AFileThatChangedSinceTheScanIsRefused) {
  const test::TempDir temp;
  std::filesystem::copy_file(pack_path("twin_a"), temp / "pack.so");
  RegistryOptions options = only({});
  options.paths = {temp.path()};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  std::filesystem::copy_file(pack_path("twin_b"), temp / "pack.so", std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of(registry->load("reward", "twin")), HasSubstr("has changed since it was checked"));
}

// Copies a pack under another hash, so that this process has not loaded it yet.
Path fresh_copy(const test::TempDir& temp, const std::string& name) {
  const Path path = temp / "pack.so";
  std::filesystem::copy_file(pack_path(name), path);
  std::ofstream(path, std::ios::app) << temp.path().string();
  return path;
}

TEST(LoadTest, AFileThatIsWrittenOverAfterItWasLoadedChangesNothing) {
  const test::TempDir temp;
  const Path path = fresh_copy(temp, "twin_a");
  RegistryOptions options = only({});
  options.files = {path};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  ASSERT_OK(registry->load("reward", "twin"));
  std::ofstream(path, std::ios::trunc) << "the build writes here";  // a mapped file would have changed by now
  auto reward = Reward::create(*registry, "twin", {{"factor", 0.5}}, {});
  ASSERT_OK(reward);
  RewardBatch batch;
  batch.num_rows = 1;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(batch, nullptr));
  EXPECT_EQ(out.rewards[0], 0.5);
}

TEST(LoadTest, AMissingSymbolIsNamed) {
  PluginRegistry registry = open_registry({"undefined"});
  EXPECT_THAT(error_of(registry.load("reward", "one")),
              AllOf(HasSubstr("cannot be loaded"), HasSubstr("other_library"), HasSubstr("build the pack again")));
}

TEST(LoadTest, AThrowingOpenIsAnError) {
  PluginRegistry registry = open_registry({"open_throws"});
  EXPECT_THAT(error_of(registry.load("reward", "one")),
              AllOf(HasSubstr("its open() threw: the moon fell down"), HasSubstr("tell the pack's author")));
}

TEST(LoadTest, SectionHeadersThatShowOtherExportsAreRefused) {
  const test::TempDir temp;
  ASSERT_OK_AND_ASSIGN(std::string bytes, default_env().read_file(pack_path("twin_a")));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (uint64_t i = 0; i < header.e_shnum; ++i) {  // symbol tables that end after their empty first entry
    Elf64_Shdr section;
    char* const at = bytes.data() + header.e_shoff + i * sizeof section;
    std::memcpy(&section, at, sizeof section);
    if (section.sh_type == SHT_DYNSYM || section.sh_type == SHT_SYMTAB) section.sh_size = sizeof(Elf64_Sym);
    std::memcpy(at, &section, sizeof section);
  }
  RegistryOptions options = only({});
  options.files = {temp.write("pack.so", bytes)};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  EXPECT_THAT(error_of(registry->load("reward", "twin")),
              AllOf(HasSubstr("section headers list no exported symbol"), HasSubstr("strip --strip-unneeded")));
}

TEST(LoadTest, HiddenSectionHeadersAreRefused) {
  const test::TempDir temp;
  ASSERT_OK_AND_ASSIGN(std::string bytes, default_env().read_file(pack_path("twin_a")));
  std::fill_n(bytes.begin() + 0x28, 8, '\0');  // e_shoff
  std::fill_n(bytes.begin() + 0x3c, 4, '\0');  // e_shnum, e_shstrndx
  temp.write("pack.so", bytes);
  RegistryOptions options = only({});
  options.paths = {temp.path()};
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  EXPECT_THAT(error_of(registry->load("reward", "twin")), HasSubstr("no section headers"));
}

TEST(LoadTest, AnInstanceLivesAndDies) {
  PluginRegistry registry = open_registry({"minimal"});
  auto reward = Reward::create(registry, "one", {{"factor", 1.5}}, {});
  ASSERT_OK(reward);
  RewardBatch batch;
  batch.num_rows = 3;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(batch, nullptr));
  EXPECT_THAT(out.rewards, testing::ElementsAre(1.5, 1.5, 1.5));
  Reward moved = std::move(*reward);
  EXPECT_OK(moved.score(batch, nullptr));
  EXPECT_THAT(moved.instance().label(), HasSubstr("reward one@test.minimal 1.0.0 ("));
  EXPECT_THAT(error_of(Reward::create(registry, "one", {{"factor", 7}}, {})), HasSubstr("out of its range"));
}

}  // namespace
}  // namespace mortise
