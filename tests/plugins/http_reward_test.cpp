// The reward `http` against a small service (tests/support/score_server.py): requests, retries, the circuit breaker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "foundation/base/clock.h"
#include "reward_call.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string out;
  char part[4096];
  while (pipe != nullptr && std::fgets(part, sizeof part, pipe) != nullptr) out += part;
  if (pipe != nullptr) ::pclose(pipe);
  return out;
}

class HttpReward : public testing::Test {
 protected:
  void SetUp() override {
    if (output_of("python3 -c 'print(1)' 2>/dev/null") != "1\n")
      GTEST_SKIP() << "no python3 in PATH for the service: the reward `http` was not tested";
    ::setenv("no_proxy", "127.0.0.1", 1);
    // The service ends when its standard input closes; a sleeping shell holds the other end. A file has its port.
    const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/support/score_server.py";
    service_ = ::popen(("exec python3 " + script + " 2>&1 >" + port_file_).c_str(), "w");
    ASSERT_NE(service_, nullptr);
    for (int i = 0; i < 5'000 && port_.empty(); ++i) {
      std::string text = output_of("cat " + port_file_ + " 2>/dev/null");
      if (!text.empty() && text.back() == '\n') port_ = text.substr(0, text.size() - 1);
      if (port_.empty()) output_of("sleep 0.02");
    }
    ASSERT_FALSE(port_.empty()) << "the service did not start";
  }
  void TearDown() override {
    if (service_ != nullptr) ::pclose(service_);
    std::remove(port_file_.c_str());
  }

  std::string url(const std::string& path) const { return "http://127.0.0.1:" + port_ + path; }
  static RewardCall at(const std::string& address, std::map<std::string, std::string> params = {}) {
    static const mortise_pack* pack =
        load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_http.so");
    params["url"] = address;
    params.try_emplace("backoff", "0.01");
    return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, "http"), std::move(params));
  }
  nlohmann::json log() const {
    return nlohmann::json::parse(output_of("python3 -c \"import urllib.request as u; print(u.urlopen('" + url("/log") +
                                           "').read().decode())\""));
  }
  static std::string failure(const RewardCall& call, int64_t row) {
    const auto it = call.plugin.call.failed_rows.find(row);
    return it == call.plugin.call.failed_rows.end() ? "row " + std::to_string(row) + " did not fail" : it->second.text;
  }

  FILE* service_ = nullptr;
  std::string port_;
  std::string port_file_ = testing::TempDir() + "mortise_http_port_" + std::to_string(::getpid());
};

TEST_F(HttpReward, SendsRowsInRequestsSeveralAtOnce) {
  std::vector<std::string> texts;
  std::vector<double> lengths;
  for (int i = 0; i < 50; ++i) texts.emplace_back(std::size_t(i), 'x'), lengths.push_back(i);
  auto plugin = at(url("/together/3"), {{"batch_size", "7"}, {"max_concurrent", "3"}});
  EXPECT_EQ(plugin.score(completions(texts)), lengths) << failure(plugin, 0);
  const auto seen = log();
  EXPECT_EQ(seen["requests"].size(), 8U);
  EXPECT_EQ(seen["most_at_once"], 3);
  auto whole = at(url("/list"), {{"batch_size", "1000"}});
  EXPECT_EQ(whole.score(completions(texts)), lengths) << "however the rows are cut";
}

TEST_F(HttpReward, SendsAllThatIsKnownOfARow) {
  auto plugin = at(url("/score"), {{"send_ids", "true"}});
  RewardRows rows{{"\"ä\n"},
                  {{"answer", MORTISE_COLUMN_TEXT, {"7"}, {}},
                   {"level", MORTISE_COLUMN_I64, {}, {3}},
                   {"meta", MORTISE_COLUMN_JSON, {R"({"a": [1, null]})"}, {}},
                   {"none", MORTISE_COLUMN_F64, {}, {std::nullopt}}},
                  {2},
                  {},
                  0};
  rows.messages = {R"([{"role": "user", "content": "hi"}])"};
  rows.step = 5;
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{3}));
  const auto expected = nlohmann::json::parse(R"({"step": 5, "is_validation": false, "rows": [{"prompt": "prompt",
    "messages": [{"role": "user", "content": "hi"}], "completion": "\"ä\n", "finish_reason": "stop",
    "prompt_ids": [65, 65], "completion_ids": [65, 65],
    "columns": {"answer": "7", "level": 3, "meta": {"a": [1, null]}, "none": null}}]})");
  EXPECT_EQ(log()["last"], expected);
}

TEST_F(HttpReward, TakesEveryFormOfAnEntry) {
  auto plugin = at(url("/entries"));
  EXPECT_EQ(shown(plugin.score(completions({"", "", "", "", ""}))), (std::vector<double>{0.5, -99, -99, -99, -99}));
  EXPECT_EQ(plugin.values["acc"], (std::map<int64_t, double>{{0, 1}}));
  EXPECT_EQ(plugin.values["n"], (std::map<int64_t, double>{{0, 3}}));
  EXPECT_EQ(plugin.plugin.call.failed_rows.size(), 3U);
  EXPECT_THAT(failure(plugin, 2), HasSubstr("too hard"));
  EXPECT_THAT(failure(plugin, 3), HasSubstr("without 'score' or 'error'"));
  EXPECT_THAT(failure(plugin, 4), HasSubstr("not a number: \"x\""));
}

