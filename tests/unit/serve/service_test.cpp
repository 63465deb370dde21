// The endpoints, over a fake model and without a network.
#include "serve/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "fake_model.h"
#include "kept_reply.h"
#include "serve/api/answers.h"
#include "served_texts.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Service : public testing::Test {
 protected:
  ~Service() override {
    loop.stop();
    thread_.join();
  }
  std::shared_ptr<KeptReply> call(const std::string& method, const std::string& path, const std::string& body = "",
                                  const std::string& key = "Bearer k", bool from_browser = false) {
    const auto reply = std::make_shared<KeptReply>();
    const size_t question = path.find('?');
    HttpRequest request;
    request.method = method;
    request.path = path.substr(0, question);
    request.authorization = key;
    request.from_browser = from_browser;
    request.body = body;
    if (question != std::string::npos) request.query = path.substr(question + 1);
    service.handle(std::move(request), reply);
    reply->wait();
    return reply;
  }
  Json json(const std::string& method, const std::string& path, const std::string& body = "") {
    const auto reply = call(method, path, body);
    EXPECT_EQ(reply->status, 200) << reply->body;
    return parse_json(reply->body, "answer").value();
  }

  TempDir dir_;
  FakeModel model;
  ServeLoop loop{model};
  ServeService service{loop, letter_texts(dir_, "abcdefghijklmnopqrstuvwxyz"), {"k", "1"}, default_env()};
  std::thread thread_{[this] { loop.run(); }};
};

// The other end of a trainer's connection: it has what it is told.
class FakeReceiver final : public WeightReceiver {
 public:
  void join(const WeightSender& sender, Done done) override {
    said += "join " + sender.address + ":" + std::to_string(sender.port) + " as " + std::to_string(sender.rank) +
            " of " + std::to_string(sender.size) + "\n";
    done({});
  }
  Result<> begin() override {
    said += "begin\n";
    return {};
  }
  void receive(std::vector<IncomingWeight> weights, Done done) override {
    for (const IncomingWeight& one : weights)
      said += "receive " + one.name + " " + one.dtype + " " + std::to_string(one.shape.size()) + "\n";
    if (weights.front().name == "lost") return done(Error{ErrorKind::kRankFailure, "the trainer has gone", "", ""});
    done({});
  }
  Result<Folder> finish() override {
    if (folder.empty()) return Error{ErrorKind::kConfig, "there are no new weights", "", ""};
    return std::make_shared<const std::string>(std::exchange(folder, ""));
  }
  void close() override { is_closed = true; }
  std::string said, folder = "received";
  bool is_closed = false;
};

HttpRequest post_of(const std::string& path, const std::string& body) {
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.body = body;
  return request;
}

TEST_F(Service, WeightsOfATrainerComeOverTheNetwork) {
  const auto receiver = std::make_shared<FakeReceiver>();
  ServeService fed(loop, letter_texts(dir_, "abc"), {"", "1", receiver}, default_env());
  const auto ask = [&](const std::string& path, const std::string& body) {
    const auto reply = std::make_shared<KeptReply>();
    fed.handle(post_of(path, body), reply);
    reply->wait();
    return std::pair(reply->status, reply->body);
  };
  const std::string init =
      R"({"init_info": {"master_address": "a", "master_port": 5, "rank_offset": 1, "world_size": 3}})";
  EXPECT_EQ(ask("/init_weight_transfer_engine", init).first, 200);
  EXPECT_EQ(ask("/start_weight_update", R"({"is_checkpoint_format": true})").first, 200);
  const std::string update =
      R"({"update_info": {"names": ["w", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], [2]]}})";
  EXPECT_EQ(ask("/update_weights", update).first, 200);
  EXPECT_EQ(ask("/finish_weight_update", R"({"weight_version": "12"})").first, 200);
  EXPECT_EQ(receiver->said, "join a:5 as 1 of 3\nbegin\nreceive w bfloat16 2\nreceive b float32 1\n");
  EXPECT_EQ(model.loaded, std::vector<std::string>{"received"});
  EXPECT_EQ(loop.stats().version, 12);
  EXPECT_EQ(ask("/finish_weight_update", "{}").first, 409) << "there is nothing more";
  receiver->folder = "bad";
  EXPECT_EQ(ask("/finish_weight_update", "{}").first, 500);
  EXPECT_TRUE(loop.stats().is_broken);
  EXPECT_EQ(loop.stats().version, kUnknownVersion);
  EXPECT_EQ(
      ask("/update_weights", R"({"update_info": {"names": ["lost"], "dtype_names": ["float32"], "shapes": [[1]]}})"),
      std::pair(500, error_body(500, "the trainer has gone")));
}

