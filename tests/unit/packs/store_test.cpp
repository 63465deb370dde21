// Building, checking, choosing and installing packs; the disk may fail at every operation.
#include "packs/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "archive_maker.h"
#include "packs/admission.h"
#include "packs/machine.h"
#include "plugin/host/registry.h"
#include "support/fault_env.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

InstallRequest request_of(const PackArchive& archive) {
  return {&archive, &archive.description.builds.at(0), "", {}, "here"};
}

// The archive with one file changed by `change`; lib and pack.toml are those of the pack otherwise.
template <class Change>
std::string changed(const PackArchive& archive, Change change) {
  auto files = archive.extract([](std::string_view) { return true; });
  EXPECT_TRUE(files.ok());
  for (ArchiveFile& file : *files) change(file);
  auto bytes = write_archive(*files, "x");
  return bytes.ok() ? *bytes : bytes.error().to_string();
}

std::string with_description(const PackArchive& archive, const std::string& from, const std::string& to) {
  const std::string bytes = changed(archive, [&](ArchiveFile& file) {
    if (file.path != kDescriptionFile) return;
    const size_t at = file.bytes.find(from);
    ASSERT_NE(at, std::string::npos) << file.bytes;
    file.bytes.replace(at, from.size(), to);
  });
  return error_of(check_archive(bytes, "x.mpack"));
}

TEST(PackBuilding, ADescriptionSaysWhatTheNoteSays) {
  const PackArchive pack = versioned_pack("v1_2_0");
  EXPECT_EQ(pack.description.label(), "test.versions@1.2.0");
  ASSERT_EQ(pack.description.plugins.size(), 1U);
  EXPECT_EQ(pack.description.plugins[0].name, "aged");
  ASSERT_EQ(pack.description.builds.size(), 1U);
  EXPECT_EQ(pack.description.builds[0].cpu, "x86-64");
  ASSERT_OK_AND_ASSIGN(const PackDescription again, parse_description(description_text(pack.description), "t"));
  EXPECT_EQ(description_text(again), description_text(pack.description));
  EXPECT_EQ(versioned_pack("v1_2_0").bytes, pack.bytes) << "the same inputs, the same bytes";
}

TEST(PackBuilding, AFolderBringsItsFilesAndTests) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "pack/lib");
  std::filesystem::copy_file(versioned_library(), dir / "pack/lib/a.so");
  dir.write("pack/pack.toml", "license = \"MIT\"\nauthors = [\"A <a@b>\"]\nsummary = \"say \\\"hi\\\"\"\n");
  dir.write("pack/README.md", "# hello\n");
  dir.write("pack/LICENSE", "MIT\n");
  dir.write("pack/tests/one.toml", "kind = \"reward\"\n");
  dir.write("pack/tests/rows.jsonl", "{}\n");
  dir.write("pack/tests/test.cpp", "int main() {}\n");
  ASSERT_OK_AND_ASSIGN(const PackArchive pack, build_pack(default_env(), {dir / "pack"}));
  std::vector<std::string> paths;
  for (const auto& file : pack.files) paths.push_back(file.path);
  EXPECT_THAT(paths, testing::ElementsAre("pack.toml", "LICENSE", "README.md", "lib/linux-x86_64/test.versions.so",
                                          "sbom.json", "tests/one.toml", "tests/rows.jsonl"));
  EXPECT_EQ(pack.readme, "# hello\n");
  EXPECT_EQ(pack.description.summary, "say \"hi\"");
  EXPECT_THAT(pack.description.tests, testing::ElementsAre("tests/one.toml"));
  dir.write("pack/pack.toml", "id = \"acme.other\"\n");
  EXPECT_THAT(error_of(build_pack(default_env(), {dir / "pack"})), HasSubstr("rule P14"));
  dir.write("pack/pack.toml", "lisence = \"MIT\"\n");
  EXPECT_THAT(error_of(build_pack(default_env(), {dir / "pack"})), AllOf(HasSubstr("rule P11"), HasSubstr("lisence")));
  dir.write("pack/pack.toml", "[[build]]\nfile = \"lib/a.so\"\n[[build]]\nfile = \"lib/a.so\"\ncpu = \"x86-64-v3\"\n");
  ASSERT_OK_AND_ASSIGN(const PackArchive two, build_pack(default_env(), {dir / "pack"}));
  EXPECT_EQ(two.description.builds.size(), 2U);
  EXPECT_THAT(error_of(build_pack(default_env(), {versioned_library("v1_0_0"), versioned_library("v1_2_0")})),
              HasSubstr("rule P14"));
}

