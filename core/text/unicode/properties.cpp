// See properties.h.
#include "text/unicode/properties.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "foundation/base/text.h"

namespace mortise::unicode {
namespace {

struct ChangedRun {
  uint32_t first;
  uint32_t last;
  uint8_t category;
};

struct NamedRun {  // characters of a script or a property
  uint32_t first;
  uint32_t last;
  uint8_t index;
};

struct PropertyName {
  std::string_view name;
  uint8_t index;
  bool is_whole;
};

struct CaseRow {
  uint32_t code;
  uint32_t lower[3];
  uint32_t upper[3];
  uint32_t title[3];
};

#include "text/unicode/tables.inc"

constexpr uint32_t kLastCode = 0x10FFFF;

Category search_category(char32_t code) {
  const uint32_t key = static_cast<uint32_t>(code) << 5 | 0x1F;
  const auto* after = std::upper_bound(std::begin(kCategoryRuns), std::end(kCategoryRuns), key);
  return static_cast<Category>(*(after - 1) & 0x1F);
}

const CaseRow* special_case(char32_t code) {
  const auto* row = std::lower_bound(std::begin(kSpecialCase), std::end(kSpecialCase), static_cast<uint32_t>(code),
                                     [](const CaseRow& a, uint32_t b) { return a.code < b; });
  return row != std::end(kSpecialCase) && row->code == code ? row : nullptr;
}

void append_mapped(std::string& out, const uint32_t (&codes)[3]) {
  for (const uint32_t code : codes) {
    if (code != 0) append_utf8(out, code);
  }
}

void push_range(std::vector<CodeRange>& ranges, uint32_t first, uint32_t last) {
  if (!ranges.empty() && ranges.back().last + 1 == first) {
    ranges.back().last = last;
  } else {
    ranges.push_back({first, last});
  }
}

// Calls visit(first, last, category) for every run of Unicode 16, in order.
template <class Visit>
void for_each_run(Visit visit) {
  constexpr size_t count = std::size(kCategoryRuns);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t last = i + 1 < count ? (kCategoryRuns[i + 1] >> 5) - 1 : kLastCode;
    visit(kCategoryRuns[i] >> 5, last, static_cast<Category>(kCategoryRuns[i] & 0x1F));
  }
}

}  // namespace

CategoryMask category_mask(std::string_view name) {
  static constexpr std::string_view kNames[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
  if (name == "L&" || name == "LC") return 0x7;
  CategoryMask mask = 0;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0])) mask |= 1U << i;
  }
  return mask;
}

Category category(char32_t code) {
  static const std::array<Category, 128> ascii = [] {
    std::array<Category, 128> table{};
    for (char32_t c = 0; c < 128; ++c) table[c] = search_category(c);
    return table;
  }();
  return code < 128 ? ascii[code] : search_category(code);
}

const std::vector<CodeRange>& white_space_ranges() {
  static const std::vector<CodeRange> ranges = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                                {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                                {0x205F, 0x205F}, {0x3000, 0x3000}};
  return ranges;
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x9 && code <= 0xD);
  for (const CodeRange& range : white_space_ranges()) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

bool is_word(char32_t code) {
  constexpr CategoryMask kWord =
      kLetters | kMarks | mask_of(Category::kNd) | mask_of(Category::kNl) | mask_of(Category::kPc);
  if (is_in(code, kWord) || code == 0x200C || code == 0x200D) return true;
  return std::any_of(std::begin(kOtherWord), std::end(kOtherWord),
                     [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

std::string loose_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return out;
}

std::optional<std::vector<CodeRange>> script_ranges(std::string_view name) {
  const std::string wanted = loose_name(name);
  const auto* found = std::find_if(std::begin(kScriptNames), std::end(kScriptNames),
                                   [&](std::string_view script) { return loose_name(script) == wanted; });
  if (found == std::end(kScriptNames)) return std::nullopt;
  std::vector<CodeRange> ranges;
  for (const NamedRun& run : kScriptRuns) {
    if (run.index == found - std::begin(kScriptNames)) push_range(ranges, run.first, run.last);
  }
  return ranges;
}

std::optional<ChangedProperty> changed_property(std::string_view name) {
  const std::string wanted = loose_name(name);
  for (const PropertyName& property : kPropertyNames) {
    if (loose_name(property.name) != wanted) continue;
    ChangedProperty out{property.is_whole, {}};
    for (const NamedRun& run : kPropertyRuns) {
      if (run.index == property.index) push_range(out.ranges, run.first, run.last);
    }
    return out;
  }
  return std::nullopt;
}

bool is_normalized_since_9(char32_t code) {
  if (code < kNormalizedSince9[0].first) return false;
  const auto* after = std::upper_bound(std::begin(kNormalizedSince9), std::end(kNormalizedSince9), code,
                                       [](char32_t value, const CodeRange& range) { return value < range.first; });
  return code <= (after - 1)->last;
}

std::vector<CodeRange> other_word_ranges() { return {std::begin(kOtherWord), std::end(kOtherWord)}; }

std::vector<CodeRange> ranges_of(CategoryMask mask) {
  std::vector<CodeRange> ranges;
  for_each_run([&](uint32_t first, uint32_t last, Category value) {
    if ((mask_of(value) & mask) != 0) push_range(ranges, first, last);
  });
  return ranges;
}

std::vector<CodeRange> ranges_of_unicode14(CategoryMask mask) {
  std::vector<CodeRange> ranges;
  const auto* changed = std::begin(kChangedSince14);
  const auto add = [&](uint32_t first, uint32_t last, Category value) {
    if ((mask_of(value) & mask) != 0) push_range(ranges, first, last);
  };
  for_each_run([&](uint32_t first, uint32_t last, Category value) {
    while (first <= last) {
      while (changed != std::end(kChangedSince14) && changed->last < first) ++changed;
      if (changed == std::end(kChangedSince14) || changed->first > last) return add(first, last, value);
      if (changed->first > first) add(first, changed->first - 1, value);
      const uint32_t from = std::max(first, changed->first);
      const uint32_t to = std::min(last, changed->last);
      add(from, to, static_cast<Category>(changed->category));
      first = to + 1;
    }
  });
  return ranges;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  const auto add = [&](uint32_t first, uint32_t last) {  // surrogates are no characters
    if (first > last) return;
    if (first < 0xD800 && last >= 0xD800) {
      out.push_back({first, 0xD7FF});
      first = 0xE000;
    } else if (first >= 0xD800 && first < 0xE000) {
      first = 0xE000;
    }
    if (last >= 0xD800 && last < 0xE000) return;
    if (first <= last) out.push_back({first, last});
  };
  uint32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (range.first > next) add(next, range.first - 1);
    next = std::max(next, range.last + 1);
  }
  if (next <= kLastCode) add(next, kLastCode);
  return out;
}

void append_lower(std::string& out, char32_t code) {
  if (code < 0x80) return out.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
  if (const CaseRow* row = special_case(code)) return append_mapped(out, row->lower);
  append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

void append_upper(std::string& out, char32_t code) {
  if (code < 0x80) return out.push_back(static_cast<char>(code >= 'a' && code <= 'z' ? code - 32 : code));
  if (const CaseRow* row = special_case(code)) return append_mapped(out, row->upper);
  append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void append_title(std::string& out, char32_t code) {
  if (code < 0x80) return append_upper(out, code);
  if (const CaseRow* row = special_case(code)) return append_mapped(out, row->title);
  append_utf8(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

}  // namespace mortise::unicode
