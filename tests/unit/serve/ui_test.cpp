// The pages' server without pages: who is let in, what a stream gets, and which models are held.
#include "serve/ui/ui_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>

#include "kept_reply.h"
#include "serve/http/query.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HttpRequest request_of(const std::string& method, const std::string& path) {
  HttpRequest request;
  request.method = method;
  const size_t question = path.find('?');
  request.path = path.substr(0, question);
  if (question != std::string::npos) request.query = path.substr(question + 1);
  request.host = "127.0.0.1:8000";
  return request;
}

int status_for(const HttpRequest& request, const UiAccess& access) {
  const auto refusal = refuse_request(request, access);
  return refusal ? refusal->status : 200;
}

TEST(UiAccess, ATokenIsNeeded) {
  const UiAccess access{"a key/1", true};
  EXPECT_EQ(status_for(request_of("GET", "/"), access), 401);
  EXPECT_EQ(status_for(request_of("GET", "/?token="), access), 401);
  EXPECT_EQ(status_for(request_of("GET", "/?token=a%20key%2F2"), access), 401);
  EXPECT_EQ(status_for(request_of("GET", "/?token=a%20key%2F1"), access), 200);
  HttpRequest request = request_of("POST", "/ui/score");
  request.authorization = "Bearer a key/1";
  EXPECT_EQ(status_for(request, access), 200);
  request.authorization = "a key/1";
  EXPECT_EQ(status_for(request, access), 401);
  EXPECT_EQ(encode_url("a key/1"), "a%20key%2F1");
  EXPECT_EQ(http_url("127.0.0.1", 80), "http://127.0.0.1:80");
  EXPECT_EQ(http_url("::1", 80), "http://[::1]:80");
}

TEST(UiAccess, ForeignHostsAndSitesAreRefused) {
  const UiAccess access{"t", true};
  HttpRequest request = request_of("GET", "/?token=t");
  for (const char* host : {"127.0.0.1", "localhost:1", "[::1]:8000", "127.1.2.3:9"}) {
    request.host = host;
    EXPECT_EQ(status_for(request, access), 200) << host;
  }
  for (const char* host :
       {"", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1"}) {
    request.host = host;
    EXPECT_EQ(status_for(request, access), 403) << host;
    EXPECT_EQ(status_for(request, {"t", false}), 200) << host << " may be this machine's name";
  }
  request = request_of("POST", "/v1/completions?token=t");
  request.from_browser = true;
  request.origin = "http://127.0.0.1:8000";
  EXPECT_EQ(status_for(request, access), 200);
  for (const char* origin : {"http://127.0.0.1:8001", "https://127.0.0.1:8000", "null", "http://evil.example"}) {
    request.origin = origin;
    EXPECT_EQ(status_for(request, access), 403) << origin;
  }
}

TEST(UiAccess, OtherSitesMayOnlyLinkToPages) {
  const UiAccess access{"t", true};
  HttpRequest request = request_of("GET", "/?token=t");
  request.fetch_site = "cross-site";
  request.fetch_mode = "no-cors";
  EXPECT_EQ(status_for(request, access), 403);
  request.fetch_mode = "navigate";
  EXPECT_EQ(status_for(request, access), 200);
  request.method = "POST";
  EXPECT_EQ(status_for(request, access), 403);
  request.fetch_site = "same-origin";
  EXPECT_EQ(status_for(request, access), 200);
}

// A stream whose pieces can be waited for.
class StreamReply final : public HttpReply {
 public:
  void send(int, std::string, std::string_view) override {}
  void start_stream(std::string_view type) override { type_ = std::string(type); }
  void write(std::string piece) override {
    const std::lock_guard lock(mutex_);
    text_ += piece;
    wake_.notify_all();
  }
  void end_stream() override {}
  void on_close(std::function<void()> then) override {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(then);
  }
  std::string text_with(const std::string& wanted) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(60), [&] { return text_.find(wanted) != std::string::npos; });
    return text_;
  }
  void leave() {
    std::unique_lock lock(mutex_);
    const auto then = closed_;
    lock.unlock();
    then();
  }
  std::string type_;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string text_;
  std::function<void()> closed_;
};

