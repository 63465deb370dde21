// See gloo_devices.h.
#include "dist/gloo/gloo_devices.h"

#include <sched.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "foundation/base/text.h"

namespace mortise {

namespace {

// Threads that this thread starts while the object lives are SCHED_BATCH (sched(7)): when they wake up, they take no
// processor from a thread that runs. No effect if this thread is not of the ordinary kind.
class BatchThreads {
 public:
  BatchThreads() : is_batch_(::sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchThreads() {
    if (is_batch_) set(SCHED_OTHER);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static bool set(int policy) {
    const sched_param none{};
    return ::sched_setscheduler(0, policy, &none) == 0;
  }

  bool is_batch_;
};

}  // namespace

std::vector<std::shared_ptr<gloo::transport::Device>> gloo_devices(const std::string& address) {
  // A device starts a thread that handles the messages of other ranks. It polls without a pause while a message is there
  // and another thread holds the lock of its connection. On a busy machine, a message woke the receiver's thread in place of
  // the sender, which still held the lock of its end. The sender's rank then polled for the answer until the sender ran
  // again: several ranks of a tiny model spent a third of their processor time on it.
  const BatchThreads batch;
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
