// HttpServer: HTTP/1.1 over Boost.Beast for clients that are not trusted.
//
// One thread reads, calls the handler and writes. The handler gets a whole request and a reply that any thread may fill,
// now or later, in one piece or as a stream. Everything a client can make large or slow has a limit: header, body,
// connections, the time for a request, the time for a write, and what waits to be written. Browsers are told to keep
// no answer and to show none in a frame of another page. No TLS: put a proxy in front.
// Thread rule: listen, start and stop from one thread; a reply from any. No reply outlives the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

struct HttpLimits {
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = uint64_t{32} << 20;
  uint64_t max_total_body_bytes = uint64_t{256} << 20;  // bodies of all requests that are still arriving
  int max_connections = 512;
  std::chrono::milliseconds idle_timeout{75'000};   // between two requests of a connection
  std::chrono::milliseconds read_timeout{30'000};   // from a request's first byte to its last
  std::chrono::milliseconds write_timeout{30'000};  // for one piece of a reply
  size_t max_unsent_bytes = size_t{16} << 20;       // for a stream whose client does not read
};

struct HttpRequest {
  std::string method;         // "POST"
  std::string path;           // "/v1/completions"
  std::string query;          // what follows '?', as it came
  std::string authorization;  // the header of this name; empty if there is none
  bool from_browser = false;  // it has an Origin header: a page of some site sent it
  std::string body;
  // Other headers that tell where a request comes from; empty where they are missing.
  std::string host, origin, fetch_site, fetch_mode;
  std::string last_event_id;  // the last event that a stream's client got, when it connects again
};

// Thread-safe. If it is dropped without an answer, the client gets status 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, std::string body, std::string_view type = "application/json") = 0;
  // A stream in place of send(): start, any number of pieces, end.
  virtual void start_stream(std::string_view type) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end_stream() = 0;
  // Called once, on the server's thread, if the client leaves before the reply is done. It may be called at once.
  virtual void on_close(std::function<void()> then) = 0;
};

// Why a request is not answered.
struct HttpRefusal {
  int status = 0;
  std::string message;
};
// Called with a request whose body has not been read. Nothing: read on.
using HttpGate = std::function<std::optional<HttpRefusal>(const HttpRequest&)>;
// Called on the server's thread: quick work only.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

class HttpServer {
 public:
  // Port 0: any free one.
  static Result<std::unique_ptr<HttpServer>> listen(const std::string& host, uint16_t port, const HttpLimits& limits,
                                                    HttpHandler handler, HttpGate gate = {});
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stops

  [[nodiscard]] uint16_t port() const;
  void start();
  void stop();  // closes all connections; idempotent

 private:
  struct Core;
  explicit HttpServer(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace mortise
