// What the code of a pack may do to the connection between its worker and the trainer, by mistake or on purpose.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace mortise::test {

// A frame without a body, as in core/plugin/worker/channel.h.
struct ForgedFrame {
  std::uint32_t size = 16;
  std::uint16_t kind = 0, num_descriptors = 0;
  std::uint64_t request = 0;
  std::int64_t process = 0;
};

// To every socket of the process: the connection is among them.
inline void send_to_all(const void* bytes, std::size_t size) {
  for (int fd = 3; fd < 64; ++fd) (void)::send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Does what the text begins with; nothing for others.
//   fork         a child that returns from the call, as its parent does
//   late fork    a child that returns after a while
//   forge N      sends a frame of kind N as an answer to request 0
//   pose N       the same, in the name of another process
//   rubbish      sends bytes that are no frame
inline void misuse_connection(std::string_view text) {
  const auto is = [&](std::string_view command) { return text.substr(0, command.size()) == command; };
  if (is("fork")) (void)::fork();
  if (is("late fork") && ::fork() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ForgedFrame frame;
  frame.process = ::getpid();
  if (is("forge") || is("pose")) frame.kind = std::uint16_t(std::atoi(text.data() + 5));
  if (is("pose")) ++frame.process;
  if (frame.kind != 0) send_to_all(&frame, sizeof frame);
  if (is("rubbish")) send_to_all("this is the output of some program, and nothing else", 50);
}

}  // namespace mortise::test
