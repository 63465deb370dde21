// Addresses of this machine.
#pragma once

#include <memory>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

// The address from which this machine reaches a host: that of the interface on which the ranks can reach it. Empty if
// the host is unknown, or if it is this machine by a loopback address. Sends nothing.
std::string address_toward(const std::string& host, int port);

// Why the name of a host has no address now, in the words of the system; empty if it has one.
std::string lookup_problem(const std::string& host);

// Whether others can reach a program of this machine at this address, as far as this machine knows. 0.0.0.0 and an unknown
// name are no addresses.
bool is_own_address(const std::string& host);

// A TCP port of the loopback interface. While `hold` lives, the kernel gives it to no program that asks for any port. A
// program that asks for this number may serve it, with SO_REUSEADDR as servers have.
struct FreePort {
  int number = 0;
  std::shared_ptr<void> hold{};  // closes it
};
Result<FreePort> free_port();

}  // namespace mortise
