// Connects sockets that send nothing: the kernel then says from which address it would send.
#include "dist/launch/local_address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace mortise {

namespace {

// A datagram socket that is connected has sent nothing, but the kernel has chosen its interface.
std::string own_address_toward(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text{};
  const bool known = connect(fd, to.ai_addr, to.ai_addrlen) == 0 && getsockname(fd, address, &size) == 0 &&
                     getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  return known ? std::string(text.data()) : std::string();
}

bool is_any(const addrinfo& one) {
  if (one.ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(one.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  return one.ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr);
}

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace

std::string lookup_problem(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (problem != 0) return gai_strerror(problem);
  freeaddrinfo(found);
  return {};
}

std::string address_toward(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return {};
  std::string address;
  for (const addrinfo* one = found; one != nullptr && address.empty(); one = one->ai_next) {
    address = own_address_toward(*one);
    if (is_loopback(address)) address.clear();
  }
  freeaddrinfo(found);
  return address;
}

bool is_own_address(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "0", &wanted, &found) != 0) return false;
  bool is_own = false;
  for (const addrinfo* one = found; one != nullptr && !is_own; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    is_own = !is_any(*one) && bind(fd, one->ai_addr, one->ai_addrlen) == 0;
    close(fd);
  }
  freeaddrinfo(found);
  return is_own;
}

Result<FreePort> free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::shared_ptr<void> hold(nullptr, [fd](void*) { close(fd); });
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && bind(fd, any, size) == 0 &&
                     setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     getsockname(fd, any, &size) == 0;
  if (!found)
    return Error{
        ErrorKind::kInternal, fmt::format("no TCP port of this machine is free: {}", std::strerror(errno)), {}, {}};
  return FreePort{static_cast<int>(ntohs(address.sin_port)), std::move(hold)};
}

}  // namespace mortise
