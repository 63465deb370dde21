// Any bytes at all are safe input of the ELF reader and the note parser: bytes of real packs are changed at random, and
// under the address sanitizer nothing may be read outside the file. MORTISE_LONG=1 runs more of it.
#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "foundation/base/rng.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"
#include "support/this_build.h"
#include "test_packs.h"

namespace mortise {
namespace {

// Everything that inspect_pack does to bytes. Returns how far it got.
int walk(std::span<const std::byte> bytes) {
  static_cast<void>(check_section_headers(bytes, "x.so").ok());
  const auto elf = read_elf(bytes, "x.so");
  if (!elf.ok()) return 0;
  static_cast<void>(audit_elf(*elf, "x.so").ok());
  const auto note = find_note(*elf, "x.so");
  if (!note.ok()) return 1;
  const auto pack = parse_note(*note, "x.so");
  if (!pack.ok()) return 2;
  static_cast<void>(audit_pack(*elf, *pack, "").ok());
  return 3;
}

// Exactly as many bytes as the file, on the heap, so that a sanitizer sees a read one byte too far.
class Mutator {
 public:
  Mutator(const Path& path, uint64_t seed) : random_({.seed = seed, .purpose = RandomPurpose::kTest}) {
    auto file = PackFile::open(path);
    EXPECT_TRUE(file.ok());
    original_.assign(file->bytes().begin(), file->bytes().end());
  }

  std::vector<std::byte> next() {
    auto bytes = original_;
    const uint64_t style = random_.next_below(4);
    const uint64_t num_changes = 1 + random_.next_below(style == 0 ? 1 : 8);
    for (uint64_t i = 0; i < num_changes; ++i) change(bytes, style);
    if (random_.next_below(8) == 0) bytes.resize(random_.next_below(bytes.size()) + 1);
    bytes.shrink_to_fit();
    return bytes;
  }

 private:
  void change(std::vector<std::byte>& bytes, uint64_t style) {
    // Most of the meaning is in the headers, the dynamic section and the note, all near the two ends.
    const uint64_t span = style == 3 ? bytes.size() : std::min<uint64_t>(bytes.size(), style == 2 ? 64 * 16 : 4096);
    const uint64_t at = random_.next_below(span);
    constexpr uint64_t kSpecial[] = {
        0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff, 0xfffffffffffffff8};
    const uint64_t value =
        random_.next_below(2) == 0 ? random_.next_u64() : kSpecial[random_.next_below(std::size(kSpecial))];
    const size_t width = size_t{1} << random_.next_below(4);
    std::memcpy(bytes.data() + at, &value, std::min<size_t>(width, bytes.size() - at));
  }

  RandomStream random_;
  std::vector<std::byte> original_;
};

uint64_t rounds() { return std::getenv("MORTISE_LONG") != nullptr ? 200'000 : 10'000; }

TEST(ElfMutationTest, RandomChangesNeverReadOutside) {
  int reached[4] = {};
  for (const char* name : {"minimal", "extra_export"}) {
    Mutator mutator(test::pack_path(name), test::kSanitized ? 12 : 11);  // each kind of build reads changes of its own
    for (uint64_t i = 0; i < rounds(); ++i) ++reached[walk(mutator.next())];
  }
  // The changes must reach every stage, or this test proves little.
  for (const int count : reached) EXPECT_GT(count, 20);
}

// Fields of program headers, dynamic entries and symbols, each set to the values that break arithmetic.
TEST(ElfMutationTest, EveryHeaderFieldAtItsExtremes) {
  auto file = PackFile::open(test::pack_path("minimal"));
  ASSERT_OK(file);
  const std::vector<std::byte> original(file->bytes().begin(), file->bytes().end());
  Elf64_Ehdr header;
  std::memcpy(&header, original.data(), sizeof header);
  const size_t headers_end = header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr);
  std::vector<std::pair<size_t, size_t>> areas = {{0, headers_end}};
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, original.data() + header.e_phoff + static_cast<size_t>(i) * sizeof segment, sizeof segment);
    if (segment.p_type == PT_DYNAMIC || segment.p_type == PT_NOTE)
      areas.emplace_back(segment.p_offset, segment.p_offset + std::min<size_t>(segment.p_filesz, 512));
  }
  for (const auto& [first, last] : areas) {
    for (size_t at = first; at + 8 <= last; at += 4) {
      for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{0x7fffffff}, ~uint64_t{0}, ~uint64_t{7},
                                   uint64_t{1} << 63, original.size() - 1, original.size()}) {
        for (const size_t width : {4, 8}) {
          auto bytes = original;
          std::memcpy(bytes.data() + at, &value, width);
          walk(bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mortise
