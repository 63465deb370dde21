// May this shared object be loaded? Everything that can be known without running it.
//
// Refused, with the reason and the fix: any export but pack symbols, a missing symbol, needed libraries beyond the C
// and C++ runtimes that the note does not list, run paths, any dynamic tag or flag that an ordinary shared object does
// not have (several load other libraries), an executable stack, text relocations, a file that could be unloaded, an ABI
// or torch version that does not fit. Threading: pure functions.
#pragma once

#include <string_view>

#include "foundation/base/result.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

// The symbol names the ABI's major. ABI 0 is the time before the freeze; its last minor has the same structs as 1.0.
inline constexpr const char* kPackSymbol = "mortise_pack_v1";
inline constexpr const char* kPackSymbolV0 = "mortise_pack_v0";
// The symbol of the majors that this program reads.
[[nodiscard]] constexpr const char* pack_symbol(int32_t abi) { return abi == 0 ? kPackSymbolV0 : kPackSymbol; }

// The N of a symbol mortise_pack_vN; empty: it is no such symbol. One file may hold packs of several majors.
[[nodiscard]] std::string_view major_of_symbol(std::string_view symbol);
// Another major is reported first, because its note may have another form.
[[nodiscard]] Result<> audit_major(const ElfSummary& elf, std::string_view where);
// Only the shared object.
[[nodiscard]] Result<> audit_elf(const ElfSummary& elf, std::string_view where);
// What its note claims, against the shared object and this host. `host_torch`: "" when the program has no libtorch.
[[nodiscard]] Result<> audit_pack(const ElfSummary& elf, const PackInfo& pack, std::string_view host_torch);

}  // namespace mortise
