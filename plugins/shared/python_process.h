// A Python process that runs a program of ours, and the frames that both sides exchange.
//
// It has its own process group, so that everything that the user's code starts ends with it. A frame is 8 bytes of
// length, little endian, and that much JSON. Threading: one thread at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include <mortise/cpp/plugin.hpp>

namespace mortise {

// How long to wait: until a point in time (0: for ever), or until the run is stopping.
struct Patience {
  std::int64_t deadline_ns = 0;
  Call call;
};

enum class Transfer { kDone, kEnded, kTooLate, kStopped };

class PythonProcess {
 public:
  PythonProcess() = default;
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;
  ~PythonProcess() { end(kGraceMs); }

  // `interpreter` is looked for in PATH where it has no slash. Throws Failure where it cannot be started.
  // `program_text` is the Python program.
  void start(const std::string& interpreter, const char* program_text);
  [[nodiscard]] bool running() const { return pid_ > 0; }

  Transfer send(std::string_view body, const Patience& patience);
  Transfer receive(std::string& body, const Patience& patience);

  // Ends it, after `grace_ms` in which it may end on its own, with everything that it started. Returns how it ended:
  // "exit code 3", "signal 11 (Segmentation fault)".
  std::string end(int grace_ms = 0);

 private:
  static constexpr int kGraceMs = 200;
  Transfer wait(short events, const Patience& patience) const;
  Transfer read_exactly(char* at, std::size_t size, const Patience& patience);
  [[nodiscard]] bool has_exited() const;

  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace mortise
