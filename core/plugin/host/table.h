// The pack's table in memory, as PackInfo, and its comparison with the note.
#pragma once

#include <string_view>

#include "foundation/base/result.h"
#include "mortise/pack.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

// Null pointers, sizes and counts that cannot be right are an Error. `info` gives path and hash.
[[nodiscard]] Result<PackInfo> read_table(const mortise_pack& pack, const PackInfo& info);

// Same id, version, ABI and plugins? The Error names the first difference.
[[nodiscard]] Result<> compare_with_note(const PackInfo& table, const PackInfo& note);

// Describes the i-th plugin. Precondition: read_table() succeeded.
[[nodiscard]] const mortise_descriptor* table_descriptor(const mortise_pack& pack, size_t i);

}  // namespace mortise
