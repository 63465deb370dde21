// Every broken pack of tests/host/packs is refused without running it, and says what, where and what to do.
#include <sys/stat.h>

#include "foundation/formats/sha256.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_file.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using test::pack_path;
using testing::HasSubstr;

struct Broken {
  const char* name;
  const char* what;
  const char* next;
};
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }
class BrokenPackTest : public testing::TestWithParam<Broken> {};

TEST_P(BrokenPackTest, IsRefused) {
  const Path path = pack_path(GetParam().name);
  const auto pack = inspect_pack(path);
  ASSERT_FALSE(pack.ok());
  EXPECT_EQ(pack.error().kind, ErrorKind::kPlugin);
  EXPECT_THAT(pack.error().what, HasSubstr(GetParam().what));
  EXPECT_THAT(pack.error().where, HasSubstr(path.string()));
  EXPECT_THAT(pack.error().next, HasSubstr(GetParam().next));
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenPackTest,
    testing::Values(
        Broken{"no_note", "no metadata note", "mortise_add_pack"},
        Broken{"two_notes", "two metadata notes", "mortise_add_pack"},
        Broken{"no_symbol", "does not export 'mortise_pack_v1'", "MORTISE_PACK"},
        Broken{"extra_export", "'leaked_helper', 'leaked_state'", "version script"},
        Broken{"wrong_abi", "plugin ABI 7, this program reads ABI 1 and 0", "build the pack again"},
        Broken{"damaged_note", "the metadata note is damaged: ", "with the SDK's mortise_add_pack()"},
        Broken{"other_major", "plugin ABI 7, this program reads ABI 1 and 0", "this version's SDK"},
        Broken{"newer_host", "needs a host of plugin ABI 1.99, this one has 1.0", "update mortise"},
        Broken{"abi_0_newer", "needs a host of plugin ABI 0.3, and ABI 0 has ended with 0.2", "this version's SDK"},
        Broken{"abi_0_note", "its metadata note is of plugin ABI 0, but it exports 'mortise_pack_v1'", "build"},
        Broken{"abi_1_note", "its metadata note is of plugin ABI 1, but it exports 'mortise_pack_v0'", "build"},
        Broken{"both_symbols_abi_0", "note is of plugin ABI 0, but it exports 'mortise_pack_v1'", "build"},
        Broken{"needs_other", "'libtest_other_library.so', which its note does not list", "NEEDS"},
        Broken{"needs_openmp", "second OpenMP runtime", "host->parallel_for"},
        Broken{"run_path", "run path '/tmp/somewhere'", "-rpath"},
        Broken{"auxiliary", "has DT_AUXILIARY '", "without --auxiliary"},
        Broken{"filter", "has DT_FILTER '", "without --auxiliary, --filter"},
        Broken{"depaudit", "has DT_DEPAUDIT '", "--depaudit"}, Broken{"audit", "has DT_AUDIT '", "--audit"},
        Broken{"init_first", "has DT_FLAGS_1 0x20", "unusual -z options"},
        Broken{"global", "has DT_FLAGS_1 0x2", "unusual -z options"},
        Broken{"exec_stack", "executable stack", "noexecstack"}, Broken{"deletable", "could be unloaded", "nodelete"},
        Broken{"other_torch", "libtorch 1.0.0, this program has no libtorch", "use a program with libtorch 1.0.0"}));

TEST(InspectTest, ReadsAGoodPackWithoutRunningIt) {
  const test::TempDir temp;
  ::setenv("MORTISE_TEST_MARK", (temp / "mark").c_str(), 1);
  const auto pack = inspect_pack(pack_path("constructor"));
  ::unsetenv("MORTISE_TEST_MARK");
  ASSERT_OK(pack);
  EXPECT_FALSE(std::filesystem::exists(temp / "mark"));
  EXPECT_EQ(pack->id, "test.constructor");
  EXPECT_EQ(pack->path, pack_path("constructor").string());
  ASSERT_OK_AND_ASSIGN(const std::string hash, sha256_file_hex(default_env(), pack_path("constructor")));
  EXPECT_EQ(pack->sha256, hash);
}

TEST(InspectTest, ANoteMadeByTheSdkIsReadInFull) {
  ASSERT_OK_AND_ASSIGN(const PackInfo pack, inspect_pack(test::pack_dir("rude") / "test.rude.so"));
  const PluginInfo* probe = pack.find_plugin("mortise.reward/1", "probe");
  ASSERT_NE(probe, nullptr);
  ASSERT_EQ(probe->params.size(), 4U);
  EXPECT_EQ(probe->find_param("level")->type, ParamType::kI64);
  EXPECT_EQ(probe->find_param("mode")->choices, (std::vector<std::string>{"slow", "fast"}));
  EXPECT_TRUE(pack.find_plugin("mortise.advantage_estimator/1", "needs_values")->requires_input("values"));
}

// Packs that our compilers would not make from minimal_pack.c.
TEST(InspectTest, AuditsSayWhatToDo) {
  ElfSummary elf;
  elf.exports = {"mortise_pack_v1"};
  elf.nodelete = true;
  EXPECT_OK(audit_elf(elf, "x.so"));
  elf.text_relocations = true;
  EXPECT_EQ(error_of(audit_elf(elf, "x.so")), "x.so: has text relocations; compile it with -fPIC");

  PackInfo pack;
  pack.path = "x.so";
  const auto needs = [&](const char* library) {
    ElfSummary needy;
    needy.needed = {"libc.so.6", library};
    return error_of(audit_pack(needy, pack, "2.11.0"));
  };
  EXPECT_EQ(needs("libm.so.6"), "ok");
  EXPECT_THAT(needs("libtorch_cpu.so"), testing::AllOf(HasSubstr("not of the torch-locked tier"), HasSubstr("TORCH")));
  EXPECT_THAT(needs("libpython3.11.so.1.0"), testing::AllOf(HasSubstr("may not enter"), HasSubstr("behind a service")));
  pack.allowed_needs = {"libomp.so.5", "libz.so.1"};
  EXPECT_EQ(needs("libz.so.1"), "ok");
  EXPECT_THAT(needs("libomp.so.5"), HasSubstr("second OpenMP runtime")) << "listed or not";
  pack.tier = "torch-locked";
  pack.torch = "2.11.0";
  EXPECT_EQ(needs("libtorch_cpu.so"), "ok");
  pack.torch = "2.10.1";
  EXPECT_THAT(needs("libm.so.6"),
              testing::AllOf(HasSubstr("built for libtorch 2.10.1, this program has libtorch 2.11.0"),
                             HasSubstr("MORTISE_TORCH_DIR naming libtorch 2.11.0")));
}

TEST(InspectTest, FilesThatAreTooLargeAreNotRead) {
  const test::TempDir temp;
  const Path path = temp.write("large.so", "");
  std::filesystem::resize_file(path, (uintmax_t{2} << 30) + 1);  // a hole, which takes no room on the disk
  EXPECT_THAT(error_of(inspect_pack(path)), testing::AllOf(HasSubstr("larger than 2 GiB"), HasSubstr("keep data out")));
}

TEST(InspectTest, FilesThatAreNoFiles) {
  const test::TempDir temp;
  EXPECT_THAT(error_of(inspect_pack(temp / "absent.so")), HasSubstr("absent.so"));
  EXPECT_THAT(error_of(inspect_pack(temp.path())), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((temp / "fifo.so").c_str(), 0600), 0);
  EXPECT_THAT(error_of(inspect_pack(temp / "fifo.so")), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of(inspect_pack(temp.write("empty.so", ""))), HasSubstr("no ELF header"));
}

}  // namespace
}  // namespace mortise
