// A connection of HttpServer, and the replies to its requests. Everything in a session runs on the one thread of its
// io_context; replies post to it. Only http_server.cpp includes this.
#pragma once

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "foundation/formats/json.h"
#include "serve/http/http_server.h"

namespace mortise::http_session {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

inline constexpr size_t kReadBytes = 4096;
inline constexpr std::chrono::milliseconds kLastWords{2'000};
inline constexpr size_t kBufferBytes = 256 << 10;  // more than a header and one read of a body

// What the sessions of a server share.
struct Shared {
  HttpLimits limits;
  HttpHandler handler;
  HttpGate gate;
  int num_connections = 0;
  uint64_t body_bytes = 0;  // bodies of requests that are still arriving
};

template <class Message>
std::string text_of(const Message& message) {
  std::ostringstream out;
  out << message;
  return std::move(out).str();
}

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, std::shared_ptr<Shared> shared)
      : socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        buffer_(kBufferBytes),
        shared_(std::move(shared)) {
    ++shared_->num_connections;
  }
  ~Session() { --shared_->num_connections; }

  void begin() { await_request(); }
  auto executor() { return socket_.get_executor(); }

  // The calls of the reply to request number `request`; those of an earlier one come too late and do nothing.
  void send(uint64_t request, int status, const std::string& body, const std::string& type) {
    if (!is_open(request) || is_streaming_) return;
    http::response<http::string_body> response{static_cast<http::status>(status), version_};
    fill(response, type);
    response.body() = body;
    response.prepare_payload();
    is_answered_ = true;
    put(text_of(response));
  }
  void start_stream(uint64_t request, const std::string& type) {
    if (!is_open(request) || is_streaming_) return;
    http::response<http::empty_body> response{http::status::ok, version_};
    fill(response, type);
    response.chunked(true);
    is_streaming_ = true;
    put(text_of(response.base()));
  }
  void write(uint64_t request, const std::string& piece) {
    if (!is_open(request) || !is_streaming_ || piece.empty()) return;
    put(beast::buffers_to_string(http::make_chunk(asio::buffer(piece))));
  }
  void end_stream(uint64_t request) {
    if (!is_open(request) || !is_streaming_) return;
    is_answered_ = true;
    put(beast::buffers_to_string(http::make_chunk_last()));
  }
  void abandon(uint64_t request) {
    if (!is_open(request)) return;
    if (is_streaming_) {  // what was written goes out; without a last chunk it does not look whole
      is_abandoned_ = true;
      return unsent_.empty() ? close() : void();
    }
    send(request, 500, R"({"error":{"message":"the request was dropped","type":"InternalServerError","code":500}})",
         "application/json");
  }
  void on_close(uint64_t request, std::function<void()> then) {
    if (!is_open(request)) return request == request_ && is_answered_ ? void() : then();
    closed_ = std::move(then);
  }

 private:
  enum class State { kIdle, kReading, kBusy, kClosed };

  [[nodiscard]] bool is_open(uint64_t request) const {
    return state_ == State::kBusy && request == request_ && !is_answered_;
  }

  template <class Response>
  void fill(Response& response, const std::string& type) {
    response.set(http::field::server, "mortise");
    response.set(http::field::content_type, type);
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("X-Frame-Options", "DENY");
    response.set("Referrer-Policy", "no-referrer");
    response.keep_alive(keep_alive_);
  }

