// The log: short lines for people on standard error and, once a run has a folder, in its log.txt.
//
// It has colour only if standard error is a terminal and NO_COLOR is not set. A terminal may have one progress line at
// the bottom; log lines appear above it. Plugins log through the C ABI, which ends here. Thread rule: any thread; a
// line is never torn. Before log_init(), lines of level info and above go to standard error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

struct LogOptions {
  LogLevel console_level = LogLevel::kInfo;
  Path file;                 // empty: no file. Appended to; every level from debug up goes there
  bool force_plain = false;  // no colour and no progress line on any terminal
};

// May be called again, for a run that learns its folder later: the first file then begins with the earlier lines. Fails
// if the file cannot be opened; the console remains.
Result<> log_init(const LogOptions& options);
void log_flush();

void log_message(LogLevel level, std::string_view text);
// Writes to only one of console and file, for a text that the other has already.
enum class LogPlace { kBoth, kConsole, kFile };
void log_info_at(LogPlace place, std::string_view text);
inline void log_debug(std::string_view text) { log_message(LogLevel::kDebug, text); }
inline void log_info(std::string_view text) { log_message(LogLevel::kInfo, text); }
inline void log_warn(std::string_view text) { log_message(LogLevel::kWarn, text); }
inline void log_error(std::string_view text) { log_message(LogLevel::kError, text); }
void log_error(const Error& error);  // its to_string()

// The same text is logged at most once per process (advice inside loops).
void log_warn_once(std::string_view text);

std::optional<LogLevel> parse_log_level(std::string_view name);  // debug, info, warn, error, off

// True where standard error is a terminal that should show a moving line.
[[nodiscard]] bool log_has_terminal();
// Replaces the bottom line of the terminal (bottom_line.h: two spaces part its items); an empty text removes it. No
// effect without a terminal.
void log_progress_line(std::string_view text);

}  // namespace mortise
