// A GET or POST to a server on this machine, for tests that want nothing from a library.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace mortise::test {

struct HttpGot {
  std::string head, body;  // both are empty if nobody answers
  [[nodiscard]] bool ok() const { return head.find(" 200 ") < head.find('\n'); }
};

// `line`: method and path. `rest`: further headers, an empty line, and the body.
inline HttpGot http_ask(int port, const std::string& line, const std::string& rest) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{60, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(uint16_t(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string got;
  const std::string request = line + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + rest;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == ssize_t(request.size())) {
    char part[4096];
    for (ssize_t size = 0; (size = ::recv(fd, part, sizeof part, 0)) > 0;) got.append(part, size_t(size));
  }
  ::close(fd);
  const size_t end = std::min(got.size(), got.find("\r\n\r\n") + 4);
  return {got.substr(0, end), got.substr(end)};
}

inline HttpGot http_get(int port, const std::string& path) { return http_ask(port, "GET " + path, "\r\n"); }

// The status of a POST of JSON; 0 if nobody answers.
inline int http_post(int port, const std::string& path, const std::string& body) {
  const std::string head = "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size());
  const HttpGot got = http_ask(port, "POST " + path, head + "\r\n\r\n" + body);
  return std::atoi(got.head.substr(std::min(got.head.size(), got.head.find(' '))).c_str());
}

}  // namespace mortise::test
