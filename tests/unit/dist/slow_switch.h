// A switch between network namespaces that delays every frame and loses some, as a long or a bad line does. The kernel's
// netem does the same, but not every kernel has it. One thread carries the frames between the namespaces' TAP devices.
#pragma once

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "foundation/base/rng.h"

namespace mortise {

class SlowSwitch {
 public:
  SlowSwitch(std::chrono::milliseconds delay, double loss) : delay_(delay), loss_(loss) {}
  SlowSwitch(const SlowSwitch&) = delete;
  SlowSwitch& operator=(const SlowSwitch&) = delete;
  ~SlowSwitch() {
    stop_ = true;
    if (carrier_.joinable()) carrier_.join();
    for (const int fd : ports_) close(fd);
  }

  // Makes the device eth0 of a namespace. False if this machine cannot.
  bool add(const std::string& network) {
    int fd = -1;
    std::thread([&] {  // a device belongs to the namespace of the thread that opens it
      const int space = open(("/var/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC);
      if (space >= 0 && setns(space, CLONE_NEWNET) == 0) fd = open_tap();
      if (space >= 0) close(space);
    })
        .join();
    if (fd >= 0) ports_.push_back(fd);
    return fd >= 0;
  }
  void start() {
    carrier_ = std::thread([this] { carry(); });
  }
  // Nothing comes from this port or reaches it any more.
  void cut(int port) { cut_ = port; }
  [[nodiscard]] int64_t num_lost() const { return num_lost_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Address = std::array<char, 6>;
  struct Frame {
    Clock::time_point due;
    int from;
    std::string bytes;  // destination, source, and the rest
  };

  static int open_tap() {
    const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    ifreq request{};
    std::strncpy(request.ifr_name, "eth0", sizeof request.ifr_name);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) == 0) return fd;
    close(fd);
    return -1;
  }

  void carry() {
    std::vector<pollfd> polled;
    for (const int fd : ports_) polled.push_back({fd, POLLIN, 0});
    while (!stop_) {
      poll(polled.data(), polled.size(), frames_.empty() ? 20 : 1);
      for (size_t port = 0; port < ports_.size(); ++port) take(static_cast<int>(port));
      while (!frames_.empty() && frames_.front().due <= Clock::now()) {
        deliver(frames_.front());
        frames_.pop_front();
      }
    }
  }

  void take(int port) {
    std::array<char, 2048> buffer;
    while (true) {
      const ssize_t size = read(ports_[static_cast<size_t>(port)], buffer.data(), buffer.size());
      if (size < 14) return;
      if (random_.next_double() < loss_)
        ++num_lost_;
      else
        frames_.push_back({Clock::now() + delay_, port, std::string(buffer.data(), static_cast<size_t>(size))});
    }
  }

  void deliver(const Frame& frame) {
    Address to, from;
    std::memcpy(to.data(), frame.bytes.data(), to.size());
    std::memcpy(from.data(), frame.bytes.data() + to.size(), from.size());
    places_[from] = frame.from;
    const auto known = places_.find(to);
    for (size_t i = 0; i < ports_.size(); ++i) {
      const int port = static_cast<int>(i);
      if (port == frame.from || port == cut_ || frame.from == cut_) continue;
      if (known != places_.end() && known->second != port) continue;
      [[maybe_unused]] const ssize_t written = write(ports_[i], frame.bytes.data(), frame.bytes.size());
    }
  }

  const std::chrono::milliseconds delay_;
  const double loss_;
  std::vector<int> ports_;  // files of the devices
  std::deque<Frame> frames_;
  std::map<Address, int> places_;  // which port an address was last seen at
  RandomStream random_{{.seed = 7}};
  std::atomic<int> cut_ = -1;
  std::atomic<int64_t> num_lost_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread carrier_;
};

}  // namespace mortise
