// The section headers of a pack: the loader ignores them, and tools that audit it do not. See elf_reader.h.
#include <fmt/core.h>

#include <elf.h>

#include <string>
#include <utility>

#include "plugin/pack/elf_bytes.h"
#include "plugin/pack/elf_reader.h"

namespace mortise {

Result<> check_section_headers(std::span<const std::byte> file, std::string_view where) {
  const ElfBytes bytes(file);
  const auto bad = [&](std::string what) {
    return Error{ErrorKind::kPlugin, "damaged ELF file: " + std::move(what), std::string(where),
                 "build the pack again; do not drop its section headers"};
  };
  const auto header = bytes.read<Elf64_Ehdr>(0);
  if (!header) return bad("it ends inside the file header");
  if (header->e_shnum == 0 || header->e_shoff == 0) return bad("no section headers");
  if (header->e_shentsize != sizeof(Elf64_Shdr)) return bad("section headers of a wrong size");
  if (!bytes.contains(header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr))) {
    return bad("section headers lie outside the file");
  }
  if (header->e_shstrndx >= header->e_shnum) return bad("no section names");
  for (uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto section = *bytes.read<Elf64_Shdr>(header->e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (!bytes.contains(section.sh_offset, section.sh_size))
      return bad(fmt::format("section {} lies outside the file", i));
  }
  const auto names = *bytes.read<Elf64_Shdr>(header->e_shoff + uint64_t{header->e_shstrndx} * sizeof(Elf64_Shdr));
  if (names.sh_type != SHT_STRTAB || names.sh_size == 0) return bad("section names are not at a string table");
  return {};
}

}  // namespace mortise