TEST(PackChecking, ADescriptionThatLiesIsRefused) {
  const PackArchive pack = versioned_pack();
  EXPECT_THAT(with_description(pack, "id = \"test.versions\"", "id = \"test.other\""), HasSubstr("rule P14"));
  EXPECT_THAT(with_description(pack, "version = \"1.0.0\"", "version = \"9.0.0\""), HasSubstr("rule P14"));
  EXPECT_THAT(with_description(pack, "name = \"aged\"", "name = \"young\""), HasSubstr("rule P15"));
  EXPECT_THAT(with_description(pack, "flags = ", "flags = 1"), HasSubstr("rule P15"));
  EXPECT_THAT(with_description(pack, "sha256 = \"", "sha256 = \"0"), HasSubstr("rule P11"));
  EXPECT_THAT(with_description(pack, "format = 1", "format = 2"), HasSubstr("rule P11"));
  EXPECT_THAT(with_description(pack, "format = 1", "format = 1\nfrmat = 1"), HasSubstr("rule P11"));
  EXPECT_THAT(with_description(pack, "format = 1", "format = ["), HasSubstr("rule P11"));
  EXPECT_THAT(with_description(pack, "id = \"test.versions\"", "id = \"mortise.core\""), HasSubstr("rule P12"));
  EXPECT_THAT(with_description(pack, "version = \"1.0.0\"", "version = \"1.0\""), HasSubstr("rule P13"));
  EXPECT_THAT(with_description(pack, "version = \"1.0.0\"", "version = \"1.0.0/../..\""), HasSubstr("rule P13"));
  // Letters that look like others: a Cyrillic a, a full-width e, a dotless i, capitals.
  for (const char* look_alike : {"test.versions\xD0\xB0", "t\xEF\xBD\x85st.versions", "test.vers\xC4\xB1ons",
                                 "Test.versions", "test..versions", "test.versions.", ".test", "test/versions", "test"})
    EXPECT_THAT(with_description(pack, "test.versions", look_alike), HasSubstr("rule P12")) << look_alike;
  EXPECT_THAT(with_description(pack, "lib/linux", "bin/linux"), HasSubstr("rule P14"));
  for (const char* cuda : {"12.", ".4", "12.4.1", "twelve", "12 4", "1234"})
    EXPECT_THAT(with_description(pack, "tier = ", std::string("cuda = \"") + cuda + "\"\ntier = "),
                AllOf(HasSubstr("rule P11"), HasSubstr("12.4")))
        << cuda;
  const std::string other = changed(pack, [](ArchiveFile& file) {
    if (file.path.starts_with("lib/")) file.bytes += "x";
  });
  EXPECT_THAT(error_of(check_archive(other, "x")), HasSubstr("rule P14"));
}

TEST(PackChecking, FilesThatPackTomlDoesNotListAreRefusedInLib) {
  const PackArchive pack = versioned_pack();
  auto files = *pack.extract([](std::string_view) { return true; });
  files.push_back({"lib/extra.so", "x"});
  EXPECT_THAT(error_of(check_archive(*write_archive(files, "x"), "x")), HasSubstr("rule P14"));
  std::erase_if(files, [](const ArchiveFile& file) { return file.path.starts_with("lib/"); });
  EXPECT_THAT(error_of(check_archive(*write_archive(files, "x"), "x")), HasSubstr("rule P14"));
}