TEST_F(Service, WhoWaitsForWeightsIsToldWhenTheServerEnds) {
  const auto receiver = std::make_shared<FakeReceiver>();
  { ServeService fed(loop, letter_texts(dir_, "abc"), {"", "1", receiver}, default_env()); }
  EXPECT_TRUE(receiver->is_closed);
}

TEST_F(Service, WeightsThatCannotComeAreRefusedByName) {
  EXPECT_EQ(call("POST", "/start_weight_update", "{}")->status, 404) << "it has no receiver";
  const auto receiver = std::make_shared<FakeReceiver>();
  ServeService fed(loop, letter_texts(dir_, "abc"), {"", "1", receiver}, default_env());
  const auto refusal = [&](const std::string& path, const std::string& body) {
    const auto reply = std::make_shared<KeptReply>();
    fed.handle(post_of(path, body), reply);
    reply->wait();
    EXPECT_EQ(reply->status, 400) << reply->body;
    return reply->body;
  };
  const auto init = [&](const std::string& fields) {
    return refusal("/init_weight_transfer_engine", R"({"init_info": {)" + fields + "}}");
  };
  EXPECT_THAT(init(R"("master_port": 5)"), HasSubstr("'master_address' is missing"));
  EXPECT_THAT(init(R"("master_address": "a")"), HasSubstr("'master_port' is missing"));
  EXPECT_THAT(init(R"("master_address": "a", "master_port": 70000)"), HasSubstr("from 1 to 65535"));
  EXPECT_THAT(init(R"("nccl_unique_id_b64": "AAAA")"), HasSubstr("this server has no NCCL"));
  EXPECT_THAT(init(R"("master_address": "a", "master_port": 5, "packed": true)"), HasSubstr("'packed'"));
  EXPECT_THAT(init(R"("master_address": "a", "master_port": 5, "rank_offset": 2)"), HasSubstr("from 1 to 1"));
  EXPECT_THAT(init(R"("master_address": "a", "master_port": 5, "tp": 2)"), HasSubstr("'tp' is unknown"));
  EXPECT_THAT(refusal("/init_weight_transfer_engine", "{}"), HasSubstr("'init_info' must be an object"));
  const auto update = [&](const std::string& fields) {
    return refusal("/update_weights", R"({"update_info": {)" + fields + "}}");
  };
  EXPECT_THAT(update(R"("names": ["w"], "dtype_names": [], "shapes": [[1]])"), HasSubstr("as many entries as names"));
  EXPECT_THAT(update(R"("names": ["w"], "dtype_names": ["int8"], "shapes": [[1]])"), HasSubstr("has 'int8'"));
  EXPECT_THAT(update(R"("names": ["w"], "dtype_names": ["float32"], "shapes": [[-1]])"), HasSubstr("no weight has"));
  EXPECT_THAT(update(R"("names": ["w"], "dtype_names": ["float32"], "shapes": [[1099511627776, 2]])"),
              HasSubstr("no weight has"));
  EXPECT_THAT(refusal("/finish_weight_update", R"({"weight_version": "new"})"), HasSubstr("a number of at least 0"));
  EXPECT_EQ(receiver->said, "");
}

TEST_F(Service, CompletionsHaveIdsLogProbsAndVersions) {
  EXPECT_EQ(call("POST", "/update_weight_version", R"({"new_version": "7"})")->status, 200);
  const Json answer = json("POST", "/v1/completions",
                           R"({"model": "m", "prompt": [[2], [10]], "n": 2, "max_tokens": 3, "logprobs": 0,
                               "return_token_ids": true})");
  ASSERT_EQ(answer["choices"].size(), 4U);
  const Json& choice = answer["choices"][3];
  EXPECT_EQ(choice["index"], 3);
  EXPECT_EQ(choice["token_ids"], Json({11, 12, 13}));
  EXPECT_EQ(choice["prompt_token_ids"], Json({10}));
  EXPECT_EQ(choice["text"], "jkl");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({0.0, -0.25, -0.5}));
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"j", "k", "l"}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["weight_version"], 7);
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 2}, {"completion_tokens", 12}, {"total_tokens", 14}}));
}

