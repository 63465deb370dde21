// The log on spdlog: one logger, a console sink that keeps the progress line at the bottom, and a file sink once a run
// has a folder. Only this file sees spdlog. See log.h.
#include "foundation/base/log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "foundation/base/bottom_line.h"
#include "foundation/base/last_words.h"
#include "foundation/base/live_lines.h"
#include "foundation/base/shown_text.h"

#include "foundation/base/secrets.h"

namespace mortise {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

bool stderr_is_terminal() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

// "12:03:41 warning: text" on standard error; info has no level word. A progress line stays below every message.
class LogConsole final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LogConsole() { look(false); }

  // Looks where standard error goes.
  void look(bool force_plain) {
    const std::lock_guard lock(mutex_);
    terminal_ = !force_plain && stderr_is_terminal();
    color_ = terminal_ && std::getenv("NO_COLOR") == nullptr;
  }
  bool terminal() {
    const std::lock_guard lock(mutex_);
    return terminal_;
  }
  void set_progress(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (!terminal_) return;
    progress_ = one_line(redacted(text));
    draw("");
  }
  void set_view(std::string_view lines) {
    const std::lock_guard lock(mutex_);
    if (!terminal_) return;
    view_ = redacted(lines);
    if (view_.empty()) num_warnings_ = 0;
    draw("");
  }
  [[nodiscard]] bool has_color() {
    const std::lock_guard lock(mutex_);
    return color_;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto seconds = std::chrono::system_clock::to_time_t(message.time);
    std::tm parts{};
    localtime_r(&seconds, &parts);
    std::array<char, 16> time{};
    std::strftime(time.data(), time.size(), "%H:%M:%S ", &parts);
    std::string line = time.data();
    const char* word = message.level == spdlog::level::err     ? "error: "
                       : message.level == spdlog::level::warn  ? "warning: "
                       : message.level == spdlog::level::debug ? "debug: "
                                                               : "";
    const char* color = message.level == spdlog::level::err    ? "\x1b[31m"
                        : message.level == spdlog::level::warn ? "\x1b[33m"
                                                               : "";
    if (color_ && *color != '\0')
      line.append(color).append(word).append("\x1b[0m");
    else
      line += word;
    line.append(message.payload.data(), message.payload.size());
    line += '\n';
    if (terminal_) {
      std::fflush(stderr);
      if (message.level >= spdlog::level::warn && !view_.empty()) {
        ++num_warnings_;
        newest_warning_ = one_line({message.payload.data(), message.payload.size()});
      }
      draw(line);
    } else {
      std::fwrite(line.data(), 1, line.size(), stderr);
      std::fflush(stderr);
    }
  }
  void flush_() override { std::fflush(stderr); }

 private:
  // The progress line, the view, and how many warnings came while it was shown.
  void draw(std::string_view above) {
    std::string text = progress_;
    const auto add = [&text](std::string_view lines) { text.append(text.empty() ? "" : "\n").append(lines); };
    if (!view_.empty()) add(view_);
    if (num_warnings_ > 0) {
      const std::string label = counted(num_warnings_, "warning");
      const size_t before = label.size() + 2, columns = std::max(terminal_size(STDERR_FILENO).columns, before + 10);
      const std::string newest = shorten(newest_warning_, columns - before);
      add(color_ ? fmt::format("\x1b[33m{}\x1b[0m  {}", label, newest) : fmt::format("{}  {}", label, newest));
    }
    if (!text.empty()) bottom_.watch_width();
    bottom_.draw(above, text);
  }

  bool terminal_ = false;
  bool color_ = false;
  std::string progress_, view_, newest_warning_;
  int64_t num_warnings_ = 0;  // since there is a view
  BottomLine bottom_{STDERR_FILENO};
};

// A line from before there was a file, kept for it.
struct EarlyLine {
  LogLevel level;
  spdlog::log_clock::time_point time;
  std::string text;
};
constexpr size_t kMostEarlyLines = 1000;

struct Log {
  std::shared_ptr<LogConsole> console = std::make_shared<LogConsole>();
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> file;
  std::mutex mutex;  // guards what follows, and file
  std::vector<EarlyLine> early;
  std::set<std::string, std::less<>> seen;
  LogLevel console_level = LogLevel::kInfo;
};

Log& the_log() {
  static auto* log = new Log;  // never destroyed: threads may log while the program ends
  return *log;
}

}  // namespace

Result<> log_init(const LogOptions& options) {
  Log& log = the_log();
  log.console->look(options.force_plain);
  const std::lock_guard lock(log.mutex);
  log.console_level = options.console_level;
  if (options.file.empty()) return {};
  try {
    log.file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file.string());
    log.file->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    for (const EarlyLine& line : log.early) {
      const std::string shown = redacted(line.text);  // secrets may have become known since
      const spdlog::string_view_t text(shown.data(), shown.size());
      log.file->log({line.time, spdlog::source_loc{}, "", spdlog_level(line.level), text});
    }
    log.early.clear();
    set_last_words_file(::open(options.file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  } catch (const spdlog::spdlog_ex& problem) {
    return Error{ErrorKind::kDisk, "cannot open the log file: " + std::string(problem.what()), options.file.string(),
                 "check the folder and its permissions"};
  }
  return {};
}

void log_flush() {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.console->flush();
  if (log.file) log.file->flush();
}

namespace {

void log_at(LogPlace place, LogLevel level, std::string_view text) {
  Log& log = the_log();
  const std::string shown = without_controls(redacted(text));  // it may quote a server, a data row or a completion
  const spdlog::details::log_msg message(spdlog::source_loc{}, "", spdlog_level(level), {shown.data(), shown.size()});
  const std::lock_guard lock(log.mutex);
  if (place != LogPlace::kFile && level >= log.console_level) log.console->log(message);
  if (place == LogPlace::kConsole) return;
  if (!log.file) {
    if (log.early.size() < kMostEarlyLines) log.early.push_back({level, message.time, shown});
    return;
  }
  try {
    log.file->log(message);
    log.file->flush();
  } catch (const std::exception&) {
    // A full disk must not end a run by its log; the console still has the line.
  }
}

}  // namespace

void log_message(LogLevel level, std::string_view text) { log_at(LogPlace::kBoth, level, text); }

void log_info_at(LogPlace place, std::string_view text) { log_at(place, LogLevel::kInfo, text); }

void log_error(const Error& error) { log_message(LogLevel::kError, error.to_string()); }

void log_warn_once(std::string_view text) {
  {
    Log& log = the_log();
    const std::lock_guard lock(log.mutex);
    if (!log.seen.emplace(text).second) return;
  }
  log_warn(text);
}

std::optional<LogLevel> parse_log_level(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kNames{{{"debug", LogLevel::kDebug},
                                                                         {"info", LogLevel::kInfo},
                                                                         {"warn", LogLevel::kWarn},
                                                                         {"error", LogLevel::kError},
                                                                         {"off", LogLevel::kOff}}};
  for (const auto& [text, level] : kNames) {
    if (text == name) return level;
  }
  return std::nullopt;
}

bool log_has_terminal() { return the_log().console->terminal(); }

bool log_has_color() { return the_log().console->has_color(); }

void log_progress_line(std::string_view text) { the_log().console->set_progress(text); }

void log_live_view(std::string_view lines) { the_log().console->set_view(lines); }

}  // namespace mortise
