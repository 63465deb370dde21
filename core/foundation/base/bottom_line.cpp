// See bottom_line.h. The signal handler must not allocate or lock. The lines are therefore in a fixed buffer. A handler
// that finds it held leaves a mark. The thread that holds it looks for the mark after it has let go.
#include "foundation/base/bottom_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace mortise {
namespace {

constexpr std::string_view kWipe = "\r\x1b[J";  // from the line's beginning to the end of the screen
constexpr std::string_view kNoColor = "\x1b[0m";
constexpr size_t kMostBytes = 8192, kMostLines = 16;

struct Shown {
  std::atomic_flag is_held = ATOMIC_FLAG_INIT;
  std::atomic<bool> is_stale{false};  // the width changed while the line was held
  int terminal = -1;
  std::array<char, kMostBytes> text{};
  std::atomic<size_t> size{0};
};
Shown g_shown;

void write_all(int terminal, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(terminal, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed terminal stops no run
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Bytes of the escape sequence that `text` begins with: ESC [ numbers letter.
size_t escape_bytes(std::string_view text) {
  size_t end = std::min<size_t>(2, text.size());
  while (end < text.size() && (text[end] == ';' || (text[end] >= '0' && text[end] <= '9'))) ++end;
  return std::min(end + 1, text.size());
}

// What is to be written, in a buffer that a signal handler may use.
struct Output {
  std::array<char, kMostBytes + 256> bytes{};
  size_t size = 0;
  void add(std::string_view text) {
    text = text.substr(0, bytes.size() - size);
    std::copy(text.begin(), text.end(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    size += text.size();
  }
};

// Async-signal-safe. Precondition: g_shown is held.
void draw_shown() {
  const TerminalSize room = terminal_size(g_shown.terminal);
  std::string_view text(g_shown.text.data(), g_shown.size);
  Output out;
  out.add(kWipe);
  const size_t most = std::min(kMostLines, room.rows > 1 ? room.rows - 1 : 1);
  size_t num_lines = 0;
  for (bool is_last = text.empty(); !is_last && num_lines < most; ++num_lines) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end), shown = fit_columns(line, room.columns);
    if (num_lines > 0) out.add("\r\n");
    out.add(shown);
    if (shown.size() < line.size() && line.find('\x1b') != line.npos) out.add(kNoColor);
    is_last = end == text.npos;
    if (!is_last) text.remove_prefix(end + 1);
  }
  out.add("\r");
  if (num_lines > 1) {
    const size_t up = num_lines - 1;
    const std::array<char, 2> digits{static_cast<char>('0' + up / 10), static_cast<char>('0' + up % 10)};
    out.add("\x1b[");
    out.add(std::string_view(digits.data(), 2).substr(up < 10 ? 1 : 0));
    out.add("A");
  }
  write_all(g_shown.terminal, {out.bytes.data(), out.size});
}

// Draws until no change of the width is left, or leaves that to another thread that holds the line. It looks for the
// mark again after each release. Else a signal just before the release would be lost. Async-signal-safe.
void draw_if_stale() {
  while (g_shown.is_stale.load() && !g_shown.is_held.test_and_set()) {
    if (g_shown.is_stale.exchange(false) && g_shown.size > 0) draw_shown();
    g_shown.is_held.clear();
  }
}

void on_resize(int) {
  const int error = errno;
  g_shown.is_stale.store(true);
  draw_if_stale();
  errno = error;
}

}  // namespace

TerminalSize terminal_size(int terminal) {
  winsize size{};
  if (ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {static_cast<size_t>(size.ws_col) - 1, size.ws_row == 0 ? TerminalSize().rows : size.ws_row};
}

std::string_view fit_columns(std::string_view text, size_t columns) {
  size_t used = 0, end = 0, last_item = 0;  // last_item: the end of the last whole item that fits
  while (end < text.size()) {
    if (text[end] == '\x1b') {  // a colour takes no column
      end += escape_bytes(text.substr(end));
      continue;
    }
    if (text.substr(end).starts_with("  ") && used > 0) last_item = end;
    if (used == columns) return text.substr(0, last_item > 0 ? last_item : end);
    ++used;
    ++end;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
  }
  return text;
}

void BottomLine::draw(std::string_view above, std::string_view text) {
  while (g_shown.is_held.test_and_set()) {
    // The handler runs in another thread, and is soon done.
  }
  const bool was_empty = g_shown.size == 0;
  g_shown.terminal = terminal_;
  text = text.substr(0, g_shown.text.size());
  std::ranges::copy(text, g_shown.text.begin());
  g_shown.size = text.size();
  if (!above.empty()) {
    if (!was_empty) write_all(terminal_, kWipe);
    write_all(terminal_, above);
  }
  if (g_shown.size > 0 || (!was_empty && above.empty())) draw_shown();
  g_shown.is_held.clear();
  draw_if_stale();
}

void wipe_bottom_lines() {
  if (g_shown.size > 0) write_all(g_shown.terminal, kWipe);
}

void BottomLine::watch_width() {
  struct sigaction action {};
  action.sa_handler = on_resize;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGWINCH, &action, nullptr);
}

}  // namespace mortise