  void allow(std::chrono::milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([self = shared_from_this()](error_code code) {
      if (!code && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->close();
    });
  }

  // One read is always outstanding: it waits for the next request, or sees that the client has gone.
  void read_some() {
    if (is_reading_ || buffer_.size() > 0) return;
    is_reading_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](error_code code, size_t count) {
      self->is_reading_ = false;
      self->buffer_.commit(count);
      if (code || self->state_ == State::kClosed) return self->close();
      if (self->state_ == State::kIdle) self->read_header();
    });
  }

  void await_request() {
    state_ = State::kIdle;
    if (buffer_.size() > 0) return read_header();
    allow(shared_->limits.idle_timeout);
    read_some();
  }

  void read_header() {
    state_ = State::kReading;
    allow(shared_->limits.read_timeout);
    ++request_;
    keep_alive_ = is_answered_ = is_streaming_ = false;
    version_ = 11;
    parser_.emplace();
    parser_->header_limit(shared_->limits.max_header_bytes);
    parser_->body_limit(shared_->limits.max_body_bytes);
    http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code code, size_t) {
      if (code) return self->refuse(code);
      if (const auto refusal = self->admit()) return self->refuse_with(refusal->status, refusal->message);
      const bool expects = beast::iequals(self->parser_->get()[http::field::expect], "100-continue");
      return expects ? self->say_continue() : self->read_body();
    });
  }

  void say_continue() {
    static const std::string kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue), [self = shared_from_this()](error_code code, size_t) {
      return code ? self->close() : self->read_body();
    });
  }

  void read_body() {
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code code, size_t) {
      return code ? self->refuse(code) : self->hand_over();
    });
  }

  // The request without its body.
  HttpRequest head_of() {
    const auto& message = parser_->get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    const std::string target(message.target());
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string::npos) request.query = target.substr(question + 1);
    request.authorization = std::string(message[http::field::authorization]);
    request.host = std::string(message[http::field::host]);
    request.origin = std::string(message[http::field::origin]);
    request.fetch_site = std::string(message["Sec-Fetch-Site"]);
    request.fetch_mode = std::string(message["Sec-Fetch-Mode"]);
    request.last_event_id = std::string(message["Last-Event-ID"]);
    request.from_browser = message.find(http::field::origin) != message.end();
    return request;
  }

  // May the body come? If not, why.
  std::optional<HttpRefusal> admit() {
    const HttpLimits& limits = shared_->limits;
    if (shared_->gate) {
      if (auto refusal = shared_->gate(head_of())) return refusal;
    }
    const uint64_t length = parser_->content_length().value_or(0);
    reserved_bytes_ = parser_->chunked() ? limits.max_body_bytes : std::min(length, limits.max_body_bytes);
    if (shared_->body_bytes + reserved_bytes_ > limits.max_total_body_bytes) {
      reserved_bytes_ = 0;
      return HttpRefusal{503, "the bodies of other requests take all the memory; try again later"};
    }
    shared_->body_bytes += reserved_bytes_;
    return std::nullopt;
  }
  void release_body() { shared_->body_bytes -= std::exchange(reserved_bytes_, 0); }

  // A request that cannot be read: an answer if the client still listens, then the end.
  void refuse(error_code code) {
    if (state_ == State::kClosed) return;
    const bool is_syntax = code.category() == make_error_code(http::error::bad_method).category();
    if (!is_syntax || code == http::error::end_of_stream || code == http::error::partial_message) return close();
    int status = 400;
    if (code == http::error::body_limit) status = 413;
    if (code == http::error::header_limit || code == http::error::buffer_overflow) status = 431;
    refuse_with(status);
  }
  void refuse_with(int status, std::string message = {}) {
    state_ = State::kBusy;
    keep_alive_ = false;
    if (message.empty()) message = std::string(http::obsolete_reason(static_cast<http::status>(status)));
    send(request_, status, dump_json({{"error", {{"message", message}, {"code", status}}}}), "application/json");
  }

  void hand_over();

  // Writes what waits, piece by piece.
  void put(std::string piece) {
    unsent_bytes_ += piece.size();
    if (is_streaming_ && unsent_bytes_ > shared_->limits.max_unsent_bytes) return close();
    unsent_.push_back(std::move(piece));
    if (unsent_.size() == 1) write_next();
  }
  void write_next() {
    allow(shared_->limits.write_timeout);
    asio::async_write(socket_, asio::buffer(unsent_.front()), [self = shared_from_this()](error_code code, size_t) {
      if (code || self->state_ == State::kClosed) return self->close();
      self->unsent_bytes_ -= self->unsent_.front().size();
      self->unsent_.pop_front();
      if (!self->unsent_.empty()) return self->write_next();
      self->deadline_.cancel();
      if (self->is_abandoned_) return self->close();
      if (!self->is_answered_) return;
      self->closed_ = nullptr;
      return self->keep_alive_ ? self->await_request() : self->finish();
    });
  }

  // The last answer of a connection has gone out. What the client still sends is read away for a moment: closing at
  // once would take the answer back from a client that is still writing.
  void finish() {
    error_code ignored;
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
    allow(kLastWords);
    drain();
  }
  void drain() {
    if (is_reading_) return;  // that read closes
    buffer_.clear();
    is_reading_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](error_code code, size_t) {
      self->is_reading_ = false;
      return code || self->state_ == State::kClosed ? self->close() : self->drain();
    });
  }
  void close() {
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    release_body();
    deadline_.cancel();
    error_code ignored;
    socket_.close(ignored);
    if (auto then = std::exchange(closed_, nullptr); then && !is_answered_) then();
  }

  Tcp::socket socket_;
  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  std::shared_ptr<Shared> shared_;
  std::optional<http::request_parser<http::string_body>> parser_;
  State state_ = State::kIdle;
  uint64_t request_ = 0;
  unsigned version_ = 11;
  bool is_reading_ = false, keep_alive_ = false, is_answered_ = false, is_streaming_ = false;
  bool is_abandoned_ = false;
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0;
  uint64_t reserved_bytes_ = 0;
  std::function<void()> closed_;
};

class SessionReply final : public HttpReply {
 public:
  SessionReply(std::shared_ptr<Session> session, uint64_t request) : session_(std::move(session)), request_(request) {}
  SessionReply(const SessionReply&) = delete;
  SessionReply& operator=(const SessionReply&) = delete;
  ~SessionReply() override {  // the session itself must end on the server's thread
    const auto executor = session_->executor();
    asio::post(executor, [session = std::move(session_), request = request_] { session->abandon(request); });
  }
  void send(int status, std::string body, std::string_view type) override {
    post([status, body = std::move(body), type = std::string(type)](Session& session, uint64_t request) {
      session.send(request, status, body, type);
    });
  }
  void start_stream(std::string_view type) override {
    post([type = std::string(type)](Session& session, uint64_t request) { session.start_stream(request, type); });
  }
  void write(std::string piece) override {
    post([piece = std::move(piece)](Session& session, uint64_t request) { session.write(request, piece); });
  }
  void end_stream() override {
    post([](Session& session, uint64_t request) { session.end_stream(request); });
  }
  void on_close(std::function<void()> then) override {
    post([then = std::move(then)](Session& session, uint64_t request) { session.on_close(request, then); });
  }

 private:
  template <class Work>
  void post(Work work) {
    asio::post(session_->executor(),
               [session = session_, request = request_, work = std::move(work)] { work(*session, request); });
  }
  std::shared_ptr<Session> session_;
  uint64_t request_;
};

inline void Session::hand_over() {
  HttpRequest request = head_of();
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  release_body();
  state_ = State::kBusy;
  deadline_.cancel();
  keep_alive_ = message.keep_alive();
  version_ = message.version();
  request.body = std::move(message.body());
  read_some();
  const auto reply = std::make_shared<SessionReply>(shared_from_this(), request_);
  try {
    shared_->handler(std::move(request), reply);
  } catch (const std::exception&) {  // the handler's own faults are values; this is memory
    reply->send(500, R"({"error":{"message":"internal error","type":"InternalServerError","code":500}})",
                "application/json");
  }
}

}  // namespace mortise::http_session