TEST(PackChecking, AnArchiveOfAGigabyteIsRefusedUnread) {
  const TempDir dir;
  std::ofstream(dir / "big.mpack").put('x');
  std::filesystem::resize_file(dir / "big.mpack", uint64_t{1} << 30);
  EXPECT_THAT(error_of(read_pack_archive(default_env(), dir / "big.mpack")), HasSubstr("rule P1"));
  std::filesystem::create_directory(dir / "src");
  std::ofstream(dir / "src/pack.toml").put('x');
  std::filesystem::resize_file(dir / "src/pack.toml", uint64_t{1} << 30);
  EXPECT_THAT(error_of(build_pack(default_env(), {dir / "src"})), HasSubstr("larger than"));
}

TEST(PackChoice, TheBestBuildThatFitsTheMachine) {
  PackDescription pack;
  pack.id = "acme.match";
  const auto add = [&](const char* arch, const char* cpu, const char* torch, const char* cuda) {
    pack.builds.push_back({"f" + std::to_string(pack.builds.size()), "", 0, "linux", arch, cpu,
                           *torch == 0 ? "portable" : "torch-locked", torch, cuda});
  };
  add("aarch64", "aarch64", "", "");      // f0
  add("x86_64", "x86-64", "", "");        // f1
  add("x86_64", "x86-64-v3", "", "");     // f2
  add("x86_64", "x86-64-v4", "", "");     // f3
  add("x86_64", "x86-64", "2.11.0", "");  // f4
  add("x86_64", "x86-64-v3", "", "12");   // f5
  add("x86_64", "x86-64-v9", "", "");     // f6: these name no level that is known, and run nowhere
  add("riscv64", "x86-64-vx", "", "");    // f7
  const auto chosen = [&](const Machine& machine) {
    const auto build = choose_build(pack, machine, "x");
    return build.ok() ? (*build)->file : build.error().to_string();
  };
  EXPECT_EQ(chosen({"linux", "aarch64", 1, "", 0}), "f0");
  EXPECT_EQ(chosen({"linux", "x86_64", 1, "", 0}), "f1");
  EXPECT_EQ(chosen({"linux", "x86_64", 1, "2.11.0", 0}), "f4");
  EXPECT_EQ(chosen({"linux", "x86_64", 1, "2.12.0", 0}), "f1");
  EXPECT_EQ(chosen({"linux", "x86_64", 3, "2.11.0", 0}), "f2");
  EXPECT_EQ(chosen({"linux", "x86_64", 3, "", 12}), "f5");
  EXPECT_EQ(chosen({"linux", "x86_64", 3, "", 13}), "f5");
  EXPECT_EQ(chosen({"linux", "x86_64", 3, "", 11}), "f2");  // this driver does not run CUDA 12
  EXPECT_EQ(chosen({"linux", "x86_64", 4, "", 12}), "f3");
  EXPECT_THAT(chosen({"linux", "riscv64", 1, "", 0}), AllOf(HasSubstr("no build"), HasSubstr("linux aarch64")));
  // Where nothing else fits, its plugins run on the CPU (rule R46).
  add("aarch64", "aarch64", "", "13.1");
  pack.builds.erase(pack.builds.begin());
  EXPECT_EQ(chosen({"linux", "aarch64", 1, "", 0}), "f8");
}

