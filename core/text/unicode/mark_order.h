// Long runs of combining marks, put into canonical order before utf8proc sees them: it sorts a run by swapping
// neighbours, which takes quadratic time, and any text may hold a run of a million marks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mortise::unicode {

// A text that is canonically equivalent (compatible, where `options` hold UTF8PROC_COMPAT), with its runs of marks
// sorted by combining class; nothing where no run is long enough to matter. The text is UTF-8. O(n log n).
[[nodiscard]] std::optional<std::string> with_sorted_marks(std::string_view text, int options);

}  // namespace mortise::unicode
