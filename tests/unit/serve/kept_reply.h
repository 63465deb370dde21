// A reply that keeps what it was told, for tests without a network.
#pragma once

#include <future>
#include <mutex>
#include <string>
#include <utility>

#include "serve/http/http_server.h"

namespace mortise::test {

class KeptReply final : public HttpReply {
 public:
  void send(int s, std::string text, std::string_view) override {
    status = s;
    body = std::move(text);
    done_.set_value();
  }
  void start_stream(std::string_view type) override {
    status = 200;
    streamed_type = std::string(type);
  }
  void write(std::string piece) override { body += piece; }
  void end_stream() override { done_.set_value(); }
  void on_close(std::function<void()>) override {}
  void wait() { done_.get_future().wait(); }

  int status = 0;
  std::string body, streamed_type;

 private:
  std::promise<void> done_;
};

}  // namespace mortise::test
