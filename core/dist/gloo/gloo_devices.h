// The network interfaces of Gloo.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace gloo::transport {
class Device;
}

namespace mortise {

// GLOO_SOCKET_IFNAME names the interfaces, as in PyTorch. Otherwise it is that of `address`; empty: the host name's.
// Throws what c10d throws, for example for an interface that this machine lacks.
std::vector<std::shared_ptr<gloo::transport::Device>> gloo_devices(const std::string& address);

}  // namespace mortise
