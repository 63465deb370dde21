// Encodes and decodes values, and sends and receives frames with descriptors.
#include "plugin/worker/channel.h"

#include <fmt/core.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "foundation/base/open_files.h"

namespace mortise {
namespace {

constexpr size_t kMaxBody = size_t{256} << 20;
constexpr size_t kMaxFds = 4;
constexpr size_t kReadBytes = size_t{16} << 10;

struct FrameHead {
  uint32_t size = 0;  // bytes that follow
  uint16_t kind = 0;
  uint16_t num_fds = 0;
};
struct FrameOrigin {
  uint64_t request = 0;
  int64_t process = 0;
};

Error channel_error(std::string what, std::string next = "") {
  return {ErrorKind::kPlugin, std::move(what), "connection to a worker", std::move(next)};
}
Error forked_error() {
  return channel_error("a forked child may not use the connection of its parent", "end it with _exit(0)");
}
Error channel_error(const char* operation, int code) {
  return channel_error(fmt::format("{} failed: {}", operation, std::strerror(code)), resource_advice(code, ""));
}

}  // namespace

Encoder& Encoder::i64(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

Encoder& Encoder::f64(double value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

Encoder& Encoder::text(std::string_view value) {
  u64(value.size());
  bytes_.append(value);
  return *this;
}

bool Decoder::take(void* out, size_t size) {
  if (!ok_ || bytes_.size() < size) {
    ok_ = false;
    std::memset(out, 0, size);
    return false;
  }
  std::memcpy(out, bytes_.data(), size);
  bytes_.remove_prefix(size);
  return true;
}

int64_t Decoder::i64() {
  int64_t value = 0;
  take(&value, sizeof value);
  return value;
}

double Decoder::f64() {
  double value = 0;
  take(&value, sizeof value);
  return value;
}

std::string Decoder::text() {
  const size_t size = count(1);
  std::string value(bytes_.substr(0, size));
  bytes_.remove_prefix(size);
  return value;
}

size_t Decoder::count(size_t min_bytes) {
  const uint64_t n = u64();
  if (ok_ && n > bytes_.size() / min_bytes) ok_ = false;
  return ok_ ? static_cast<size_t>(n) : 0;
}

Channel::Channel(Fd socket, WorkerSystem& system)
    : system_(&system), socket_(std::move(socket)), process_(::getpid()) {}

Result<std::pair<Channel, Channel>> Channel::pair(WorkerSystem& system) {
  int ends[2];
  if (system.socketpair(ends) != 0) return channel_error("socketpair", errno);
  std::pair both(Channel(Fd(ends[0]), system), Channel(Fd(ends[1]), system));
  both.first.asks_ = true;
  return both;
}

uint64_t Channel::request() const {
  return std::atomic_ref(const_cast<uint64_t&>(request_)).load(std::memory_order_relaxed);
}
void Channel::set_request(uint64_t number) { std::atomic_ref(request_).store(number, std::memory_order_relaxed); }

bool Channel::is_own() const { return ::getpid() == process_; }

// Until the socket is ready; false at the deadline.
bool Channel::wait_for(short events, int64_t deadline_ns) const {
  while (true) {
    int timeout_ms = -1;
    if (deadline_ns >= 0) {
      const int64_t left = deadline_ns - system_->monotonic_ns();
      timeout_ms = left <= 0 ? 0 : static_cast<int>((left + 999'999) / 1'000'000);
    }
    pollfd entry{socket_.get(), events, 0};
    const int ready = system_->poll(&entry, 1, timeout_ms);
    if (ready > 0) return true;
    if (ready == 0) return false;
    const bool passes = errno == EINTR || errno == ENOMEM || errno == EAGAIN;
    if (!passes) return true;  // the operation itself reports the fault
    if (errno != EINTR) system_->sleep_ms(1);
    if (deadline_ns >= 0 && system_->monotonic_ns() >= deadline_ns) return false;
  }
}

int64_t Channel::deadline_after(int timeout_ms) const {
  return timeout_ms < 0 ? -1 : system_->monotonic_ns() + int64_t{timeout_ms} * 1'000'000;
}

Result<> Channel::send(uint32_t kind, std::string_view body, std::span<const int> fds, int timeout_ms) {
  if (body.size() > kMaxBody) return channel_error(fmt::format("a message of {} bytes is too long", body.size()));
  if (!is_own()) return forked_error();
  if (asks_) set_request(request() + 1);
  const FrameHead head{static_cast<uint32_t>(sizeof(FrameOrigin) + body.size()), static_cast<uint16_t>(kind),
                       static_cast<uint16_t>(fds.size())};
  const FrameOrigin origin{request(), process_};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(&origin), sizeof origin);
  bytes.append(body);
  const int64_t deadline = deadline_after(timeout_ms);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  for (size_t sent = 0; sent < bytes.size();) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent == 0 && !fds.empty()) {  // descriptors travel with the first byte
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    const ssize_t n = system_->sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(POLLOUT, deadline)) return channel_error("the peer does not read");
    } else if (errno == EPIPE || errno == ECONNRESET) {
      closed_ = true;
      return channel_error("the peer has gone");
    } else if (errno != EINTR) {
      return channel_error("sendmsg", errno);
    }
  }
  return {};
}

Result<bool> Channel::read_some() {
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + kReadBytes);
  iovec part{buffer_.data() + old_size, kReadBytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  do {
    n = system_->recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  const int code = errno;
  buffer_.resize(old_size + static_cast<size_t>(n > 0 ? n : 0));
  if (n > 0) {
    lost_fds_ = lost_fds_ || (message.msg_flags & MSG_CTRUNC) != 0;  // no number was free for one of them
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      std::array<int, kMaxFds> numbers{};
      const size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(numbers.data(), CMSG_DATA(h), count * sizeof(int));
      for (size_t i = 0; i < count; ++i) fds_.emplace_back(numbers[i]);
    }
    return true;
  }
  if (n == 0 || code == ECONNRESET) {
    closed_ = true;
    return false;
  }
  if (code == EAGAIN || code == EWOULDBLOCK) return false;
  return channel_error("recvmsg", code);
}

Result<std::optional<Frame>> Channel::next_buffered() {
  const std::string_view rest = std::string_view(buffer_).substr(consumed_);
  FrameHead head;
  if (rest.size() < sizeof head) return std::optional<Frame>();
  std::memcpy(&head, rest.data(), sizeof head);
  sent_rubbish_ = head.size < sizeof(FrameOrigin) || head.size > sizeof(FrameOrigin) + kMaxBody ||
                  head.num_fds > (asks_ ? 0 : kMaxFds);  // no answer has descriptors
  if (sent_rubbish_) return channel_error("the other process sent bytes that are not a message");
  if (rest.size() < sizeof head + head.size) return std::optional<Frame>();
  if (fds_.size() < head.num_fds) {
    if (lost_fds_) return channel_error("a descriptor could not be received", resource_advice(EMFILE, ""));
    return channel_error("the other process sent a message without its descriptors");
  }
  FrameOrigin origin;
  std::memcpy(&origin, rest.data() + sizeof head, sizeof origin);
  Frame frame;
  frame.kind = head.kind;
  frame.request = origin.request;
  frame.process = origin.process;
  frame.body = rest.substr(sizeof head + sizeof origin, head.size - sizeof origin);
  if (!asks_) set_request(frame.request);
  for (uint16_t i = 0; i < head.num_fds; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  consumed_ += sizeof head + head.size;
  if (consumed_ == buffer_.size()) {
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > kReadBytes) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return std::optional<Frame>(std::move(frame));
}

Result<std::optional<Frame>> Channel::receive(int timeout_ms) {
  if (!is_own()) return forked_error();
  const int64_t deadline = deadline_after(timeout_ms);
  while (true) {
    std::optional<Frame> frame = TRY(next_buffered());
    if (frame || closed_) return frame;
    if (TRY(read_some()) || closed_) continue;
    if (!wait_for(POLLIN, deadline)) return std::optional<Frame>();
  }
}

}  // namespace mortise
