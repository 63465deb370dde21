// A terminal to write to and look at: as much of one as the log needs. Lines wrap at its width and wrap anew when it is
// resized, as most terminals do; `reflows` = false leaves rows as they were and cuts them, as xterm does.
//
// Knows \r, \n, ESC [ J, ESC [ K and colours; anything else fails the test that asks.
#pragma once

#include <algorithm>
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
    for (std::string& line : lines_) line.resize(std::min(line.size(), columns));
    column_ = std::min(column_, columns - 1);
  }

  void write(std::string_view text) {
    pending_ += text;
    size_t used = 0;
    while (used < pending_.size()) {
      const size_t taken = take(std::string_view(pending_).substr(used));
      if (taken == 0) break;  // the rest of an escape sequence is still to come
      used += taken;
    }
    pending_.erase(0, used);
  }

  // The rows as a person sees them, without spaces at their ends.
  [[nodiscard]] std::vector<std::string> rows() const {
    std::vector<std::string> rows;
    for (const std::string& line : lines_) {
      for (size_t at = 0; at == 0 || at < line.size(); at += columns_) rows.push_back(line.substr(at, columns_));
    }
    for (std::string& row : rows) row.erase(row.find_last_not_of(' ') + 1);
    while (!rows.empty() && rows.back().empty()) rows.pop_back();
    return rows;
  }
  [[nodiscard]] const std::string& unknown() const { return unknown_; }

 private:
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
      put(c);
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
    } else if (kind != 'm') {
      unknown_ += std::string(text.substr(1, end)) + " ";
    }
    return end + 1;
  }

  void put(char c) {
    if (!reflows_ && column_ == columns_) {
      if (++line_ == lines_.size()) lines_.emplace_back();
      column_ = 0;
    }
    std::string& line = lines_[line_];
    if (line.size() <= column_) line.resize(column_ + 1, ' ');
    line[column_++] = c;
  }

  size_t columns_;
  bool reflows_;
  std::vector<std::string> lines_{""};  // with reflow: whole lines, which may fill several rows
  size_t line_ = 0, column_ = 0;
  std::string pending_, unknown_;
};

}  // namespace mortise::test
