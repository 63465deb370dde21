// Lines for people at a moment when the ordinary log cannot be used: in a signal handler, or next to a thread that hangs.
//
// Everything here is async-signal-safe: no memory is allocated and no lock is taken. The text goes to standard error and,
// once a run has a folder, to its log.txt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mortise {

// A text of bounded length on the stack; what does not fit is left out. Control characters become '?', because a plugin
// may have chosen them.
class LastWords {
 public:
  LastWords& add(std::string_view text);
  LastWords& add(int64_t number);
  [[nodiscard]] std::string_view text() const { return {buffer_.data(), size_}; }
  // Writes the text as a line that begins with "error: ".
  void write() const;

 private:
  std::array<char, 2048> buffer_{};
  size_t size_ = 0;
};

// The descriptor of log.txt, which stays open; -1: none.
void set_last_words_file(int fd);

}  // namespace mortise