TEST_F(Service, TokensOfLogProbsMayBeIds) {
  const Json choice =
      json("POST", "/v1/completions",
           R"({"prompt": [2], "max_tokens": 2, "logprobs": 0, "return_tokens_as_token_ids": true})")["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"token_id:2", "token_id:3"}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], Json({{"token_id:3", -0.25}}));
}

TEST_F(Service, TheEndIsNoPartOfTheText) {
  Json choice = json("POST", "/v1/completions", R"({"prompt": [2], "stop_token_ids": [4]})")["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["stop_reason"], 4);
  EXPECT_EQ(choice["finish_reason"], "stop");
  choice = json("POST", "/v1/completions",
                R"({"prompt": [2], "stop_token_ids": [4], "include_stop_str_in_output": true})")["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
}

TEST_F(Service, StreamsTextAsItGrows) {
  const auto reply = call("POST", "/v1/chat/completions",
                          R"({"messages": [{"role": "user", "content": "c"}], "max_tokens": 3, "stream": true,
                              "stream_options": {"include_usage": true}})");
  EXPECT_THAT(reply->streamed_type, HasSubstr("text/event-stream"));
  std::string text;
  std::vector<std::string> events;
  for (size_t at = 0; (at = reply->body.find("data: ", at)) != std::string::npos;) {
    const size_t end = reply->body.find("\n\n", at);
    events.push_back(reply->body.substr(at + 6, end - at - 6));
    at = end;
  }
  ASSERT_GE(events.size(), 4U);
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 2 < events.size(); ++i)
    text += parse_json(events[i], "event").value()["choices"][0]["delta"]["content"].get<std::string>();
  EXPECT_EQ(text, "cde");
  const Json usage = parse_json(events[events.size() - 2], "event").value()["usage"];
  EXPECT_EQ(usage["completion_tokens"], 3);
}

TEST_F(Service, ChatsAnswerWithAMessage) {
  const Json answer = json("POST", "/v1/chat/completions",
                           R"({"messages": [{"role": "user", "content": "ab"}], "max_completion_tokens": 2,
                               "logprobs": true, "return_token_ids": true})");
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["prompt_token_ids"], Json({2, 3}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "bc");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["content"][1]["token"], "c");
}

// gpt-oss: the reasoning is apart, and only its own clients see the special tokens.
TEST(HarmonyChats, HaveTheirReasoningApart) {
  const TempDir dir;
  FakeModel model;
  ServeLoop loop{model};
  // The words of a message are tokens; the model says them in this order.
  ServeService service{
      loop,
      letter_texts(dir, "ab", "", {"<|start|>", "<|channel|>", "analysis", "<|message|>", "think", "<|end|>"}),
      {"", "1"},
      default_env()};
  std::thread thread{[&] { loop.run(); }};
  const auto ask = [&](const std::string& more, int num_tokens = 4) {
    const auto reply = std::make_shared<KeptReply>();
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/chat/completions";
    request.body = R"({"messages": [{"role": "user", "content": "<|channel|>"}], "max_tokens": )" +
                   std::to_string(num_tokens) + more + "}";
    service.handle(std::move(request), reply);
    reply->wait();
    return reply->body;
  };
  Json message = parse_json(ask(""), "answer").value()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "think");
  EXPECT_EQ(message["content"], "");
  message = parse_json(ask(R"(, "skip_special_tokens": false)"), "answer").value()["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning"));
  EXPECT_THAT(message["content"].get<std::string>(), HasSubstr("<|message|>think"));
  const std::string stream = ask(R"(, "stream": true)");
  EXPECT_THAT(stream, HasSubstr(R"("reasoning":"think")"));
  // The beginning of a stop text is held back, as in the answer.
  const std::string held = ask(R"(, "stream": true, "stop": ["nkx"])", 5);
  EXPECT_THAT(held, HasSubstr(R"("reasoning":"thi")"));
  EXPECT_THAT(held, HasSubstr(R"("reasoning":"nk")"));
  loop.stop();
  thread.join();
}