TEST(EventHub, EveryPageGetsItsOwnEvents) {
  EventHub hub(std::chrono::milliseconds(1));
  hub.start();
  const auto counts_to = [](int last) {
    return [n = 0, last]() mutable -> std::vector<UiEvent> {
      if (n == last) return {};
      ++n;
      return {{"count", "place" + std::to_string(n), std::to_string(n)}, {"now", "", "{}"}};
    };
  };
  const auto one = std::make_shared<StreamReply>(), other = std::make_shared<StreamReply>();
  hub.add(counts_to(3), one);
  hub.add(counts_to(1), other);
  const std::string first = "id: place1\nevent: count\ndata: 1\n\nevent: now\ndata: {}\n\n";
  EXPECT_EQ(one->text_with("place3").substr(0, first.size()), first);
  EXPECT_EQ(other->text_with("now"), first);
  EXPECT_THAT(one->type_, HasSubstr("text/event-stream"));
  EXPECT_EQ(hub.num_pages(), 2U);
  one->leave();
  EXPECT_EQ(hub.num_pages(), 1U);
  hub.stop();
  EXPECT_EQ(one.use_count(), 1) << "no reply outlives the hub";
  EXPECT_EQ(other.use_count(), 1);
}

// Answers "answer", and keeps every other reply.
struct HeldModel final : LoadedModel {
  explicit HeldModel(std::vector<std::shared_ptr<HttpReply>>& held_in) : held(&held_in) {}
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    if (request.body == "answer") return reply->send(200, "answered", "");
    if (request.body == "throw") throw std::runtime_error("no memory is left");
    held->push_back(reply);
  }
  std::vector<std::shared_ptr<HttpReply>>* held;
};

struct SlotsTest : testing::Test {
  std::string ask(const std::string& name, const std::string& body = "answer") {
    const auto reply = std::make_shared<KeptReply>();
    HttpRequest request;
    request.body = body;
    slots.handle(name, request, reply);
    reply->wait();
    return std::to_string(reply->status) + " " + reply->body;
  }
  std::vector<std::string> loads;
  std::vector<std::shared_ptr<HttpReply>> held;
  std::atomic<int> version = 1;
  ModelSlots slots{[this](const std::string& name) -> Result<std::unique_ptr<LoadedModel>> {
                     if (name == "broken") throw std::runtime_error("no memory is left");
                     if (name == "bad") return Error{ErrorKind::kData, "a tensor is missing", name, ""};
                     loads.push_back(name);
                     return std::unique_ptr<LoadedModel>(std::make_unique<HeldModel>(held));
                   },
                   [this](const std::string&) { return std::to_string(version); }, 2};
};

TEST_F(SlotsTest, TheModelThatWasUsedLongestAgoLeaves) {
  for (const char* name : {"a", "b", "a", "c", "a", "b"}) EXPECT_EQ(ask(name), "200 answered");
  EXPECT_THAT(slots.loaded(), ElementsAre("a", "b"));
  slots.stop();
  EXPECT_THAT(loads, ElementsAre("a", "b", "c", "b"));
}

TEST_F(SlotsTest, AModelThatIsInUseStays) {
  const auto open = std::make_shared<KeptReply>();
  slots.handle("a", {}, open);
  EXPECT_EQ(ask("b"), "200 answered");  // behind the first request
  EXPECT_EQ(ask("c"), "200 answered");
  EXPECT_THAT(slots.loaded(), ElementsAre("a", "c")) << "a was used longest ago, but still answers";
  held.clear();
  EXPECT_EQ(ask("b"), "200 answered");
  EXPECT_THAT(slots.loaded(), ElementsAre("c", "b"));
}

TEST_F(SlotsTest, AFailedLoadIsAnswered) {
  EXPECT_THAT(ask("bad"), testing::AllOf(HasSubstr("400"), HasSubstr("a tensor is missing")));
  EXPECT_EQ(ask("a"), "200 answered");
}