TEST(PackStoreTest, SeveralVersionsLieSideBySide) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  ASSERT_OK_AND_ASSIGN(const auto nothing, store.list());
  EXPECT_TRUE(nothing.empty());
  for (const char* name : {"v1_0_0", "v2_0_0", "v1_2_0"}) {
    const PackArchive pack = versioned_pack(name);
    ASSERT_OK(store.install(request_of(pack)));
  }
  ASSERT_OK_AND_ASSIGN(const auto packs, store.list());
  ASSERT_EQ(packs.size(), 3U);
  EXPECT_EQ(packs[0].version, "2.0.0");
  EXPECT_EQ(packs[2].version, "1.0.0");
  EXPECT_EQ(packs[0].source, "here");
  // A registry finds all and takes the newest.
  setenv("MORTISE_PACK_STORE", store.root().c_str(), 1);
  RegistryOptions options;
  options.builtin_dir = "/nonexistent";
  ASSERT_OK_AND_ASSIGN(const PluginRegistry registry, PluginRegistry::open(options));
  unsetenv("MORTISE_PACK_STORE");
  ASSERT_OK_AND_ASSIGN(const PluginRef ref, registry.find("reward", "aged"));
  EXPECT_EQ(ref.pack->version, "2.0.0");
  EXPECT_EQ(ref.candidate->origin, PackOrigin::kStore);
  EXPECT_EQ(ref.pack->sha256, packs[0].library_sha256);
  ASSERT_OK_AND_ASSIGN(const PluginRef old, registry.find("reward", "aged@~1.0"));
  EXPECT_EQ(old.pack->version, "1.0.0");

  ASSERT_OK_AND_ASSIGN(const auto removed, store.remove("test.versions", "1.2.0"));
  ASSERT_EQ(removed.packs.size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(packs[1].object)) << "its object is gone too";
  EXPECT_TRUE(std::filesystem::exists(packs[2].library));
  EXPECT_THAT(error_of(store.remove("test.versions", "1.2.0")), HasSubstr("not installed"));
  EXPECT_THAT(error_of(store.remove("../packs", "")), HasSubstr("not installed"));
  ASSERT_OK(store.remove("test.versions", ""));
  EXPECT_TRUE(default_env().list_dir(store.root() / "objects")->empty());
}

TEST(PackStoreTest, AVersionNeverChanges) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  const PackArchive pack = versioned_pack();
  ASSERT_OK(store.install(request_of(pack)));
  ASSERT_OK(store.install(request_of(pack)));  // the same again is fine
  std::filesystem::create_directories(dir / "p");
  std::filesystem::copy_file(versioned_library(), dir / "p/a.so");
  dir.write("p/README.md", "another archive\n");
  ASSERT_OK_AND_ASSIGN(const PackArchive other, build_pack(default_env(), {dir / "p"}));
  ASSERT_NE(other.sha256, pack.sha256);
  EXPECT_THAT(error_of(store.install(request_of(other))), HasSubstr("rule P23"));
}

// `--trust any` takes a pack whose key nobody trusts yet. The store knows that key, so that a later revocation counts.
TEST(PackStoreTest, SignaturesThatDoNotCountAreKept) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  const PackArchive pack = versioned_pack();
  ASSERT_OK_AND_ASSIGN(const KeyPair unknown, make_key_pair());
  InstallRequest request = request_of(pack);
  request.signature = *sign_bytes(unknown.secret_key, pack.bytes, "c");
  ASSERT_OK_AND_ASSIGN(const InstalledPack installed, store.install(request));
  EXPECT_TRUE(installed.signed_by.keys.empty());
  EXPECT_EQ(installed.other_keys, std::vector<std::string>{unknown.public_key.id_text()});
  EXPECT_EQ(installed.platform, pack.description.builds[0].platform());
  Trust trust;
  ASSERT_OK_AND_ASSIGN(const Revocation* none, revocation_of_installed(default_env(), trust, installed));
  EXPECT_EQ(none, nullptr);
  ASSERT_OK_AND_ASSIGN(KeyPair namesake, make_key_pair());
  namesake.public_key.id = unknown.public_key.id;
  trust.revoked = {{namesake.public_key.text(), "", "", "another key of this id", false}};
  ASSERT_OK_AND_ASSIGN(const Revocation* of_namesake, revocation_of_installed(default_env(), trust, installed));
  EXPECT_EQ(of_namesake, nullptr);
  trust.revoked = {{unknown.public_key.text(), "", "", "stolen", false}};
  ASSERT_OK_AND_ASSIGN(const Revocation* revoked, revocation_of_installed(default_env(), trust, installed));
  EXPECT_EQ(revoked, &trust.revoked[0]);
}

