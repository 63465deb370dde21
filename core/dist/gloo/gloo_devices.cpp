// See gloo_devices.h.
#include "dist/gloo/gloo_devices.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "foundation/base/text.h"

namespace mortise {

std::vector<std::shared_ptr<gloo::transport::Device>> gloo_devices(const std::string& address) {
  std::vector<std::shared_ptr<gloo::transport::Device>> found;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    for (const std::string_view name : split(names, ',')) {
      if (!name.empty()) found.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(std::string(name)));
    }
  } else if (!address.empty()) {
    found.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } else {
    found.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return found;
}

}  // namespace mortise
