// Which tags and flags the dynamic section of a pack may have. Private to this folder. Thread rule: constants.
#pragma once

#include <elf.h>

#include <cstdint>
#include <string_view>

namespace mortise {

// Linkers write these tags into an ordinary shared object, and they load nothing except what DT_NEEDED names.
[[nodiscard]] bool is_allowed_tag(int64_t tag);

// A tag that an attacker would use, by name.
struct NamedTag {
  int64_t number;
  std::string_view name;
  bool has_text;  // its value is a place in the string table
};
[[nodiscard]] const NamedTag* find_named_tag(int64_t tag);  // null: not one of them

// DF_1_PIE marks a program, which the audit refuses by name.
inline constexpr uint64_t kAllowedDynamicFlags1 = DF_1_NOW | DF_1_NODELETE | DF_1_ORIGIN | DF_1_PIE;
inline constexpr uint64_t kAllowedDynamicFlags = DF_ORIGIN | DF_SYMBOLIC | DF_TEXTREL | DF_BIND_NOW | DF_STATIC_TLS;

}  // namespace mortise
