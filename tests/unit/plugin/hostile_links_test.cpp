// Packs whose ELF tables make the dynamic loader do more than the audits of other loaders would see: load other
// libraries, overlapping segments, a second dynamic section. The host loads none of them, so no constructor of another
// library runs. Ordinary packs from real linkers still load.
#include <dlfcn.h>
#include <elf.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "plugin/host/library.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_file.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using test::pack_path;
using testing::HasSubstr;

// Whether the other library's constructor ran in a child process that does `work`.
bool leaves_mark(const std::function<void()>& work) {
  const test::TempDir temp;
  const Path mark = temp / "mark";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("MORTISE_TEST_MARK", mark.c_str(), 1);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return std::filesystem::exists(mark);
}

// As a loader without this audit would: what the pack says about itself is true, and its hash is right.
void load(const Path& path) {
  ASSERT_OK_AND_ASSIGN(PackInfo pack, inspect_pack(pack_path("minimal")));
  ASSERT_OK_AND_ASSIGN(const PackFile file, PackFile::open(path));
  pack.path = path.string();
  pack.sha256 = file.sha256();
  EXPECT_THAT(error_of(Library::load(pack, "")), HasSubstr("dynamic section has DT_"));
}

TEST(HostileLinksTest, LibrariesThatComeAlongDoNotRun) {
  EXPECT_TRUE(leaves_mark([] { ::dlopen(pack_path("auxiliary").c_str(), RTLD_NOW | RTLD_LOCAL); }))
      << "the loader does run the constructor of an auxiliary library, so this test would see it";
  for (const char* name : {"auxiliary", "filter", "depaudit", "audit"})
    EXPECT_FALSE(leaves_mark([&] { load(pack_path(name)); })) << name;
}

// --- patched program headers ---

struct Image {
  std::vector<std::byte> bytes;

  Elf64_Phdr header(size_t i) const {
    Elf64_Phdr out;
    std::memcpy(&out, bytes.data() + sizeof(Elf64_Ehdr) + i * sizeof out, sizeof out);
    return out;
  }
  void set_header(size_t i, const Elf64_Phdr& value) {
    std::memcpy(bytes.data() + sizeof(Elf64_Ehdr) + i * sizeof value, &value, sizeof value);
  }
  // The first header of a type, from `start` on.
  size_t find(uint32_t type, size_t start = 0) const {
    while (header(start).p_type != type) ++start;
    return start;
  }
  std::string error() const { return error_of(read_elf(bytes, "x.so")); }
};

Image minimal_image() {
  auto file = PackFile::open(pack_path("minimal"));
  EXPECT_TRUE(file.ok());
  return {{file->bytes().begin(), file->bytes().end()}};
}

TEST(HostileLinksTest, ASecondDynamicSectionIsAnError) {
  Image image = minimal_image();
  ASSERT_EQ(image.error(), "ok");
  image.set_header(image.find(PT_GNU_EH_FRAME), image.header(image.find(PT_DYNAMIC)));
  EXPECT_THAT(image.error(), HasSubstr("more than one dynamic section"));
}

TEST(HostileLinksTest, ADynamicSectionEndsWhereItsSegmentEnds) {
  Image image = minimal_image();
  const size_t at = image.find(PT_DYNAMIC);
  Elf64_Phdr header = image.header(at);
  header.p_filesz = header.p_memsz = 4 * sizeof(Elf64_Dyn);  // the loader reads on until DT_NULL
  image.set_header(at, header);
  EXPECT_THAT(image.error(), HasSubstr("the dynamic section has no end"));
}

TEST(HostileLinksTest, ATagThatComesTwiceIsAnError) {
  Image image = minimal_image();
  const Elf64_Phdr header = image.header(image.find(PT_DYNAMIC));
  for (size_t at = header.p_offset; at < header.p_offset + header.p_filesz; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, image.bytes.data() + at, sizeof entry);
    if (entry.d_tag != DT_RELACOUNT) continue;
    entry.d_tag = DT_STRTAB;
    std::memcpy(image.bytes.data() + at, &entry, sizeof entry);
  }
  EXPECT_THAT(image.error(), HasSubstr("has the tag 0x5 twice"));
}

TEST(HostileLinksTest, SegmentsThatOverlapAreAnError) {
  const Image good = minimal_image();
  const size_t first = good.find(PT_LOAD);
  const size_t second = good.find(PT_LOAD, first + 1);
  const auto with = [&](const std::function<void(Elf64_Phdr&)>& change) {
    Image image = good;
    Elf64_Phdr header = image.header(second);
    change(header);
    image.set_header(second, header);
    return image.error();
  };
  EXPECT_EQ(with([](Elf64_Phdr&) {}), "ok");
  EXPECT_THAT(with([&](Elf64_Phdr& header) { header.p_vaddr = good.header(first).p_vaddr; }), HasSubstr("overlap"));
  EXPECT_THAT(with([](Elf64_Phdr& header) { header.p_memsz += 1 << 20; }), HasSubstr("overlap"));
  EXPECT_THAT(with([](Elf64_Phdr& header) { header.p_memsz = header.p_filesz - 1; }),
              HasSubstr("more bytes in the file"));
  EXPECT_THAT(with([](Elf64_Phdr& header) { header.p_vaddr += 16; }), HasSubstr("do not fit together"));
  EXPECT_THAT(with([](Elf64_Phdr& header) { header.p_memsz = ~uint64_t{0}; }), HasSubstr("outside the address space"));
  EXPECT_THAT(with([](Elf64_Phdr& header) { header.p_offset = uint64_t{1} << 40; }), HasSubstr("outside the file"));
}

// Every pair of segments that share a page, though no byte: the later one's page hides the earlier one's.
TEST(HostileLinksTest, SegmentsThatShareAPageAreAnError) {
  Image image = minimal_image();
  const size_t first = image.find(PT_LOAD);
  const size_t second = image.find(PT_LOAD, first + 1);
  Elf64_Phdr header = image.header(first);
  header.p_memsz = image.header(second).p_vaddr + 1 - header.p_vaddr;
  image.set_header(first, header);
  EXPECT_THAT(image.error(), HasSubstr("overlap"));
}

TEST(HostileLinksTest, APackThatCannotBeSealedIsNotLoaded) {
  EXPECT_FALSE(leaves_mark([] {
    ASSERT_OK_AND_ASSIGN(const PackInfo pack, inspect_pack(pack_path("constructor")));
    const rlimit limit = {4096, 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THAT(error_of(Library::load(pack, "")), HasSubstr("cannot be sealed before it is loaded"));
    if (::testing::Test::HasFailure()) ::_exit(1);
  }));
}

TEST(HostileLinksTest, WhatLinkersMakeLoads) {
  std::ifstream list(test::pack_dir("linked_packs.txt"));
  size_t count = 0;
  for (std::string name; list >> name; ++count) {
    SCOPED_TRACE(name);
    const auto pack = inspect_pack(pack_path("linked_" + name));
    ASSERT_OK(pack);
    const auto library = Library::load(*pack, "");
    ASSERT_OK(library);
    EXPECT_NE((*library)->vtable("mortise.reward/1", "linked_" + name), nullptr);
  }
  EXPECT_GE(count, 10U);
}

}  // namespace
}  // namespace mortise
