// See bottom_line.h. The signal handler must not allocate or lock. The line is therefore in a fixed buffer. A handler
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
constexpr size_t kUsualColumns = 80;

struct Shown {
  std::atomic_flag is_held = ATOMIC_FLAG_INIT;
  std::atomic<bool> is_stale{false};  // the width changed while the line was held
  int terminal = -1;
  std::array<char, 2048> text{};
  size_t size = 0;
};
Shown g_shown;

// One column stays free, because a full last column makes some terminals wrap.
size_t columns_of(int terminal) {
  winsize size{};
  if (ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns - 1;
  return static_cast<size_t>(size.ws_col) - 1;
}

void write_all(int terminal, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(terminal, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed terminal stops no run
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Async-signal-safe. Precondition: g_shown is held.
void draw_shown() {
  const std::string_view text = fit_columns({g_shown.text.data(), g_shown.size}, columns_of(g_shown.terminal));
  std::array<char, kWipe.size() + 2048 + 1> out{};
  char* end = std::copy(kWipe.begin(), kWipe.end(), out.data());
  end = std::copy(text.begin(), text.end(), end);
  *end++ = '\r';
  write_all(g_shown.terminal, {out.data(), static_cast<size_t>(end - out.data())});
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

std::string_view fit_columns(std::string_view text, size_t columns) {
  size_t used = 0, end = 0, last_item = 0;  // last_item: the end of the last whole item that fits
  while (end < text.size()) {
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
  g_shown.size = std::min(text.size(), g_shown.text.size());
  std::copy_n(text.begin(), g_shown.size, g_shown.text.begin());
  if (!above.empty()) {
    if (!was_empty) write_all(terminal_, kWipe);
    write_all(terminal_, above);
  }
  if (g_shown.size > 0 || (!was_empty && above.empty())) draw_shown();
  g_shown.is_held.clear();
  draw_if_stale();
}

void BottomLine::watch_width() {
  struct sigaction action {};
  action.sa_handler = on_resize;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGWINCH, &action, nullptr);
}

}  // namespace mortise
