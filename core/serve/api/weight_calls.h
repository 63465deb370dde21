// The calls by which a trainer sends weights over the network, as vLLM has them: /init_weight_transfer_engine,
// /start_weight_update, /update_weights, /finish_weight_update.
// Thread rule: handle() on the HTTP server's thread; it never waits.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "foundation/formats/json.h"
#include "serve/http/http_server.h"
#include "serve/serve_loop.h"

namespace mortise {

class WeightCalls {
 public:
  // receiver: null if this server takes weights from files only.
  WeightCalls(ServeLoop& loop, std::shared_ptr<WeightReceiver> receiver)
      : loop_(&loop), receiver_(std::move(receiver)) {}
  WeightCalls(const WeightCalls&) = delete;
  WeightCalls& operator=(const WeightCalls&) = delete;
  ~WeightCalls() { close(); }
  // The server ends: answers who waits for weights.
  void close() {
    if (receiver_) receiver_->close();
  }
  static bool has(const std::string& path);
  // Precondition: has(path). Answers, now or later.
  void handle(const std::string& path, const Json& body, const std::shared_ptr<HttpReply>& reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  Result<> start(const std::string& path, const Json& body, const Reply& reply);
  Result<> finish(const Json& body, const Reply& reply);

  ServeLoop* loop_;
  std::shared_ptr<WeightReceiver> receiver_;
};

Result<WeightSender> read_weight_sender(const Json& body);
Result<std::vector<IncomingWeight>> read_incoming_weights(const Json& body);

}  // namespace mortise
