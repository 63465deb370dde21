// Puts a line together without memory of its own, and writes it with one write() for each place.
#include "foundation/base/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "foundation/base/bottom_line.h"

namespace mortise {
namespace {

std::atomic<int> g_file{-1};

void write_words(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

LastWords& LastWords::add(std::string_view text) {
  for (const char c : text.substr(0, buffer_.size() - size_)) {
    const auto byte = static_cast<unsigned char>(c);
    buffer_[size_++] = byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return *this;
}

LastWords& LastWords::add(int64_t number) {
  std::array<char, 24> digits{};
  size_t at = digits.size();
  uint64_t rest = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  do {
    digits[--at] = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (number < 0) digits[--at] = '-';
  return add({digits.data() + at, digits.size() - at});
}

void LastWords::write() const {
  wipe_bottom_lines();
  std::array<char, sizeof buffer_ + 16> line{};
  size_t size = 0;
  for (const std::string_view part : {std::string_view("error: "), text(), std::string_view("\n")})
    size = static_cast<size_t>(std::copy(part.begin(), part.end(), line.begin() + static_cast<ptrdiff_t>(size)) -
                               line.begin());
  write_words(STDERR_FILENO, {line.data(), size});
  if (const int fd = g_file.load(); fd >= 0) write_words(fd, {line.data(), size});
}

void set_last_words_file(int fd) {
  const int before = g_file.exchange(fd);
  if (before >= 0 && before != fd) ::close(before);
}

}  // namespace mortise