TEST(PackStoreTest, TheSameArchiveAgainRepairsAndAddsItsSignature) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  const PackArchive pack = versioned_pack();
  ASSERT_OK_AND_ASSIGN(const InstalledPack first, store.install(request_of(pack)));
  EXPECT_TRUE(first.signed_by.keys.empty());
  InstallRequest signed_request = request_of(pack);
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  signed_request.signature = *sign_bytes(pair.secret_key, pack.bytes, "c");
  signed_request.signed_by = one_signer(pair.public_key);
  ASSERT_OK_AND_ASSIGN(const InstalledPack second, store.install(signed_request));
  EXPECT_TRUE(second.signed_by.same_as(signed_request.signed_by));
  ASSERT_OK_AND_ASSIGN(const KeyPair other, make_key_pair());
  signed_request.signed_by.keys.push_back(other.public_key);  // as if its publisher had become two keys
  signed_request.signed_by.threshold = 2;
  ASSERT_OK_AND_ASSIGN(const InstalledPack third, store.install(signed_request));
  EXPECT_TRUE(third.signed_by.same_as(signed_request.signed_by));
  EXPECT_EQ(*default_env().read_file(second.archive.string() + ".minisig"), signed_request.signature);
  std::filesystem::permissions(second.library, std::filesystem::perms::owner_all);
  std::ofstream(second.library, std::ios::app) << "damage";
  ASSERT_OK(store.install(signed_request));
  EXPECT_EQ(*sha256_file_hex(default_env(), second.library), pack.description.builds[0].sha256);
  dir.write("store/packs/test.versions/1.0.0", "no hash\n");
  ASSERT_OK(store.install(signed_request));
  EXPECT_EQ(store.list()->size(), 1U);
}

TEST(PackStoreTest, OneDamagedEntryHidesNoOther) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  for (const char* name : {"v1_0_0", "v1_2_0", "v2_0_0"}) {
    const PackArchive pack = versioned_pack(name);
    ASSERT_OK(store.install(request_of(pack)));
  }
  dir.write("store/packs/test.versions/1.2.0", "no hash\n");
  dir.write("store/packs/acme.file", "no folder\n");
  EXPECT_FALSE(store.list().ok());
  std::vector<DamagedEntry> damaged;
  ASSERT_OK_AND_ASSIGN(const auto packs, store.list(&damaged));
  EXPECT_EQ(packs.size(), 2U);
  ASSERT_EQ(damaged.size(), 2U);
  EXPECT_EQ(damaged[0].id, "acme.file");
  EXPECT_EQ(damaged[1].version, "1.2.0");
  // A removal does its work and tells the damage. What a damaged entry named stays.
  ASSERT_OK_AND_ASSIGN(const RemovedPacks removed, store.remove("test.versions", "1.0.0"));
  EXPECT_EQ(removed.packs.size(), 1U);
  EXPECT_EQ(removed.damaged.size(), 2U);
  EXPECT_EQ(default_env().list_dir(store.root() / "objects")->size(), 3U);
  std::filesystem::remove(dir / "store/packs/acme.file");
  ASSERT_OK_AND_ASSIGN(const RemovedPacks rest, store.remove("test.versions", ""));  // the damaged one, too
  EXPECT_EQ(rest.packs.size(), 2U);
  EXPECT_TRUE(rest.damaged.empty());
  EXPECT_TRUE(default_env().list_dir(store.root() / "objects")->empty());
}

