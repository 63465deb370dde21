// See regex_classes.h.
#include "text/tokenizer/regex_classes.h"

#include <fmt/core.h>

#include <cstdio>
#include <vector>

#include "text/unicode/properties.h"

namespace mortise {
namespace {

using unicode::Category;
using unicode::CategoryMask;
using unicode::CodeRange;
using unicode::mask_of;

std::string range_text(const std::vector<CodeRange>& ranges) {
  std::string out;
  char buffer[40];
  for (const CodeRange& range : ranges) {
    if (range.first == range.last) {
      std::snprintf(buffer, sizeof buffer, "\\x{%X}", range.first);
    } else {
      std::snprintf(buffer, sizeof buffer, "\\x{%X}-\\x{%X}", range.first, range.last);
    }
    out += buffer;
  }
  return out;
}

// The code points of `ranges` that are in none of `others`.
std::vector<CodeRange> subtract(const std::vector<CodeRange>& ranges, const std::vector<CodeRange>& others) {
  std::vector<CodeRange> out;
  for (const CodeRange& range : ranges) {
    uint32_t next = range.first;
    for (const CodeRange& other : others) {
      if (other.last < next || other.first > range.last) continue;
      if (other.first > next) out.push_back({next, other.first - 1});
      next = other.last + 1;
    }
    if (next <= range.last) out.push_back({next, range.last});
  }
  return out;
}

std::string outside(CategoryMask mask) { return range_text(unicode::complement(unicode::ranges_of(mask))); }

struct CategoryName {
  std::string_view name;  // in the form of loose_name
  std::string_view short_name;
};
constexpr CategoryName kCategoryNames[] = {
    {"letter", "L"},
    {"casedletter", "LC"},
    {"lc", "LC"},
    {"l&", "LC"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"punct", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
};

// "lu" or "Uppercase_Letter" -> "Lu"; empty if it is not a category.
std::string category_name(std::string_view name) {
  std::string loose = unicode::loose_name(name);
  for (const CategoryName& known : kCategoryNames) {
    if (known.name == loose) return std::string(known.short_name);
  }
  if (loose.empty() || loose.size() > 2) return {};
  if (loose[0] >= 'a' && loose[0] <= 'z') loose[0] = static_cast<char>(loose[0] - 32);
  return unicode::category_mask(loose) != 0 ? loose : std::string();
}

}  // namespace

std::string RegexClasses::space() { return range_text(unicode::white_space_ranges()); }

std::string RegexClasses::not_space() { return range_text(unicode::complement(unicode::white_space_ranges())); }

// Oniguruma's table for \w also holds these six characters of Latin-1 (superscripts and fractions).
std::string RegexClasses::word() { return posix_word() + range_text({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}); }

std::string RegexClasses::posix_word() {
  return category("L") + category("M") + category("Nd") + category("Nl") + category("Pc") +
         range_text(unicode::other_word_ranges());
}

const std::string& RegexClasses::category(std::string_view name) {
  const auto known = categories_.find(name);
  if (known != categories_.end()) return known->second;
  return categories_.emplace(name, make_category(name)).first->second;
}

// In Unicode 16: PCRE2's own ranges (Unicode 14) and the newer ones, or all ranges.
std::string RegexClasses::make_category(std::string_view name) const {
  const CategoryMask mask = unicode::category_mask(name);
  const auto now = unicode::ranges_of(mask);
  const auto then = unicode::ranges_of_unicode14(mask);
  if (exact_ranges_ || !subtract(then, now).empty()) return range_text(now);
  return fmt::format("\\p{{{}}}{}", name == "LC" ? "L&" : name, range_text(subtract(now, then)));
}

std::optional<std::string> RegexClasses::posix(std::string_view name) {
  constexpr CategoryMask kUnseen = mask_of(Category::kCc) | mask_of(Category::kCn) | mask_of(Category::kCs);
  constexpr CategoryMask kLines = mask_of(Category::kZl) | mask_of(Category::kZp);
  if (name == "alpha") return binary("Alphabetic");
  if (name == "alnum") return binary("Alphabetic") + category("Nd");
  if (name == "lower") return binary("Lowercase");
  if (name == "upper") return binary("Uppercase");
  if (name == "digit") return category("Nd");
  if (name == "space") return space();
  if (name == "word") return posix_word();
  if (name == "punct") return category("P") + category("S");
  if (name == "cntrl") return category("Cc");
  if (name == "blank") return "\\t" + category("Zs");
  if (name == "xdigit") return "0-9A-Fa-f";
  if (name == "ascii") return "\\x{0}-\\x{7F}";
  if (name == "graph") return outside(kUnseen | unicode::kSeparators);
  if (name == "print") return outside(kUnseen | kLines);
  return std::nullopt;
}

// A binary property: PCRE2's own and what came since Unicode 14. An unknown name fails when it compiles.
std::string RegexClasses::binary(std::string_view name) {
  const std::string loose = unicode::loose_name(name);
  for (const std::string_view posix_name : {"alnum", "word", "blank", "graph", "print", "xdigit"}) {
    if (loose == posix_name) return *posix(posix_name);
  }
  if (loose == "assigned") return outside(mask_of(Category::kCn));
  const auto changed = unicode::changed_property(name);
  if (changed && changed->is_whole) return range_text(changed->ranges);
  return fmt::format("\\p{{{}}}{}", name, changed ? range_text(changed->ranges) : "");
}

std::string RegexClasses::property(std::string_view name, bool negated, bool in_class) {
  const std::string short_name = category_name(name);
  // PCRE2's own \p{Han} is Script_Extensions, which has the punctuation too.
  const auto script = short_name.empty() ? unicode::script_ranges(name) : std::nullopt;
  if (negated && in_class) {
    if (!short_name.empty()) return outside(unicode::category_mask(short_name));
    if (script) return range_text(unicode::complement(*script));
  }
  const std::string items = !short_name.empty() ? category(short_name) : script ? range_text(*script) : binary(name);
  if (!negated && in_class) return items;
  return fmt::format("{}{}]", negated ? "[^" : "[", items);
}

}  // namespace mortise
