#include "dist/gloo/gloo_devices.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

namespace mortise {

std::vector<std::shared_ptr<gloo::transport::Device>> gloo_devices(const std::string& address) {
  std::vector<std::shared_ptr<gloo::transport::Device>> found;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    std::string rest = names;
    while (!rest.empty()) {
      const size_t end = rest.find(',');
      found.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(rest.substr(0, end)));
      rest = end == std::string::npos ? "" : rest.substr(end + 1);
    }
  } else if (!address.empty()) {
    found.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } else {
    found.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return found;
}

}  // namespace mortise
