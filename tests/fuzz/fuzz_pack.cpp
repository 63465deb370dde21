// A pack that is looked at before it is loaded: any bytes as an ELF file, and the note in it.
#include <vector>

#include "fuzz/fuzz_support.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data),
                                    reinterpret_cast<const std::byte*>(data) + size);
  const auto elf = read_elf(file, "input.so");
  if (elf.ok()) {
    for (const ElfNote& note : elf->notes) {
      fuzz::require(note.desc.size() <= size, "a note lies in the file");
    }
    if (const auto text = find_note(*elf, "input.so"); text.ok()) (void)parse_note(*text, "input.so");
  }
  (void)check_section_headers(file, "input.so");
  if (elf.ok()) (void)audit_elf(*elf, "input.so");
}

}  // namespace mortise
