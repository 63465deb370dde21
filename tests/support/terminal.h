// A terminal to write to and look at: as much of one as the log needs. Lines wrap at its width and wrap again when it is
// resized, as most terminals do; `reflows` = false leaves rows as they were and cuts them, as xterm does. A character of
// UTF-8 takes one column.
//
// Knows \r, \n, ESC [ A, ESC [ J, ESC [ K and colours; anything else fails the test that asks.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::test {

class Terminal {
 public:
  explicit Terminal(size_t columns, bool reflows = true) : columns_(columns), reflows_(reflows) {}

  void resize(size_t columns) {
    columns_ = columns;
    if (reflows_) return;
    for (Line& line : lines_) line.resize(std::min(line.size(), columns));
    column_ = std::min(column_, columns - 1);
  }

  void write(std::string_view text) {
    pending_ += text;
    size_t used = 0;
    while (used < pending_.size()) {
      const size_t taken = take(std::string_view(pending_).substr(used));
      if (taken == 0) break;  // the rest of a sequence is still to come
      used += taken;
    }
    pending_.erase(0, used);
  }

  // The rows as a person sees them, without spaces at their ends.
  [[nodiscard]] std::vector<std::string> rows() const {
    std::vector<std::string> rows;
    for (const Line& line : lines_) {
      for (size_t at = 0; at == 0 || at < line.size(); at += columns_) {
        std::string& row = rows.emplace_back();
        for (size_t i = at; i < std::min(at + columns_, line.size()); ++i) row += line[i];
      }
    }
    for (std::string& row : rows) row.erase(row.find_last_not_of(' ') + 1);
    while (!rows.empty() && rows.back().empty()) rows.pop_back();
    return rows;
  }
  [[nodiscard]] static size_t columns_of(std::string_view row) {
    return static_cast<size_t>(std::ranges::count_if(row, [](char c) { return !is_inside(c); }));
  }
  [[nodiscard]] const std::string& unknown() const { return unknown_; }
  [[nodiscard]] bool has_color() const { return has_color_; }  // some text asked for one

 private:
  using Line = std::vector<std::string>;  // a character per column

  static bool is_inside(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

  // Bytes removed from the beginning of `text`.
  size_t take(std::string_view text) {
    const char c = text.front();
    if (c == '\x1b') return take_escape(text);
    if (c == '\r') {
      column_ -= column_ % columns_;
    } else if (c == '\n') {
      if (++line_ == lines_.size()) lines_.emplace_back();
      column_ = reflows_ ? 0 : column_;  // a terminal in its usual mode sends \r\n
    } else {
      const auto byte = static_cast<unsigned char>(c);
      const size_t size = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
      if (text.size() < size) return 0;
      put(std::string(text.substr(0, size)));
      return size;
    }
    return 1;
  }

  size_t take_escape(std::string_view text) {
    const size_t end = text.find_first_not_of("0123456789;", std::min<size_t>(2, text.size()));
    if (text.size() < 3 || end == std::string_view::npos) return 0;
    const char kind = text[1] == '[' ? text[end] : '?';
    if (kind == 'J' || kind == 'K') {
      lines_[line_].resize(std::min(lines_[line_].size(), column_));
      if (kind == 'J') lines_.resize(line_ + 1);
    } else if (kind == 'A') {
      for (int up = std::max(1, std::atoi(text.data() + 2)); up > 0; --up) move_up();
    } else if (kind == 'm') {
      has_color_ = true;
    } else {
      unknown_ += std::string(text.substr(1, end)) + " ";
    }
    return end + 1;
  }

  void move_up() {
    if (column_ >= columns_) {
      column_ -= columns_;
    } else if (line_ > 0) {
      const size_t num_rows = std::max<size_t>(1, (lines_[--line_].size() + columns_ - 1) / columns_);
      column_ += (num_rows - 1) * columns_;
    }
  }

  void put(const std::string& character) {
    if (!reflows_ && column_ == columns_) {
      if (++line_ == lines_.size()) lines_.emplace_back();
      column_ = 0;
    }
    Line& line = lines_[line_];
    if (line.size() <= column_) line.resize(column_ + 1, " ");
    line[column_++] = character;
  }

  size_t columns_;
  bool reflows_;
  std::vector<Line> lines_{{}};  // with reflow: whole lines, which may fill several rows
  size_t line_ = 0, column_ = 0;
  bool has_color_ = false;
  std::string pending_, unknown_;
};

}  // namespace mortise::test