TEST_F(SlotsTest, AnExceptionIsAnsweredAndEndsNothing) {
  EXPECT_THAT(ask("broken"), testing::AllOf(HasSubstr("500 "), HasSubstr("no memory is left")));
  EXPECT_THAT(ask("a", "throw"), testing::AllOf(HasSubstr("500 "), HasSubstr("no memory is left")));
  EXPECT_EQ(ask("a"), "200 answered");
}

TEST_F(SlotsTest, ANameWithAnotherVersionIsLoadedAgain) {
  EXPECT_EQ(ask("a"), "200 answered");
  const auto open = std::make_shared<KeptReply>();
  slots.handle("b", {}, open);
  EXPECT_EQ(ask("a"), "200 answered");  // behind the request for b
  version = 2;
  EXPECT_EQ(ask("a"), "200 answered");
  EXPECT_EQ(ask("b"), "200 answered") << "the old b still answers, so a leaves";
  EXPECT_THAT(slots.loaded(), ElementsAre("b"));
  held.clear();
  EXPECT_EQ(ask("a"), "200 answered");
  EXPECT_EQ(ask("b"), "200 answered");
  slots.stop();
  EXPECT_THAT(loads, ElementsAre("a", "b", "a", "b", "a"));
}

TEST_F(SlotsTest, TooManyRequestsAreRefused) {
  for (const char* name : {"a", "b"}) slots.handle(name, {}, std::make_shared<KeptReply>());
  EXPECT_EQ(ask("b"), "200 answered");  // both are in use now
  std::vector<std::shared_ptr<KeptReply>> waiting;
  for (size_t i = 0; i < ModelSlots::kMostWaiting; ++i) {
    waiting.push_back(std::make_shared<KeptReply>());
    HttpRequest request;
    request.body = "answer";
    slots.handle("c", request, waiting.back());
  }
  EXPECT_THAT(ask("c"), testing::AllOf(HasSubstr("503 "), HasSubstr("too many requests wait")));
  held.clear();
  for (const auto& reply : waiting) {
    reply->wait();
    EXPECT_EQ(reply->status, 200);
  }
}

TEST(WorkThread, AnExceptionIsToldAndTooMuchWorkIsNotTaken) {
  std::promise<std::string> told;
  std::promise<void> runs, go_on;
  WorkThread thread;  // ends before what its work uses
  const auto nothing = [](const std::string&) {};
  ASSERT_TRUE(thread.post([] { throw std::runtime_error("no memory is left"); },
                          [&](const std::string& what) { told.set_value(what); }));
  EXPECT_EQ(told.get_future().get(), "no memory is left");
  ASSERT_TRUE(thread.post(
      [&] {
        runs.set_value();
        go_on.get_future().wait();
      },
      nothing));
  runs.get_future().wait();
  for (size_t i = 0; i < WorkThread::kMostPosted; ++i) EXPECT_TRUE(thread.post([] {}, nothing));
  EXPECT_FALSE(thread.post([] {}, nothing));
  go_on.set_value();
}

TEST(EventHub, APageWhoseEventsFailLeaves) {
  EventHub hub(std::chrono::milliseconds(1));
  hub.start();
  const auto bad = std::make_shared<StreamReply>(), good = std::make_shared<StreamReply>();
  hub.add([]() -> std::vector<UiEvent> { throw std::runtime_error("no memory is left"); }, bad);
  hub.add([n = 0]() mutable { return std::vector<UiEvent>{{"count", "", std::to_string(++n)}}; }, good);
  EXPECT_THAT(good->text_with("data: 3\n"), HasSubstr("data: 3\n"));
  EXPECT_EQ(hub.num_pages(), 1U);
  hub.stop();
}

