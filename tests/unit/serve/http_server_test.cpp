// HTTP from clients that are not trusted: sizes, slowness, nonsense, and leaving early.
#include "serve/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <map>
#include <mutex>

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) ADD_FAILURE() << "cannot connect";
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { leave(); }
  void leave() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  RawClient& say(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t sent = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) break;  // the server has closed
      at += static_cast<size_t>(sent);
    }
    return *this;
  }
  // Until the text is there, or the connection ends.
  std::string hear(const std::string& until) {
    std::string got;
    char part[4096];
    while (until.empty() || got.find(until) == std::string::npos) {
      const ssize_t size = ::recv(fd_, part, sizeof part, 0);
      if (size <= 0) break;
      got.append(part, static_cast<size_t>(size));
    }
    return got;
  }
  std::string hear_all() { return hear(""); }

 private:
  int fd_;
};

// Answers /echo with the body, /stream with three pieces, /drop never, and keeps the reply of /hold.
class Http : public testing::Test {
 protected:
  void serve(const HttpLimits& limits = {}) {
    server = HttpServer::listen(
                 "127.0.0.1", 0, limits, [this](HttpRequest request, auto reply) { answer(std::move(request), reply); },
                 [](const HttpRequest& head) -> std::optional<HttpRefusal> {
                   if (head.path != "/locked") return std::nullopt;
                   return HttpRefusal{401, "it is \"locked\""};
                 })
                 .value();
    server->start();
  }
  ~Http() override {
    held.reset();
    server.reset();
  }
  void answer(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    if (request.path == "/echo")
      reply->send(200, request.query + "|" + request.authorization + "|" + request.body, "text/plain");
    if (request.path == "/stream") {
      reply->start_stream("text/event-stream");
      for (const char* piece : {"one ", "two ", "three"}) reply->write(piece);
      reply->end_stream();
    }
    if (request.path == "/half") {
      reply->start_stream("text/plain");
      reply->write("only this");
    }
    if (request.path == "/hold") {
      reply->on_close([this] { left.set_value(); });
      held = reply;
      came.set_value();
    }
  }
  RawClient client() { return RawClient(server->port()); }
  static std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "Content-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }

  std::promise<void> came, left;
  std::shared_ptr<HttpReply> held;
  std::unique_ptr<HttpServer> server;
};

TEST_F(Http, AnswersOnOneConnectionAgainAndAgain) {
  serve();
  RawClient one(server->port());
  for (int i = 0; i < 3; ++i) {
    one.say(post("/echo?a=b", "body" + std::to_string(i), "Authorization: Bearer k\r\n"));
    EXPECT_THAT(one.hear("body" + std::to_string(i)), AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("a=b|Bearer k|")));
  }
  one.say(post("/echo", "first") + post("/echo", "second"));  // without waiting for the answer
  EXPECT_THAT(one.hear("second"), HasSubstr("first"));
}

