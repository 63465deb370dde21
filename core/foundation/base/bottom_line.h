// The line that moves at the bottom of a terminal: as wide as the terminal is, also after that is resized.
//
// Two spaces part the items of a line; those that do not fit are left out from the right. The cursor waits at the
// line's beginning. So a terminal that wraps the line when it is made narrower keeps the cursor at its first row, and
// wiping down from there removes all of it. Thread rule: one thread at a time, and one BottomLine in a process;
// SIGWINCH may come at any time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mortise {

// The longest beginning of `text` that fits in `columns`, cut between items; inside the first one if even that is
// longer. Counts code points as one column each.
[[nodiscard]] std::string_view fit_columns(std::string_view text, size_t columns);

class BottomLine {
 public:
  explicit BottomLine(int terminal) : terminal_(terminal) {}

  // Shows `text` (empty: nothing), with `above` (whole lines, or empty) over it.
  void draw(std::string_view above, std::string_view text);
  // From the first call on, a change of the terminal's width draws the line again at once.
  void watch_width();

 private:
  int terminal_;
};

}  // namespace mortise