struct FakePort final : UiPort {
  Result<std::string> report_page() override { return std::string("<html>report"); }
  Result<std::string> playground_page() override { return std::string("<html>playground"); }
  Result<std::string> rows(int64_t run, int64_t step) override {
    return std::to_string(run) + "/" + std::to_string(step);
  }
  Result<Json> models() override { return Json{{"data", {{{"id", "m"}}}}}; }
  Result<Json> data_row(const Json& body) override {
    if (body.contains("throw")) throw std::runtime_error("no memory is left");
    return body;
  }
  Result<Json> score(const Json&) override { return Error{ErrorKind::kPlugin, "the reward crashed", "", ""}; }
  EventHub::Source open_events(const std::string& place) override {
    return [place, is_told = false]() mutable -> std::vector<UiEvent> {
      if (std::exchange(is_told, true)) return {};
      return {{"from", "", place}};
    };
  }
  std::string version_of(const std::string&) override { return ""; }
  Result<std::unique_ptr<LoadedModel>> load_model(const std::string& name) override {
    return Error{ErrorKind::kConfig, "there is no model " + name, "", ""};
  }
};

struct UiServiceTest : testing::Test {
  ~UiServiceTest() override { service.stop(); }
  std::string ask(const std::string& method, const std::string& path, const std::string& body = "") {
    HttpRequest request = request_of(method, path);
    request.authorization = "Bearer t";
    request.body = body;
    const auto reply = std::make_shared<KeptReply>();
    service.handle(std::move(request), reply);
    reply->wait();
    return std::to_string(reply->status) + " " + reply->body;
  }
  FakePort port;
  UiService service{port, {"t", true}};
};

TEST_F(UiServiceTest, Endpoints) {
  EXPECT_EQ(ask("GET", "/"), "200 <html>report");
  EXPECT_EQ(ask("GET", "/playground"), "200 <html>playground");
  EXPECT_EQ(ask("GET", "/ui/rows?run=1&step=20"), "200 1/20");
  EXPECT_THAT(ask("GET", "/ui/rows?run=1"), HasSubstr("400"));
  EXPECT_EQ(ask("GET", "/v1/models"), R"(200 {"data":[{"id":"m"}],"loaded":[]})");
  EXPECT_EQ(ask("POST", "/ui/data_row", R"({"a": 1})"), R"(200 {"a":1})");
  EXPECT_THAT(ask("POST", "/ui/data_row", R"({"throw": 1})"),
              testing::AllOf(HasSubstr("500 "), HasSubstr("no memory is left")));
  EXPECT_THAT(ask("POST", "/ui/score", "{}"), HasSubstr("the reward crashed"));
  EXPECT_THAT(ask("POST", "/v1/completions", R"({"model": "x"})"), HasSubstr("there is no model x"));
  EXPECT_THAT(ask("POST", "/v1/completions", "{}"), HasSubstr("must name one of the models"));
  EXPECT_THAT(ask("POST", "/pause", "{}"), HasSubstr("404"));
  EXPECT_THAT(ask("PUT", "/", "{}"), HasSubstr("405"));
}

TEST_F(UiServiceTest, WithoutTheTokenOnlyHealthIsTold) {
  const auto reply = std::make_shared<KeptReply>();
  service.handle(request_of("GET", "/events"), reply);
  reply->wait();
  EXPECT_EQ(reply->status, 401);
  EXPECT_THAT(reply->body, HasSubstr("the token is missing or wrong"));
  EXPECT_FALSE(service.gate(request_of("GET", "/health")));
  EXPECT_TRUE(service.gate(request_of("POST", "/v1/completions")));
}

TEST_F(UiServiceTest, AStreamThatConnectsAgainContinuesBehindItsLastEvent) {
  HttpRequest request = request_of("GET", "/events?since=page&token=t");
  const auto first = std::make_shared<StreamReply>(), again = std::make_shared<StreamReply>();
  service.handle(request, first);
  EXPECT_THAT(first->text_with("data: "), HasSubstr("data: page\n"));
  request.last_event_id = "event7";
  service.handle(request, again);
  EXPECT_THAT(again->text_with("data: "), HasSubstr("data: event7\n"));
}

}  // namespace
}  // namespace mortise::test
