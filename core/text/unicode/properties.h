// Unicode 16 properties and case mappings, the same on every machine, whatever its libraries are built with. Tables:
// tables.inc, made by generate_tables.py. Cost: binary search over 3,400 runs; ASCII is answered at once.
// Thread rule: pure functions on constant tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::unicode {

enum class Category : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
  kCn,
};

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

using CategoryMask = uint32_t;
constexpr CategoryMask mask_of(Category category) { return 1U << static_cast<uint8_t>(category); }
inline constexpr CategoryMask kLetters = 0x1F;
inline constexpr CategoryMask kMarks = 0x7 << 5;
inline constexpr CategoryMask kNumbers = 0x7 << 8;
inline constexpr CategoryMask kPunctuation = 0x7F << 11;
inline constexpr CategoryMask kSymbols = 0xF << 18;
inline constexpr CategoryMask kSeparators = 0x7 << 22;
inline constexpr CategoryMask kOthers = 0x1F << 25;
// "L", "Lu", "P" ... as in \p{...}; 0 for another name. `LC` and `L&` are the cased letters.
CategoryMask category_mask(std::string_view name);
// A property's name for comparison: letters in lower case, no spaces, hyphens and underscores.
std::string loose_name(std::string_view name);

Category category(char32_t code);
inline bool is_in(char32_t code, CategoryMask mask) { return (mask_of(category(code)) & mask) != 0; }
// The property White_Space.
bool is_white_space(char32_t code);
// \w of Rust's regex crate: Alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(char32_t code);

// Sorted ranges of the code points in `mask`, and of those that Unicode 14 had in it.
std::vector<CodeRange> ranges_of(CategoryMask mask);
std::vector<CodeRange> ranges_of_unicode14(CategoryMask mask);
const std::vector<CodeRange>& white_space_ranges();
// Alphabetic code points that are no letter, mark or number (circled letters).
std::vector<CodeRange> other_word_ranges();
// The code points whose Script (not Script_Extensions) has this name, in any spelling ("han", "Old Italic"); nothing
// for another name.
std::optional<std::vector<CodeRange>> script_ranges(std::string_view name);
// A binary property (\p{Emoji}), written in any way, that has changed since Unicode 14: what came, or, where something
// went too, all code points of Unicode 16. Nothing for another name.
struct ChangedProperty {
  bool is_whole;
  std::vector<CodeRange> ranges;
};
std::optional<ChangedProperty> changed_property(std::string_view name);
// Whether it has a mapping, a combining class or a composition that Unicode 9 does not know. The normalizers of the
// tokenizers library have that version and do not change it.
bool is_normalized_since_9(char32_t code);
// All of [0, 10FFFF] without the surrogates that is in none of the (sorted) ranges.
std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);

// Full case mappings of one code point (ß -> SS), without context.
void append_lower(std::string& out, char32_t code);
void append_upper(std::string& out, char32_t code);
void append_title(std::string& out, char32_t code);

}  // namespace mortise::unicode