TEST_F(Service, TokenizesAndBack) {
  EXPECT_EQ(json("POST", "/tokenize", R"({"prompt": "abc"})")["tokens"], Json({2, 3, 4}));
  EXPECT_EQ(json("POST", "/detokenize", R"({"tokens": [2, 3]})")["prompt"], "ab");
  EXPECT_THAT(call("POST", "/detokenize", R"({"tokens": [5000]})")->body, HasSubstr("outside the vocabulary"));
}

TEST_F(Service, SaysWhatItIs) {
  const Json card = json("GET", "/v1/models")["data"][0];
  EXPECT_EQ(card["id"], "m");
  EXPECT_EQ(card["owned_by"], "mortise");
  EXPECT_TRUE(card["weight_version"].is_null());
  EXPECT_THAT(call("GET", "/metrics")->body,
              AllOf(HasSubstr("# TYPE mortise_samples_running gauge"), HasSubstr("mortise_weight_version -1")));
  EXPECT_EQ(call("GET", "/health", "", "")->status, 200) << "health needs no key";
}

TEST_F(Service, NewWeightsAsVllmTakesThem) {
  EXPECT_EQ(call("POST", "/pause?mode=wait")->status, 200);
  EXPECT_EQ(json("GET", "/is_paused")["is_paused"], true);
  const std::string reload = R"({"method": "reload_weights", "kwargs": {"weights_path": "good"}})";
  EXPECT_EQ(json("POST", "/collective_rpc", reload)["results"], Json::array({nullptr}));
  EXPECT_EQ(call("POST", "/update_weight_version", R"({"new_version": "x"})")->status, 400);
  EXPECT_EQ(call("POST", "/update_weight_version", R"({"new_version": "12"})")->status, 200);
  EXPECT_EQ(call("POST", "/reset_prefix_cache?reset_running_requests=true", "{}")->status, 200);
  EXPECT_EQ(call("POST", "/resume", "{}")->status, 200);
  EXPECT_EQ(json("GET", "/v1/models")["data"][0]["weight_version"], 12);
  EXPECT_EQ(call("POST", "/collective_rpc", R"({"method": "shell", "kwargs": {}})")->status, 400);
  EXPECT_EQ(call("POST", "/pause?mode=later")->status, 400);
  EXPECT_EQ(
      call("POST", "/collective_rpc", R"({"method": "reload_weights", "kwargs": {"weights_path": "bad"}})")->status,
      500);
}

TEST_F(Service, RefusalsHaveTheStatusOfTheApi) {
  EXPECT_EQ(call("GET", "/v1/models", "", "")->status, 401);
  EXPECT_EQ(call("GET", "/v1/models", "", "Bearer wrong")->status, 401);
  EXPECT_EQ(call("GET", "/v1/models", "", "Bearer k", true)->status, 403) << "a page in a browser";
  EXPECT_EQ(call("GET", "/nothing")->status, 404);
  EXPECT_EQ(call("DELETE", "/v1/models")->status, 405);
  EXPECT_EQ(call("POST", "/v1/completions", R"({"model": "other", "prompt": [2]})")->status, 404);
  EXPECT_EQ(call("POST", "/v1/completions", R"({"prompt": [2],)")->status, 400);
  EXPECT_EQ(call("POST", "/v1/completions", std::string(100'000, '['))->status, 400);
  EXPECT_EQ(call("POST", "/v1/completions", R"({"prompt": []})")->status, 400) << "the model's own refusal";
  EXPECT_EQ(call("POST", "/v1/completions", "7")->status, 400);
}

TEST_F(Service, DivergedWeightsHaveAnErrorOfTheirOwn) {
  model.diverges = true;
  const auto reply = call("POST", "/v1/completions", R"({"prompt": [2]})");
  EXPECT_EQ(reply->status, 500);
  EXPECT_THAT(reply->body, HasSubstr("NumericsError"));
}

}  // namespace
}  // namespace mortise::test
