// Frames over a Unix stream socket, with file descriptors: {size, kind, number of descriptors}, {request, process} and a
// body. The asking end numbers what it sends; the answering end repeats the number of what it received last. Each names
// the process that sends. An end works only in the process that made it: a fork of it can neither read nor write.
//
// Values in a body have this machine's little-endian order, because both ends run on it. A peer is foreign code: sizes
// are limited, and a body that is too short is an error, never a read past the end. Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/worker/fd.h"
#include "plugin/worker/system.h"

namespace mortise {

class Encoder {
 public:
  Encoder& i64(int64_t value);
  Encoder& u64(uint64_t value) { return i64(static_cast<int64_t>(value)); }
  Encoder& f64(double value);
  Encoder& text(std::string_view value);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what an Encoder wrote. After a read past the end every value is 0 and ok() is false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  int64_t i64();
  uint64_t u64() { return static_cast<uint64_t>(i64()); }
  double f64();
  std::string text();
  // A count of things of at least `min_bytes` each that can still follow.
  size_t count(size_t min_bytes);
  [[nodiscard]] bool ok() const { return ok_; }
  // Everything was read and nothing is left over.
  [[nodiscard]] bool done() const { return ok_ && bytes_.empty(); }

 private:
  bool take(void* out, size_t size);
  std::string_view bytes_;
  bool ok_ = true;
};

struct Frame {
  uint32_t kind = 0;
  uint64_t request = 0;  // from an answering end: the number of what it had received last; 0: nothing yet
  int64_t process = 0;   // the sender, as it sees itself
  std::string body;
  std::vector<Fd> fds;
};

class Channel {
 public:
  Channel() = default;
  // An answering end, as a process has it that was started with a socket.
  explicit Channel(Fd socket, WorkerSystem& system = real_worker_system());
  // Two connected ends, closed on exec: the first asks, the second answers.
  static Result<std::pair<Channel, Channel>> pair(WorkerSystem& system = real_worker_system());

  // Waits while the peer does not read, `timeout_ms` at most (negative: for ever).
  Result<> send(uint32_t kind, std::string_view body, std::span<const int> fds = {}, int timeout_ms = -1);
  // The next frame. Nothing if none came within `timeout_ms` (0: what is there now), or if the peer has closed the
  // connection; closed() tells which.
  Result<std::optional<Frame>> receive(int timeout_ms);
  [[nodiscard]] bool closed() const { return closed_; }
  // It has sent bytes that are no frame. Every receive() is then an error.
  [[nodiscard]] bool sent_rubbish() const { return sent_rubbish_; }
  // The number of the last request, sent or received.
  [[nodiscard]] uint64_t request() const;
  // Whether this is the process that made the end, and not a fork of it.
  [[nodiscard]] bool is_own() const;
  // Bytes of a frame that has not come whole; 0: none has begun.
  [[nodiscard]] size_t num_pending() const { return buffer_.size() - consumed_; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool valid() const { return socket_.valid(); }
  Fd take_socket() { return std::move(socket_); }

 private:
  Result<bool> read_some();  // false: nothing there now
  [[nodiscard]] bool wait_for(short events, int64_t deadline_ns) const;
  [[nodiscard]] int64_t deadline_after(int timeout_ms) const;
  Result<std::optional<Frame>> next_buffered();
  void set_request(uint64_t number);

  WorkerSystem* system_ = &real_worker_system();
  Fd socket_;
  bool asks_ = false;
  int64_t process_ = 0;   // that made it
  uint64_t request_ = 0;  // a plugin's thread may log while the next request is received
  std::string buffer_;
  size_t consumed_ = 0;
  std::deque<Fd> fds_;
  bool closed_ = false;
  bool sent_rubbish_ = false;
  bool lost_fds_ = false;
};

}  // namespace mortise
