// A Python process that runs a program of ours, and the frames that both sides exchange.
//
// It has its own process group, so that everything that the user's code starts ends with it. A frame is a head of three
// numbers of 8 bytes, little endian, and a body of JSON: the length of the body, the number of the request, and the
// sender's process (0 from us). An answer repeats the number of its request. Threading: one thread at a time.
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

// kForeign: what came is no answer of this process to the last request, so end() the process. stray() says more.
enum class Transfer { kDone, kEnded, kTooLate, kStopped, kForeign };

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

  // Sends a request, which has the next number.
  Transfer send(std::string_view body, const Patience& patience);
  // Receives an answer to the last request.
  Transfer receive(std::string& body, const Patience& patience);
  // After kForeign: what came, the usual causes and the next step.
  [[nodiscard]] const std::string& stray() const { return stray_; }
  // For an answer of the right number that makes no sense, as code that writes to our socket may send.
  Transfer refuse(const std::string& what);

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
  std::uint64_t request_ = 0;   // number of the last request
  std::uint64_t answerer_ = 0;  // process that answered first; an interpreter may be a script that starts Python
  std::string stray_;
};

}  // namespace mortise
