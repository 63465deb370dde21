// The lines that the log keeps below its progress line on a terminal: what a run does now (metrics/live.h).
// Thread rule: any thread.
#pragma once

#include <string_view>

namespace mortise {

[[nodiscard]] bool log_has_color();  // standard error is a terminal, and NO_COLOR is not set

// Lines below the progress line, parted by \n. They may hold colours, and nothing that a plugin or a file wrote unless it
// went through one_line(). While they are shown, warnings and errors, which stay above as all lines do, are also counted
// below. An empty text removes all of this. No effect without a terminal.
void log_live_view(std::string_view lines);

}  // namespace mortise