TEST_F(HttpReward, TriesAgainWhatMayPass) {
  auto plugin = at(url("/flaky/2"));
  EXPECT_EQ(plugin.score(completions({"abc"})), (std::vector<double>{3})) << failure(plugin, 0);
  EXPECT_EQ(log()["requests"].size(), 3U);
  auto down = at(url("/down"), {{"retries", "1"}});
  EXPECT_EQ(shown(down.score(completions({"abc"}))), (std::vector<double>{-99}));
  EXPECT_THAT(failure(down, 0), AllOf(HasSubstr("status 503: try later"), HasSubstr("after 2 attempts")));
  auto refused = at(url("/client_error"));
  refused.score(completions({"abc"}));
  EXPECT_THAT(failure(refused, 0), AllOf(HasSubstr("status 400: what is this"), testing::Not(HasSubstr("attempts"))));
}

TEST_F(HttpReward, TheBreakerOpensAndCloses) {
  auto plugin = at(url("/flaky/4"), {{"retries", "0"},
                                     {"batch_size", "1"},
                                     {"max_concurrent", "1"},
                                     {"breaker_failures", "3"},
                                     {"breaker_pause", "2"}});
  const std::vector<std::string> ten(10, "ab");
  EXPECT_EQ(shown(plugin.score(completions(ten))), std::vector<double>(10, -99));
  EXPECT_EQ(log()["requests"].size(), 3U) << "then nothing is sent";
  EXPECT_THAT(failure(plugin, 9), AllOf(HasSubstr("not sent: the last 3 attempts"), HasSubstr("status 503")));
  EXPECT_THAT(failure(plugin, 9), HasSubstr("the next try is in"));
  output_of("sleep 2.1");
  plugin.score(completions(ten));
  EXPECT_EQ(log()["requests"].size(), 4U) << "one tried and failed: open again";
  output_of("sleep 2.1");
  EXPECT_EQ(plugin.score(completions(ten)), std::vector<double>(10, 2)) << "the service is back";
}

TEST_F(HttpReward, NobodyThereAndDeadlines) {
  auto nobody = at("http://127.0.0.1:1/score", {{"retries", "1"}});
  nobody.score(completions({"a"}));
  EXPECT_THAT(failure(nobody, 0), AllOf(HasSubstr("127.0.0.1"), HasSubstr("after 2 attempts")));
  auto impatient = at(url("/slow"), {{"retries", "0"}, {"request_limit", "0.1"}});
  impatient.score(completions({"a"}));
  EXPECT_THAT(failure(impatient, 0), HasSubstr("timed out"));
  auto slow = at(url("/slow"));
  slow.plugin.call.deadline_ns = default_env().monotonic_ns() + 300'000'000;
  EXPECT_EQ(shown(slow.score(completions({"a"}))), (std::vector<double>{-99}));
  EXPECT_EQ(slow.plugin.call.failed_rows.at(0).code, MORTISE_DEADLINE_EXCEEDED);
  slow.plugin.call.deadline_ns = 0;
  slow.plugin.call.cancel = true;
  slow.score(completions({"a"}));
  EXPECT_EQ(slow.status, MORTISE_CANCELLED);
}

TEST_F(HttpReward, WrongAnswersFailTheirRequest) {
  auto few = at(url("/wrong"));
  few.score(completions({"a", "b"}));
  EXPECT_THAT(failure(few, 1), HasSubstr("answered 1 rewards to 2 rows"));
  auto text = at(url("/text"));
  text.score(completions({"a"}));
  EXPECT_THAT(failure(text, 0), HasSubstr("answered with text that is not JSON to 1 rows: fine"));
  auto deep = at(url("/deep"));
  deep.score(completions({"a"}));
  EXPECT_THAT(failure(deep, 0), HasSubstr("nested deeper than 128 levels"));
}

TEST_F(HttpReward, SendsTheTokenOfTheEnvironment) {
  ::setenv("MORTISE_TEST_TOKEN", "sesame", 1);
  auto known = at(url("/secret"), {{"token_env", "MORTISE_TEST_TOKEN"}});
  EXPECT_EQ(known.score(completions({"ab"})), (std::vector<double>{2}));
  auto stranger = at(url("/secret"));
  stranger.score(completions({"ab"}));
  EXPECT_THAT(failure(stranger, 0), HasSubstr("status 401"));
  ::unsetenv("MORTISE_TEST_TOKEN");
  auto unset = at(url("/secret"), {{"token_env", "MORTISE_TEST_TOKEN"}});
  EXPECT_THAT(unset.plugin.call.error, HasSubstr("'MORTISE_TEST_TOKEN' is not set"));
  auto no_address = at("localhost:8000");
  EXPECT_THAT(no_address.plugin.call.error, HasSubstr("http://127.0.0.1:8000/score"));
}

}  // namespace
}  // namespace mortise::test
