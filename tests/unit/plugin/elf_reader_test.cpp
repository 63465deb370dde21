// Reading a shared object's headers without loading it.
#include "plugin/pack/elf_reader.h"

#include <elf.h>

#include <cstring>

#include "plugin/pack/audit.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using test::pack_path;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes_of(const Path& path) {
  auto file = PackFile::open(path);
  EXPECT_TRUE(file.ok()) << file.error().to_string();
  return {file->bytes().begin(), file->bytes().end()};
}

TEST(ElfReaderTest, ReadsWhatTheLoaderWillSee) {
  const auto bytes = bytes_of(pack_path("minimal"));
  ASSERT_OK_AND_ASSIGN(const ElfSummary elf, read_elf(bytes, "minimal.so"));
  EXPECT_THAT(elf.exports, ElementsAre("mortise_pack_v1"));
  EXPECT_THAT(elf.needed, Contains("libc.so.6"));
  EXPECT_THAT(elf.undefined, Contains("malloc"));
  EXPECT_TRUE(elf.runpaths.empty());
  EXPECT_TRUE(elf.nodelete);
  EXPECT_FALSE(elf.executable_stack);
  EXPECT_FALSE(elf.text_relocations);
  EXPECT_FALSE(elf.is_program);
  ASSERT_OK_AND_ASSIGN(const std::string_view note, find_note(elf, "minimal.so"));
  EXPECT_THAT(std::string(note), HasSubstr("test.minimal"));
}

TEST(ElfReaderTest, SeesEveryFault) {
  const auto summary = [](const char* name) { return std::move(read_elf(bytes_of(pack_path(name)), name)).value(); };
  EXPECT_THAT(summary("extra_export").exports, ElementsAre("leaked_helper", "leaked_state", "mortise_pack_v1"));
  EXPECT_TRUE(summary("no_symbol").exports.empty());
  EXPECT_THAT(summary("run_path").runpaths, ElementsAre("/tmp/somewhere"));
  EXPECT_TRUE(summary("exec_stack").executable_stack);
  EXPECT_FALSE(summary("deletable").nodelete);
  EXPECT_THAT(summary("needs_other").needed, Contains("libtest_other_library.so"));
}

TEST(ElfReaderTest, KnowsAProgramFromALibrary) {
  const auto bytes = bytes_of("/proc/self/exe");
  const auto elf = read_elf(bytes, "program");
  ASSERT_OK(elf);
  EXPECT_TRUE(elf->is_program);
  EXPECT_THAT(error_of(audit_elf(*elf, "program")), HasSubstr("a program, not a shared object"));
}

TEST(ElfReaderTest, NamesWhatItIsGivenInstead) {
  const std::string text =
      "#!/bin/sh\necho this is no library, whatever its name says; it is long enough for a header\n";
  EXPECT_THAT(error_of(read_elf(std::as_bytes(std::span(text)), "x.so")), HasSubstr("no ELF header"));
  EXPECT_THAT(error_of(read_elf({}, "x.so")), HasSubstr("no ELF header"));
  auto bytes = bytes_of(pack_path("minimal"));
  EXPECT_THAT(error_of(read_elf(std::span(bytes).first(40), "x.so")), HasSubstr("ends inside the file header"));
  auto other = bytes;
  other[offsetof(Elf64_Ehdr, e_machine)] = std::byte{0x08};  // MIPS
  EXPECT_THAT(error_of(read_elf(other, "x.so")), HasSubstr("another machine"));
  auto relocatable = bytes;
  relocatable[offsetof(Elf64_Ehdr, e_type)] = std::byte{1};
  EXPECT_THAT(error_of(read_elf(relocatable, "x.so")), HasSubstr("not a shared object"));
}

TEST(ElfReaderTest, NoteSurvivesZeroedSectionHeaders) {
  auto bytes = bytes_of(pack_path("minimal"));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.e_shoff = 0;
  header.e_shnum = header.e_shstrndx = 0;
  std::memcpy(bytes.data(), &header, sizeof header);
  const auto elf = read_elf(bytes, "x.so");
  ASSERT_OK(elf);
  EXPECT_OK(find_note(*elf, "x.so"));
  EXPECT_THAT(error_of(check_section_headers(bytes, "x.so")), HasSubstr("no section headers"));
}

TEST(ElfReaderTest, TruncatedAnywhereIsAnErrorOrTheSameNote) {
  const auto bytes = bytes_of(pack_path("minimal"));
  for (size_t size = 0; size < bytes.size(); size += 7) {
    const auto elf = read_elf(std::span(bytes).first(size), "x.so");
    if (elf.ok()) {
      EXPECT_THAT(elf->exports, ElementsAre("mortise_pack_v1")) << size;
    } else {
      EXPECT_EQ(elf.error().kind, ErrorKind::kPlugin);
    }
  }
}

}  // namespace
}  // namespace mortise
