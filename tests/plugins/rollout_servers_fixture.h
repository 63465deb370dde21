// A server of rollouts that tests ask, and what it was asked (tests/support/rollout_server.py).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "e2e/python_service.h"
#include "plugins/rollout_client.h"
#include "support/http_get.h"

namespace mortise::test {

using nlohmann::json;

// One service for all tests; each has modes of its own.
class RolloutServers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    dir_ = new TempDir;
    service_ = new PythonService(dir_->path(), "rollout_server.py");
  }
  static void TearDownTestSuite() {
    delete service_;
    delete dir_;
  }
  void SetUp() override {
    if (!service_->started()) GTEST_SKIP() << "no python3 in PATH: the rollout servers were not tested";
  }
  static std::string url(const std::string& mode) { return service_->url("/" + mode); }
  static json log(const std::string& mode) {
    return json::parse(http_get(service_->port(), "/" + mode + "/log").body, nullptr, false);
  }
  static int64_t count_of(const json& log, const std::string& path) {
    int64_t count = 0;
    for (const json& call : log["calls"]) count += call[0] == path ? 1 : 0;
    return count;
  }

  static inline TempDir* dir_ = nullptr;
  static inline PythonService* service_ = nullptr;
};

}  // namespace mortise::test
