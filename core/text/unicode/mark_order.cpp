// See mark_order.h. Canonical ordering: The Unicode Standard, section 3.11.
#include "text/unicode/mark_order.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise::unicode {
namespace {

constexpr size_t kLongRun = 64;
constexpr char32_t kFirstMark = 0x300;

utf8proc_int32_t signed_code(char32_t code) { return static_cast<utf8proc_int32_t>(code); }
int combining_class(char32_t code) { return utf8proc_get_property(signed_code(code))->combining_class; }

// A mark, or one of the few characters of class 0 whose decomposition begins with a mark.
bool may_be_marks(char32_t code) {
  if (code < kFirstMark) return false;
  return combining_class(code) != 0 || code == 0xF73 || code == 0xF75 || code == 0xF81 || code == 0xFF9E ||
         code == 0xFF9F;
}

bool has_long_run(std::string_view text) {
  size_t run = 0;
  for (size_t pos = 0; pos < text.size();) {
    run = may_be_marks(next_code_point(text, pos)) ? run + 1 : 0;
    if (run > kLongRun) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> with_sorted_marks(std::string_view text, int options) {
  if (!has_long_run(text)) return std::nullopt;
  std::string out;
  out.reserve(text.size());
  std::vector<std::pair<int, char32_t>> run;  // class and mark
  const auto flush = [&] {
    std::stable_sort(run.begin(), run.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, code] : run) append_utf8(out, code);
    run.clear();
  };
  for (size_t pos = 0; pos < text.size();) {
    const char32_t code = next_code_point(text, pos);
    if (!may_be_marks(code)) {
      flush();
      append_utf8(out, code);
      continue;
    }
    utf8proc_int32_t parts[32];
    int boundary = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(signed_code(code), parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 32); ++i) {
      const auto part = static_cast<char32_t>(parts[i]);
      const int order = combining_class(part);
      if (order == 0) flush();
      if (order == 0) append_utf8(out, part);
      if (order != 0) run.emplace_back(order, part);
    }
  }
  flush();
  return out;
}

}  // namespace mortise::unicode
