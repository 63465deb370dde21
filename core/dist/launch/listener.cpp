// Tries to connect until somebody accepts.
#include "dist/launch/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace mortise {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{50};
constexpr milliseconds kOneTry{2'000};  // a host that is gone answers nothing

bool accepts(const addrinfo& to, milliseconds limit) {
  const int fd = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  bool connected = connect(fd, to.ai_addr, to.ai_addrlen) == 0;
  if (!connected && errno == EINPROGRESS) {
    pollfd wanted{fd, POLLOUT, 0};
    int problem = 0;
    socklen_t size = sizeof problem;
    connected = poll(&wanted, 1, static_cast<int>(limit.count())) == 1 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0;
  }
  close(fd);
  return connected;
}

// The name is looked up each time: a cluster may publish it after the process has started.
bool accepts(const std::string& host, int port, milliseconds limit) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return false;
  bool connected = false;
  for (const addrinfo* one = found; one != nullptr && !connected; one = one->ai_next) connected = accepts(*one, limit);
  freeaddrinfo(found);
  return connected;
}

}  // namespace

bool wait_for_listener(const std::string& host, int port, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left <= milliseconds(0)) return false;
    if (accepts(host, port, std::min(left, kOneTry))) return true;
    std::this_thread::sleep_for(std::min(left, kPause));
  }
}

}  // namespace mortise