TEST_F(Http, StreamsInChunks) {
  serve();
  RawClient one(server->port());
  one.say("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string got = one.hear_all();
  EXPECT_THAT(
      got, AllOf(HasSubstr("Transfer-Encoding: chunked"), HasSubstr("4\r\none \r\n"), HasSubstr("\r\nthree\r\n0\r\n")));
}

TEST_F(Http, SaysContinueToWhoAsks) {
  serve();
  RawClient one(server->port());
  one.say("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(one.hear("\r\n\r\n"), StartsWith("HTTP/1.1 100"));
  one.say("hi");
  EXPECT_THAT(one.hear("hi"), HasSubstr("200 OK"));
}

TEST_F(Http, SizesAreBounded) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  limits.max_header_bytes = 500;
  serve(limits);
  EXPECT_THAT(RawClient(server->port()).say(post("/echo", std::string(2000, 'x'))).hear_all(), HasSubstr("413"));
  EXPECT_THAT(
      RawClient(server->port()).say("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n").hear_all(),
      HasSubstr("413"));
  EXPECT_THAT(RawClient(server->port()).say(post("/echo", "a", "X: " + std::string(2000, 'x') + "\r\n")).hear_all(),
              HasSubstr("431"));
  EXPECT_THAT(RawClient(server->port()).say(post("/echo", std::string(900, 'x'))).hear("xxx"), HasSubstr("200 OK"));
}

TEST_F(Http, ABodyThatMayNotComeIsNotRead) {
  HttpLimits limits;
  limits.max_total_body_bytes = 1000;
  serve(limits);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 600\r\n\r\n";
  EXPECT_THAT(RawClient(server->port()).say("POST /locked HTTP/1.1\r\nContent-Length: 600\r\n\r\n").hear_all(),
              AllOf(HasSubstr("401"), HasSubstr(R"("message":"it is \"locked\"")")));
  RawClient one(server->port());
  one.say("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 600\r\n\r\n").hear("100");
  EXPECT_THAT(RawClient(server->port()).say(head).hear_all(), HasSubstr("503")) << "the first holds 600 of 1000 bytes";
  one.say(std::string(600, 'x'));
  EXPECT_THAT(one.hear("xxx"), HasSubstr("200 OK"));
  EXPECT_THAT(RawClient(server->port()).say(head + std::string(600, 'y')).hear("yyy"), HasSubstr("200 OK"));
}

TEST_F(Http, NonsenseGetsAnErrorOrTheEnd) {
  serve();
  for (const std::string& nonsense :
       {std::string("\x16\x03\x01\x02\x00\x01\x00", 7), std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")}) {
    EXPECT_THAT(RawClient(server->port()).say(nonsense + "\r\n\r\n").hear_all(), Not(HasSubstr("200 OK"))) << nonsense;
  }
  EXPECT_THAT(RawClient(server->port()).say(post("/echo", "still here")).hear("here"), HasSubstr("200 OK"));
}

TEST_F(Http, SlowClientsAreLeft) {
  HttpLimits limits;
  limits.read_timeout = limits.idle_timeout = std::chrono::milliseconds(50);
  serve(limits);
  EXPECT_EQ(RawClient(server->port()).hear_all(), "");  // says nothing
  EXPECT_EQ(RawClient(server->port()).say("POST /echo HTTP/1.1\r\nHost:").hear_all(), "");
  EXPECT_EQ(RawClient(server->port()).say("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").hear_all(), "");
}

TEST_F(Http, TheHandlerHearsThatAClientHasLeft) {
  serve();
  RawClient one(server->port());
  one.say(post("/hold", ""));
  came.get_future().wait();
  one.leave();
  left.get_future().wait();
  held->send(200, "too late");
}

TEST_F(Http, ARequestThatIsDroppedIsAnError) {
  serve();
  EXPECT_THAT(RawClient(server->port()).say(post("/drop", "")).hear("dropped"), HasSubstr("500"));
  const std::string half = RawClient(server->port()).say(post("/half", "")).hear_all();
  EXPECT_THAT(half, AllOf(HasSubstr("only this"), Not(HasSubstr("\r\n0\r\n")))) << "it must not look whole";
}

TEST_F(Http, ConnectionsAreBounded) {
  HttpLimits limits;
  limits.max_connections = 2;
  serve(limits);
  RawClient one(server->port()), two(server->port());
  one.say(post("/echo", "a"));
  two.say(post("/echo", "a"));
  one.hear("a");
  two.hear("a");
  EXPECT_THAT(RawClient(server->port()).hear_all(), HasSubstr("503"));
}

TEST_F(Http, APortInUseIsSaid) {
  serve();
  const auto second = HttpServer::listen("127.0.0.1", server->port(), {}, [](HttpRequest, auto) {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().to_string(), HasSubstr("cannot listen"));
  EXPECT_FALSE(HttpServer::listen("example.org", 0, {}, [](HttpRequest, auto) {}).ok());
}

}  // namespace
}  // namespace mortise::test
