// The lines that move at the bottom of a terminal: as wide as the terminal is, also after that is resized.
//
// Two spaces part the items of a line; those that do not fit are left out from the right. Lines that the terminal has
// no rows for are left out from below. The cursor waits at the beginning of the first line. So a terminal that wraps
// lines when it is made narrower keeps the cursor at the first row, and wiping down from there removes all of them.
// Thread rule: one thread at a time, and one BottomLine in a process; SIGWINCH may come at any time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mortise {

// The longest beginning of `text` that fits in `columns`, cut between items; inside the first one if even that is
// longer. Counts code points as one column each, and escape sequences (colours) as none.
[[nodiscard]] std::string_view fit_columns(std::string_view text, size_t columns);

// One column stays free, because a full last column makes some terminals wrap.
struct TerminalSize {
  size_t columns = 79, rows = 24;
};
[[nodiscard]] TerminalSize terminal_size(int terminal);

// Removes the lines from the screen of a process that is about to end. Async-signal-safe.
void wipe_bottom_lines();

class BottomLine {
 public:
  explicit BottomLine(int terminal) : terminal_(terminal) {}

  // Shows `text` (lines parted by \n; empty: nothing), with `above` (whole lines, or empty) over it.
  void draw(std::string_view above, std::string_view text);
  // From the first call on, a change of the terminal's width draws the line again at once.
  void watch_width();

 private:
  int terminal_;
};

}  // namespace mortise
