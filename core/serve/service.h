// ServeService: the endpoints. It reads requests, gives work to the loop, and answers when the loop is done.
//
// Thread rule: handle() on the HTTP server's thread; it never waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "foundation/base/env.h"
#include "serve/api/completion_call.h"
#include "serve/api/weight_calls.h"
#include "serve/http/http_server.h"
#include "serve/serve_loop.h"

namespace mortise {

struct ServiceOptions {
  std::string api_key;                            // empty: none is asked for
  std::string version;                            // version of the program
  std::shared_ptr<WeightReceiver> receiver = {};  // null: weights come from files only
};

class ServeService {
 public:
  ServeService(ServeLoop& loop, ServedTexts texts, ServiceOptions options, Env& env);

  // Why a request is refused before its body is read.
  [[nodiscard]] std::optional<HttpRefusal> gate(const HttpRequest& head) const;
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  // Answers what does not wait for the loop. Before the HTTP server ends.
  void stop() { weight_calls_.close(); }

 private:
  using Reply = std::shared_ptr<HttpReply>;

  void get(const std::string& path, const Reply& reply);
  void post(const HttpRequest& request, const Reply& reply);
  void complete(const Json& body, bool is_chat, const Reply& reply);
  void tokenize(const Json& body, bool backwards, const Reply& reply);
  void pause(const std::string& query, const Reply& reply);
  void collective_rpc(const Json& body, const Reply& reply);
  void update_version(const Json& body, const Reply& reply);
  [[nodiscard]] bool has_key(const std::string& authorization) const;
  [[nodiscard]] bool knows_model(const Json& body) const;
  uint64_t fresh_number();

  ServeLoop* loop_;
  std::shared_ptr<const ServedTexts> texts_;
  ServiceOptions options_;
  WeightCalls weight_calls_;
  Env* env_;
  int64_t started_s_;
};

}  // namespace mortise
