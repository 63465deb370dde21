// A pack that is looked at before it is loaded: any bytes as an ELF file, and any text as its note.
#include <vector>

#include "fuzz/fuzz_support.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mortise;
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
  (void)parse_note(fuzz::as_text(data, size), "input.so");
  return 0;
}