TEST(PackStoreTest, TwoInstallsAtOnceComeOneAfterTheOther) {
  const TempDir dir;
  std::vector<pid_t> children;
  for (const char* name : {"v1_0_0", "v1_2_0", "v2_0_0", "v1_0_0"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const PackArchive pack = versioned_pack(name);
      ::_exit(PackStore(default_env(), dir / "store").install(request_of(pack)).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ASSERT_OK_AND_ASSIGN(const auto packs, PackStore(default_env(), dir / "store").list());
  EXPECT_EQ(packs.size(), 3U);
}

// A link where an object was: neither the folder that it names nor its rights change.
TEST(PackStoreTest, ALinkInTheStoreIsNotFollowed) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  const PackArchive pack = versioned_pack();
  ASSERT_OK_AND_ASSIGN(const InstalledPack installed, store.install(request_of(pack)));
  dir.write("mine/file", "x");
  std::filesystem::permissions(dir / "mine", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  std::filesystem::permissions(installed.object, std::filesystem::perms::owner_all);
  std::filesystem::remove_all(installed.object);
  std::filesystem::create_directory_symlink(dir / "mine", installed.object);
  ASSERT_OK(store.install(request_of(pack)));
  EXPECT_FALSE(std::filesystem::is_symlink(installed.object));
  EXPECT_EQ(dir.read("mine/file"), "x");
  EXPECT_EQ(std::filesystem::status(dir / "mine").permissions() & std::filesystem::perms::owner_write,
            std::filesystem::perms::none);
  std::filesystem::permissions(dir / "mine", std::filesystem::perms::owner_all);
}

TEST(PackStoreTest, WhatIsInstalledIsReadOnly) {
  const TempDir dir;
  PackStore store(default_env(), dir / "store");
  const PackArchive pack = versioned_pack();
  ASSERT_OK_AND_ASSIGN(const InstalledPack installed, store.install(request_of(pack)));
  const auto writable = [](const Path& path) {
    using std::filesystem::perms;
    return (std::filesystem::status(path).permissions() &
            (perms::owner_write | perms::group_write | perms::others_write)) != perms::none;
  };
  EXPECT_FALSE(writable(installed.object));
  EXPECT_FALSE(writable(installed.library));
  EXPECT_FALSE(writable(installed.archive));
}

TEST(PackStoreTest, AnInstallThatFailsAnywhereLeavesAllOrNothing) {
  const TempDir dir;
  const PackArchive before = versioned_pack("v1_0_0"), pack = versioned_pack("v1_2_0");
  for (int64_t fail_at = 1;; ++fail_at) {
    const Path root = dir / ("store" + std::to_string(fail_at));
    PackStore real(default_env(), root);
    ASSERT_OK(real.install(request_of(before)));
    FaultEnv env(default_env());
    env.fail_at(fail_at, ENOSPC);
    const auto installed = PackStore(env, root).install(request_of(pack));
    SCOPED_TRACE(fail_at);
    ASSERT_OK_AND_ASSIGN(const auto packs, real.list());
    if (installed.ok()) {
      EXPECT_GT(fail_at, 10) << "every operation was tried";
      EXPECT_EQ(packs.size(), 2U);
      break;
    }
    EXPECT_LE(packs.size(), 2U) << fail_at;
    for (const InstalledPack& one : packs)
      EXPECT_EQ(default_env().read_file(one.archive)->size(), (one.version == "1.0.0" ? before : pack).bytes.size());
    ASSERT_OK(real.install(request_of(pack)));  // and the next try works
    ASSERT_OK_AND_ASSIGN(const auto after, real.list());
    EXPECT_EQ(after.size(), 2U) << fail_at;
    ASSERT_OK(real.collect_garbage());
    EXPECT_EQ(default_env().list_dir(root / "objects")->size(), 2U) << fail_at;
  }
}

}  // namespace
}  // namespace mortise::test
