// A child process that writes to its own terminal, which the test looks at and resizes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "support/terminal.h"

namespace mortise::test {

class OnATerminal {
 public:
  OnATerminal(unsigned short columns, bool reflows, unsigned short rows = 24) : screen_(columns, reflows), rows_(rows) {
    winsize size{rows, columns, 0, 0};
    pid_ = forkpty(&master_, nullptr, nullptr, &size);
  }
  ~OnATerminal() {
    if (pid_ > 0) close(master_);
  }
  [[nodiscard]] bool is_child() const { return pid_ == 0; }
  [[nodiscard]] bool started() const { return pid_ >= 0; }

  // Reads until one of the screen's last rows holds `text`; false if the child ends or hangs before.
  bool wait_for(std::string_view text, size_t num_last = 1) {
    while (true) {
      const std::vector<std::string> rows = screen_.rows();
      for (size_t i = rows.size() - std::min(rows.size(), num_last); i < rows.size(); ++i)
        if (rows[i].find(text) != std::string::npos) return true;
      if (!read_some()) return false;
    }
  }
  void read_all() {
    while (read_some()) {
    }
  }
  void resize(unsigned short columns) {
    screen_.resize(columns);
    const winsize size{rows_, columns, 0, 0};
    ioctl(master_, TIOCSWINSZ, &size);
  }
  void send(char c) const { EXPECT_EQ(::write(master_, &c, 1), 1); }
  int exit_code() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] const Terminal& screen() const { return screen_; }

 private:
  bool read_some() {
    pollfd wait{master_, POLLIN, 0};
    if (::poll(&wait, 1, 300000) <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(master_, buffer, sizeof buffer);
    if (got <= 0) return false;
    screen_.write({buffer, static_cast<size_t>(got)});
    return true;
  }
  Terminal screen_;
  unsigned short rows_;
  int master_ = -1;
  pid_t pid_ = -1;
};

}  // namespace mortise::test
