// The parts of an ELF64 shared object that decide whether it may be loaded, read without the dynamic loader.
//
// It follows what the loader will see (program headers and PT_DYNAMIC), never section headers, which strip may drop and
// which the loader does not check. A file that this reader and the loader could read differently is an error: there is
// exactly one PT_DYNAMIC, it ends with DT_NULL and has no tag twice, and the PT_LOADs are in order and share no page.
// Every offset is checked against the file, so any bytes are safe input (tests/unit/plugin/elf_mutation_test.cpp).
// Cost: O(headers + dynamic symbols). Threading: pure functions.
// Sources: System V ABI gABI 4.1 chapters 4 and 5; the GNU hash section format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct ElfNote {
  std::string owner;
  uint32_t type = 0;
  std::string_view desc;  // borrowed from the file's bytes
};

struct ElfSummary {
  std::vector<std::string> exports;    // defined, global or weak, default or protected visibility; sorted
  std::vector<std::string> undefined;  // what the loader must find elsewhere; sorted
  std::vector<std::string> needed;     // DT_NEEDED, in order
  std::vector<std::string> runpaths;   // DT_RUNPATH and DT_RPATH
  std::string soname;
  // Dynamic tags and flags that no pack needs, as text: "DT_AUXILIARY 'libother.so'". Some of them load or run code of
  // other files (DT_AUXILIARY, DT_FILTER, DT_AUDIT, DT_DEPAUDIT), others are unknown and may.
  std::vector<std::string> unexpected;
  bool nodelete = false;          // DF_1_NODELETE
  bool executable_stack = false;  // PT_GNU_STACK with PF_X, or absent
  bool text_relocations = false;
  bool is_program = false;  // DF_1_PIE or PT_INTERP
  std::vector<ElfNote> notes;
};

// `where` is the file's path, for errors.
[[nodiscard]] Result<ElfSummary> read_elf(std::span<const std::byte> file, std::string_view where);

// Are the section headers sane enough for a reader that trusts them (Boost.DLL's library_info)?
[[nodiscard]] Result<> check_section_headers(std::span<const std::byte> file, std::string_view where);

}  // namespace mortise
