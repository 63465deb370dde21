// The acceptor of HttpServer and its thread. session.h has the connections.
#include "serve/http/http_server.h"

#include <fmt/core.h>

#include <thread>
#include <utility>

#include "foundation/base/text.h"
#include "serve/http/session.h"

namespace mortise {

using namespace http_session;

namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

struct HttpServer::Core {
  asio::io_context io{1};
  Tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::thread thread;

  void accept() {
    acceptor.async_accept([this](error_code code, Tcp::socket socket) {
      if (code == asio::error::operation_aborted) return;
      error_code ignored;
      if (!code && shared->num_connections < shared->limits.max_connections) {
        socket.set_option(Tcp::no_delay(true), ignored);
        std::make_shared<Session>(std::move(socket), shared)->begin();
      } else if (!code) {
        static const std::string kFull =
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
            "Connection: close\r\n\r\n";
        socket.non_blocking(true, ignored);
        socket.write_some(asio::buffer(kFull), ignored);
      } else {  // out of descriptors, most likely: the client waits in the queue until some are free
        pause.expires_after(kAcceptPause);
        return pause.async_wait([this](error_code stopped) { return stopped ? void() : accept(); });
      }
      accept();
    });
  }
};

HttpServer::HttpServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const std::string& host, uint16_t port, const HttpLimits& limits,
                                                       HttpHandler handler, HttpGate gate) {
  const std::string where = fmt::format("{}:{}", host, port);
  error_code code;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, code);
  if (code)
    return Error{ErrorKind::kConfig, quote(host) + " is not an IP address", "--host", "write it like 127.0.0.1"};
  auto core = std::make_unique<Core>();
  core->shared->limits = limits;
  core->shared->handler = std::move(handler);
  core->shared->gate = std::move(gate);
  const Tcp::endpoint endpoint(address, port);
  core->acceptor.open(endpoint.protocol(), code);
  if (!code) core->acceptor.set_option(Tcp::acceptor::reuse_address(true), code);
  if (!code) core->acceptor.bind(endpoint, code);
  if (!code) core->acceptor.listen(asio::socket_base::max_listen_connections, code);
  if (code)
    return Error{ErrorKind::kConfig, "cannot listen: " + code.message(), where, "choose another --port or --host"};
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

uint16_t HttpServer::port() const { return core_->acceptor.local_endpoint().port(); }

void HttpServer::start() {
  core_->accept();
  core_->thread = std::thread([core = core_.get()] { core->io.run(); });
}

void HttpServer::stop() {
  asio::post(core_->io, [core = core_.get()] { core->io.stop(); });  // behind the replies that were given before
  if (core_->thread.joinable()) core_->thread.join();
}

}  // namespace mortise
