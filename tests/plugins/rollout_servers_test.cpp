// The backends vllm, sglang and openai against a strict server that also misbehaves (tests/support/rollout_server.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plugins/rollout_servers_fixture.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(RolloutServers, AsksAndAnswersAsVllm) {
  RolloutClient client("vllm", {{"url", url("good/20")}});
  ASSERT_EQ(client.created(), 0) << client.error();
  ASSERT_EQ(client.send_weights(3), 0) << client.error();
  ASSERT_EQ(client.sample(4), 0) << client.error();
  ASSERT_EQ(client.sink.taken.size(), 8U);
  for (const auto& [key, sample] : client.sink.taken) {
    EXPECT_EQ(sample.version, 3);
    EXPECT_EQ(sample.reason, MORTISE_FINISH_LENGTH);
    EXPECT_EQ(sample.ids.size(), 3U);
    EXPECT_THAT(sample.log_prob, ElementsAre(-0.5F, -0.75F, -1.0F));
    EXPECT_THAT(sample.filtered, IsEmpty());
  }
  EXPECT_THAT(client.log(), IsEmpty()) << client.log().front();
  const json seen = log("good/20");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  std::vector<std::string> paths;
  for (const json& call : seen["calls"])
    if (call[0] != "/v1/completions") paths.push_back(call[0]);
  EXPECT_THAT(paths, ElementsAre("/pause?mode=wait", "/collective_rpc", "/update_weight_version",
                                 "/reset_prefix_cache?reset_running_requests=true", "/resume"));
  EXPECT_EQ(seen["loaded"], json({{"model-00001.safetensors", {{"model.a", "model.b"}, 1.5}}}));
  const json body = seen["calls"].back()[1];
  EXPECT_EQ(body["n"], 2);
  EXPECT_EQ(body["logprobs"], 0);
  EXPECT_EQ(body["stop_token_ids"], json({2}));
  EXPECT_EQ(body["prompt"].size(), 3U);
}

TEST_F(RolloutServers, SeedsOfGroupsAreFarApart) {
  RolloutClient client("vllm", {{"url", url("good/1")}});
  ASSERT_EQ(client.sample(8), 0) << client.error();
  std::set<int64_t> seeds;
  const json seen = log("good/1");
  for (const json& call : seen["calls"])
    if (call[1].contains("seed")) seeds.insert(call[1]["seed"].get<int64_t>());
  ASSERT_EQ(seeds.size(), 8U);
  for (auto it = std::next(seeds.begin()); it != seeds.end(); ++it) EXPECT_GT(*it - *std::prev(it), 1'000'000);
}

TEST_F(RolloutServers, EveryFailureThatMayPassIsTriedAgainAndCountsOnce) {
  for (const std::string mode :
       {"errors/3", "half/3", "garbage/3", "count/3", "twice/3", "long/3", "nan/3", "drop/3"}) {
    SCOPED_TRACE(mode);
    RolloutClient client("vllm", {{"url", url(mode)}});
    ASSERT_EQ(client.created(), 0) << client.error();
    ASSERT_EQ(client.send_weights(1), 0) << client.error();
    ASSERT_EQ(client.sample(4), 0) << client.error();
    EXPECT_EQ(client.sink.taken.size(), 8U);
    EXPECT_EQ(client.sink.num_twice, 0);
    for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 1);
    EXPECT_THAT(log(mode)["faults"], IsEmpty());
  }
}

TEST_F(RolloutServers, AServerThatHangsIsGivenUp) {
  RolloutClient client("vllm", {{"url", url("hang/1")}, {"request_limit", "2"}});
  ASSERT_EQ(client.sample(1), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 2U);
}

// A probe that hangs is no sign of life: each one waits for minutes.
TEST_F(RolloutServers, ARunEndsWhenAllServersHang) {
  RolloutClient client("vllm", {{"url", url("stuck/1")}, {"request_limit", "3"}, {"give_up", "0.2"}});
  ASSERT_EQ(client.sample(1), 0) << client.error();
  EXPECT_EQ(client.sample(1), MORTISE_UNAVAILABLE);
  EXPECT_THAT(client.error(), HasSubstr("all rollout servers are out of use"));
  EXPECT_THAT(client.error(), HasSubstr("timed out"));
}

TEST_F(RolloutServers, ALongPromptGoesToTheServerThatTakesIt) {
  RolloutClient client("vllm", {{"url", url("short/1") + "," + url("good/41")}});
  ASSERT_EQ(client.created(), 0) << client.error();
  client.sampling.max_new_tokens = 6;
  ASSERT_EQ(client.sample(3), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 6U);
  EXPECT_EQ(count_of(log("short/1"), "/v1/completions"), 1) << "the probe alone";
  client.sampling.max_new_tokens = 62;
  EXPECT_EQ(client.submit(9, 1), MORTISE_INVALID_ARGUMENT) << "none takes it";
  RolloutClient alone("vllm", {{"url", url("short/2")}});
  alone.sampling.max_new_tokens = 6;
  EXPECT_EQ(alone.submit(9, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(alone.error(),
              HasSubstr("cannot complete a prompt of 3 tokens with 6 new ones: its context is 8 tokens"));
}

TEST_F(RolloutServers, FailuresThatDoNotPassEndTheRunAndSayWhy) {
  RolloutClient refused("vllm", {{"url", url("refuse")}});
  EXPECT_EQ(refused.sample(1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(refused.error(), HasSubstr("the prompt is too long"));
  RolloutClient diverged("vllm", {{"url", url("diverged")}});
  EXPECT_EQ(diverged.sample(1), MORTISE_DATA_LOSS);
  RolloutClient broken("vllm", {{"url", url("errors/1000")}, {"retries", "2"}});
  EXPECT_EQ(broken.sample(1), MORTISE_UNAVAILABLE);
  EXPECT_THAT(broken.error(), HasSubstr("failed 3 times"));
  EXPECT_THAT(broken.error(), HasSubstr("EngineCore encountered an issue"));
}

TEST_F(RolloutServers, TheProbeTellsAtOnceWhatAServerCannotDo) {
  RolloutClient blind("vllm", {{"url", url("no_ids")}});
  EXPECT_EQ(blind.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(blind.error(), HasSubstr("gives no token_ids"));
  EXPECT_THAT(blind.error(), testing::Not(HasSubstr("Start the servers"))) << "it is running";
  RolloutClient locked("vllm", {{"url", url("key")}});
  EXPECT_EQ(locked.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(locked.error(), AllOf(HasSubstr("status 401"), testing::EndsWith("server's key in `api_key_env`")));
  RolloutClient moved("vllm", {{"url", url("moved")}});
  EXPECT_THAT(moved.error(), HasSubstr("status 307, it redirects to http://gpu1:8000/v1/models; write the server"));
  ::setenv("MORTISE_TEST_KEY", "sesame", 1);
  RolloutClient opened("vllm", {{"url", url("key")}, {"api_key_env", "MORTISE_TEST_KEY"}});
  EXPECT_EQ(opened.sample(1), 0) << opened.error();
  RolloutClient none("vllm", {{"url", "http://127.0.0.1:1"}, {"start_limit", "0.2"}});
  EXPECT_EQ(none.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(none.error(), HasSubstr("no rollout server became ready: http://127.0.0.1:1"));
  RolloutClient mistyped("vllm", {{"url", "127.0.0.1:8000"}});
  EXPECT_EQ(mistyped.created(), MORTISE_INVALID_ARGUMENT);
}

TEST_F(RolloutServers, LogProbsAreSortedIntoWhatTheyAre) {
  const auto sampled = [&](const std::string& mode, double temperature, int64_t top_k) {
    RolloutClient client("vllm", {{"url", url(mode)}});
    client.sampling.temperature = temperature;
    client.sampling.top_k = top_k;
    EXPECT_EQ(client.sample(1), 0) << client.error();
    return client.sink.taken.begin()->second;
  };
  ServedSample sample = sampled("good", 1, 5);
  EXPECT_EQ(sample.log_prob.front(), -0.5F) << "raw: before the filters";
  EXPECT_THAT(sample.filtered, IsEmpty());
  sample = sampled("good", 2, 0);
  EXPECT_THAT(sample.log_prob, IsEmpty()) << "raw at another temperature is of no use";
  EXPECT_THAT(sample.filtered, IsEmpty());
  sample = sampled("processed", 2, 0);
  EXPECT_EQ(sample.log_prob.front(), -0.25F) << "processed: at temperature";
  sample = sampled("processed", 1, 5);
  EXPECT_THAT(sample.log_prob, IsEmpty());
  EXPECT_EQ(sample.filtered.front(), -0.5F) << "processed: after the filters";
  const auto greedy = [&](double presence_penalty) {
    RolloutClient client("vllm", {{"url", url("processed")}});
    client.sampling.temperature = 0;
    client.sampling.top_k = 5;
    client.sampling.presence_penalty = presence_penalty;
    EXPECT_EQ(client.submit(0, 1), 0) << client.error();
    EXPECT_EQ(client.collect(), 0) << client.error();
    return client.sink.taken.begin()->second;
  };
  EXPECT_EQ(greedy(0).log_prob.front(), -0.5F) << "greedy: no filter counts";
  EXPECT_THAT(greedy(0.5).log_prob, IsEmpty()) << "greedy: penalties count";
  // SGLang's have penalties in them, whichever kind they are.
  const auto from_sglang = [&](const std::string& mode, double presence_penalty, int64_t min_new_tokens) {
    RolloutClient client("sglang", {{"url", url(mode)}});
    client.sampling.presence_penalty = presence_penalty;
    client.sampling.min_new_tokens = min_new_tokens;
    EXPECT_EQ(client.sample(1), 0) << client.error();
    return client.sink.taken.begin()->second;
  };
  for (const std::string mode : {"good", "raw"}) {
    SCOPED_TRACE(mode);
    EXPECT_EQ(from_sglang(mode, 0, 0).log_prob.front(), -0.5F);
    EXPECT_THAT(from_sglang(mode, 0.5, 0).log_prob, IsEmpty());
    EXPECT_THAT(from_sglang(mode, 0, 2).log_prob, IsEmpty()) << "end tokens are forbidden";
  }
}

TEST_F(RolloutServers, OptionsAreSentOrRefusedByName) {
  RolloutClient client("vllm", {{"url", url("good/2")}});
  client.sampling.ignore_eos = 1;
  client.sampling.min_p = 0.25;
  client.sampling.presence_penalty = 0.5;
  const mortise_text stop{"END", 3};
  client.sampling.num_stop_strings = 1;
  client.sampling.stop_strings = &stop;
  ASSERT_EQ(client.sample(1), 0) << client.error();
  const json body = log("good/2")["calls"].back()[1];
  EXPECT_EQ(body["min_tokens"], 3) << "end ids are forbidden up to the last token";
  EXPECT_EQ(body["min_p"], 0.25);
  EXPECT_EQ(body["presence_penalty"], 0.5);
  EXPECT_EQ(body["stop"], json({"END"}));
  client.sampling.typical_p = 0.5;
  EXPECT_EQ(client.submit(9, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(client.error(), HasSubstr("rollout.typical_p"));
  client.sampling.typical_p = 1;
  client.sampling.max_new_tokens = 62;
  EXPECT_EQ(client.submit(9, 1), MORTISE_INVALID_ARGUMENT) << "a completion that vLLM would cut";
  EXPECT_THAT(client.error(), HasSubstr("3 tokens with 62 new ones: its context is 64 tokens"));
  client.sampling.max_new_tokens = 61;
  EXPECT_EQ(client.submit(9, 1), 0) << client.error();
  for (const double temperature : {2.5, 0.005}) {  // vLLM refuses the first, and samples at 0.01 for the second
    client.sampling.temperature = temperature;
    EXPECT_EQ(client.submit(9, 1), MORTISE_INVALID_ARGUMENT) << temperature;
    EXPECT_THAT(client.error(), HasSubstr("rollout.temperature"));
  }
  for (const double temperature : {2.0, 0.01, 0.0}) {
    client.sampling.temperature = temperature;
    EXPECT_EQ(client.submit(9, 1), 0) << client.error();
  }
  client.sampling.temperature = 1;
  const int64_t length = 1, id = 7;
  client.sampling.num_bad_words = 1;
  client.sampling.bad_word_lengths = &length;
  client.sampling.bad_word_ids = &id;
  EXPECT_EQ(client.submit(9, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(client.error(), HasSubstr("rollout.bad_words"));
}

TEST_F(RolloutServers, AServerThatLostItsWeightsGetsThemAgain) {
  for (const std::string mode : {"mortise", "restart"}) {
    SCOPED_TRACE(mode);
    RolloutClient client("vllm", {{"url", url(mode)}, {"slots", "2"}});
    ASSERT_EQ(client.send_weights(5), 0) << client.error();
    ASSERT_EQ(client.sample(6), 0) << client.error();
    EXPECT_EQ(client.sink.taken.size(), 12U);
    EXPECT_EQ(client.sink.num_twice, 0);
    for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 5);
    EXPECT_EQ(count_of(log(mode), "/collective_rpc"), 2);
    ASSERT_THAT(client.log(), testing::Not(IsEmpty()));
    EXPECT_THAT(client.log().front(), HasSubstr("out of use"));
  }
}

TEST_F(RolloutServers, NothingIsSampledAfterAFailedLoad) {
  RolloutClient client("vllm", {{"url", url("reload/2")}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();
  const json seen = log("reload/2");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  EXPECT_EQ(count_of(seen, "/collective_rpc"), 3);
  EXPECT_EQ(count_of(seen, "/resume"), 1) << "a server with half its weights must not continue";
}

TEST_F(RolloutServers, NothingIsSampledWithAPrefixCacheOfOldWeights) {
  RolloutClient client("vllm", {{"url", url("held/2")}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  ASSERT_EQ(client.sample(1), 0) << client.error();
  const json seen = log("held/2");
  EXPECT_EQ(count_of(seen, "/reset_prefix_cache?reset_running_requests=true"), 3);
  EXPECT_EQ(count_of(seen, "/resume"), 1);
  EXPECT_THAT(client.log().front(), HasSubstr("the server refused the call: {\"success\": false}"));
  EXPECT_THAT(seen["faults"], IsEmpty()) << "a paused server answers no probe that samples: " << seen["faults"];
}

// The run before this one ended after a load that failed. Its server is paused, with a part of the weights.
TEST_F(RolloutServers, APausedServerGetsWeightsBeforeItSamples) {
  {
    RolloutClient before("vllm",
                         {{"url", url("reload/3")}, {"backoff", "30"}, {"update_limit", "10"}, {"give_up", "0.1"}});
    ASSERT_EQ(before.created(), 0) << before.error();
    EXPECT_EQ(before.send_weights(1), MORTISE_UNAVAILABLE);
    EXPECT_THAT(before.error(), HasSubstr("/collective_rpc: status 500"));
  }
  RolloutClient without("vllm", {{"url", url("reload/3")}, {"give_up", "0.2"}});
  EXPECT_EQ(without.sample(1), MORTISE_UNAVAILABLE) << "it has no weights to send";
  EXPECT_THAT(without.error(), HasSubstr("it is paused"));
  RolloutClient adapter("vllm", {{"url", url("reload/3")}});
  EXPECT_EQ(adapter.send_adapter(1), MORTISE_UNAVAILABLE) << "its base may be half another one";
  EXPECT_THAT(adapter.error(), HasSubstr("it is paused"));
  RolloutClient client("vllm", {{"url", url("reload/3")}});
  ASSERT_EQ(client.created(), 0) << client.error();
  ASSERT_EQ(client.send_weights(2), 0) << client.error();
  ASSERT_EQ(client.sample(1), 0) << client.error();
  for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 2);
  const json seen = log("reload/3");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  EXPECT_EQ(count_of(seen, "/collective_rpc"), 4);
  EXPECT_EQ(count_of(seen, "/resume"), 1);
}

// The first error of an outage is its cause.
TEST_F(RolloutServers, LoadsThatFailForEverEndTheRunWithTheFirstError) {
  RolloutClient client("vllm", {{"url", url("lost/1")}, {"slots", "2"}, {"give_up", "2"}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  EXPECT_EQ(client.sample(6), MORTISE_UNAVAILABLE);
  EXPECT_THAT(client.error(), HasSubstr("all rollout servers are out of use"));
  EXPECT_THAT(client.error(), HasSubstr("it was started again, and has lost its weights; later: /collective_rpc: "));
}

TEST_F(RolloutServers, RequestsInFlightAtAnUpdateKeepTheirVersion) {
  RolloutClient client("vllm", {{"url", url("good/35")}, {"slots", "2"}});
  for (const int64_t version : {1, 2}) {  // the same version again is another update
    ASSERT_EQ(client.send_weights(1), 0) << client.error();
    client.sink.taken.clear();
    for (int64_t id = 0; id < 3; ++id) ASSERT_EQ(client.submit(id, 2), 0);
    ASSERT_EQ(client.poll_once(), 0) << client.error();  // sends the first
    ASSERT_EQ(client.send_weights(version), 0) << client.error();
    ASSERT_EQ(client.collect(), 0) << client.error();
    ASSERT_EQ(client.sink.taken.size(), 6U);
    for (const auto& [key, sample] : client.sink.taken)
      EXPECT_EQ(sample.version, key.first == 0 ? 1 : version) << "prompt " << key.first;
  }
  const json seen = log("good/35");
  EXPECT_EQ(count_of(seen, "/collective_rpc"), 4);
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
}

// A server that came back loads version 1 while the others get version 2: it must not count as one with version 2.
TEST_F(RolloutServers, AServerThatIsStillLoadingGetsTheNewerWeightsToo) {
  RolloutClient client("vllm", {{"url", url("late/40") + "," + url("good/40")}, {"breaker_failures", "1"}});
  ASSERT_EQ(client.send_weights(1, 1.5F), 0) << client.error();
  for (int tries = 0; tries < 200 && count_of(log("late/40"), "/collective_rpc") < 2; ++tries)
    ASSERT_EQ(client.sample(1), 0) << client.error();
  ASSERT_EQ(client.send_weights(2, 2.5F), 0) << client.error();
  const json seen = log("late/40");
  EXPECT_EQ(count_of(seen, "/collective_rpc"), 3);
  EXPECT_EQ(seen["loaded"]["model-00001.safetensors"][1], 2.5);
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
}

TEST_F(RolloutServers, AServerWhoseRestartsAreNotNoticedIsNamedOnce) {
  RolloutClient client("vllm", {{"url", url("no_start")}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  ASSERT_EQ(client.sample(1), 0) << client.error();
  ASSERT_EQ(client.log().size(), 1U);
  EXPECT_THAT(client.log().front(), HasSubstr("nobody notices that its weights are old"));
}

TEST_F(RolloutServers, OldServersWithoutVersionsWork) {
  RolloutClient client("vllm", {{"url", url("no_version")}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  EXPECT_EQ(client.sample(1), 0) << client.error();
}

TEST_F(RolloutServers, SeveralServersShareTheWorkAndReplaceEachOther) {
  RolloutClient client("vllm", {{"url", url("good/7") + ", " + url("good/8") + "," + url("errors/1000")},
                                {"slots", "4"},
                                {"breaker_failures", "1"},
                                {"backoff", "0.05"}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  ASSERT_EQ(client.sample(12), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 24U);
  EXPECT_EQ(client.sink.num_twice, 0);
  EXPECT_GT(count_of(log("good/7"), "/v1/completions"), 2);
  EXPECT_GT(count_of(log("good/8"), "/v1/completions"), 2);
}

TEST_F(RolloutServers, AnAbortGivesEverySampleBackOnce) {
  RolloutClient client("vllm", {{"url", url("hang/100")}});
  ASSERT_EQ(client.submit(0, 2), 0);
  ASSERT_EQ(client.submit(1, 2), 0);
  client.abort();
  ASSERT_EQ(client.collect(), 0) << client.error();
  ASSERT_EQ(client.sink.taken.size(), 4U);
  for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.reason, MORTISE_FINISH_ABORT);
}

TEST_F(RolloutServers, WeightsAreRoundedWhenAsked) {
  RolloutClient client("vllm", {{"url", url("good/9")}, {"weights_dtype", "bfloat16"}});
  ASSERT_EQ(client.send_weights(1), 0) << client.error();
  ASSERT_EQ(client.send_weights(2), 0) << client.error();
  const json seen = log("good/9");
  EXPECT_EQ(seen["loaded"], json({{"model-00001.safetensors", {{"model.a", "model.b"}, nullptr}}}));
  EXPECT_EQ(count_of(seen, "/collective_rpc"), 2);
}

TEST_F(RolloutServers, SpeaksToSglang) {
  RolloutClient client("sglang", {{"url", url("good")}});
  ASSERT_EQ(client.created(), 0) << client.error();
  client.sampling.temperature = 2;
  ASSERT_EQ(client.send_weights(4), 0) << client.error();
  ASSERT_EQ(client.sample(3), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 6U);
  for (const auto& [key, sample] : client.sink.taken) {
    EXPECT_EQ(sample.version, 4);
    EXPECT_THAT(sample.log_prob, ElementsAre(-0.25F, -0.375F, -0.5F)) << "at temperature, as SGLang gives them";
  }
  RolloutClient raw("sglang", {{"url", url("raw")}});
  raw.sampling.temperature = 2;
  ASSERT_EQ(raw.sample(1), 0) << raw.error();
  EXPECT_THAT(raw.sink.taken.begin()->second.log_prob, IsEmpty());
  RolloutClient failing("sglang", {{"url", url("reload/1")}});
  ASSERT_EQ(failing.send_weights(1), 0) << failing.error();
  EXPECT_EQ(count_of(log("reload/1"), "/update_weights_from_disk"), 2);
}

// The adapter of each version has a name of its own, which the completions ask for; the one before is unloaded.
TEST_F(RolloutServers, AdaptersAreLoadedNextToTheBase) {
  for (const auto& [backend, mode, load, field] :
       {std::tuple("vllm", "good/30", "/v1/load_lora_adapter", "model"),
        std::tuple("sglang", "good/31", "/load_lora_adapter", "lora_path")}) {
    SCOPED_TRACE(backend);
    RolloutClient client(backend, {{"url", url(mode)}});
    for (const int64_t version : {3, 4}) {
      ASSERT_EQ(client.send_adapter(version), 0) << client.error();
      ASSERT_EQ(client.sample(2), 0) << client.error();
      for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, version);
    }
    const json seen = log(mode);
    EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
    EXPECT_EQ(seen["loaded"]["files"], json({"adapter_config.json", "adapter_model.safetensors"}));
    EXPECT_EQ(seen["loaded"]["adapter_model.safetensors"][0].size(), 4U);
    const json& config = seen["loaded"]["config"];
    EXPECT_EQ(config["r"], 2);
    EXPECT_EQ(config["lora_alpha"], 2) << "B has the scale already";
    EXPECT_EQ(config["target_modules"], json({"q_proj", "v_proj"}));
    EXPECT_EQ(seen["adapters"].size(), 1U) << "the old adapter would stay for ever";
    EXPECT_EQ(count_of(seen, load), 2);
    EXPECT_EQ(seen["calls"].back()[1][field], seen["adapters"][0]);
  }
}

TEST_F(RolloutServers, AServerThatLostItsAdapterGetsItAgain) {
  RolloutClient client("vllm", {{"url", url("forget")}, {"slots", "2"}});
  ASSERT_EQ(client.send_adapter(5), 0) << client.error();
  ASSERT_EQ(client.sample(6), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 12U);
  EXPECT_EQ(client.sink.num_twice, 0);
  EXPECT_EQ(count_of(log("forget"), "/v1/load_lora_adapter"), 2);
  ASSERT_THAT(client.log(), testing::Not(IsEmpty()));
  EXPECT_THAT(client.log().front(), HasSubstr("it has lost the adapter"));
}

// It takes the new adapter, and refuses to unload the one that it has lost.
TEST_F(RolloutServers, AServerThatWasStartedAgainBetweenTwoAdaptersStaysInUse) {
  for (const std::string backend : {"vllm", "sglang"}) {
    SCOPED_TRACE(backend);
    RolloutClient client(backend, {{"url", url(backend == "vllm" ? "reborn/1" : "reborn/2")}});
    for (const int64_t version : {1, 2}) ASSERT_EQ(client.send_adapter(version), 0) << client.error();
    ASSERT_EQ(client.sample(1), 0) << client.error();
    EXPECT_THAT(client.log(), IsEmpty());
  }
}

TEST_F(RolloutServers, AServerThatWasOutOfUseKeepsNoOldAdapter) {
  RolloutClient client("vllm", {{"url", url("half/1")}, {"breaker_failures", "1"}});
  ASSERT_EQ(client.send_adapter(1), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();
  const json seen = log("half/1");
  EXPECT_EQ(count_of(seen, "/v1/load_lora_adapter"), 2);
  EXPECT_EQ(seen["adapters"].size(), 1U) << "the first one would stay for ever";
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
}

TEST_F(RolloutServers, AnAdapterNeedsTheBaseThatTheServerStartedWith) {
  for (const auto& [backend, mode] : {std::pair("vllm", "good/34"), std::pair("sglang", "good/36")}) {
    SCOPED_TRACE(backend);
    RolloutClient whole(backend, {{"url", url(mode)}});
    ASSERT_EQ(whole.send_weights(1), 0) << whole.error();
    RolloutClient client(backend, {{"url", url(mode)}});
    EXPECT_EQ(client.send_adapter(1), MORTISE_UNAVAILABLE);
    EXPECT_THAT(client.error(), testing::ContainsRegex("it no longer has .* rollout.send_adapter to false$"));
  }
}

TEST_F(RolloutServers, AdaptersThatServersDoNotLoadAreRefused) {
  RolloutClient uneven("vllm", {{"url", url("good/32")}});
  EXPECT_EQ(uneven.send_adapter(1, {2, 4}), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(uneven.error(), HasSubstr("have the same rank"));
  for (const auto& [backend, mode] : {std::pair("openai", "good/33"), std::pair("vllm", "mortise/1")}) {
    RolloutClient other(backend, {{"url", url(mode)}});
    EXPECT_EQ(other.send_adapter(1), MORTISE_UNIMPLEMENTED) << backend;
    EXPECT_THAT(other.error(), HasSubstr("no LoRA adapters"));
  }
  RolloutClient old("vllm", {{"url", url("no_adapters")}});
  EXPECT_EQ(old.send_adapter(1), MORTISE_UNAVAILABLE) << "it would wait for ever";
  EXPECT_THAT(old.error(), HasSubstr("/v1/load_lora_adapter: "));
}

// Both runs call their versions 0, 1, 2 ...; the mark before the number tells them apart.
TEST_F(RolloutServers, WeightsOfAnotherRunEndThisOne) {
  for (const auto& [backend, mode] : {std::pair("vllm", "taken/4"), std::pair("sglang", "taken/5")}) {
    SCOPED_TRACE(backend);
    RolloutClient client(backend, {{"url", url(mode)}});
    ASSERT_EQ(client.send_weights(5), 0) << client.error();
    ASSERT_EQ(client.sample(2), 0) << client.error();
    for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 5);
    EXPECT_EQ(client.sample(6), MORTISE_FAILED_PRECONDITION);
    EXPECT_THAT(client.error(),
                HasSubstr(url(mode) + " has the weights of another run (version 5 of run 777777; this is"));
    EXPECT_THAT(client.error(), HasSubstr("Give each run servers of its own"));
  }
}

// A program that gave no marks called its version 5 too.
TEST_F(RolloutServers, WeightsWithoutAMarkEndARunThatHasOne) {
  RolloutClient client("vllm", {{"url", url("plain/2")}});
  ASSERT_EQ(client.send_weights(5), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();
  EXPECT_EQ(client.sample(2), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(client.error(), HasSubstr("has the weights of another run (version 5 of a run without a mark; this is"));
}

// The adapter stays loaded, but the base under it is another one.
TEST_F(RolloutServers, WholeWeightsUnderAnAdapterEndItsRun) {
  for (const auto& [backend, mode] : {std::pair("vllm", "taken/6"), std::pair("sglang", "taken/7")}) {
    SCOPED_TRACE(backend);
    RolloutClient client(backend, {{"url", url(mode)}});
    ASSERT_EQ(client.send_adapter(5), 0) << client.error();
    ASSERT_EQ(client.sample(2), 0) << client.error();
    EXPECT_EQ(client.sample(12), MORTISE_FAILED_PRECONDITION);
    EXPECT_THAT(client.error(), HasSubstr("no longer has the base of this run's adapter: run 777777 has loaded whole "
                                          "weights (version 5)"));
  }
}

// The second answer comes after the question and before its reply, which says nothing about it.
TEST_F(RolloutServers, AnAnswerAfterTheQuestionNeedsAnotherOne) {
  RolloutClient client("vllm", {{"url", url("overtaken/2")}});
  ASSERT_EQ(client.send_weights(5), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();  // answers over new connections wait for another question first
  EXPECT_EQ(client.sample(2), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(client.error(), HasSubstr("has the weights of another run"));
}

// A proxy that fails now and then costs no work.
TEST_F(RolloutServers, TheVersionIsAskedForAgain) {
  RolloutClient client("vllm", {{"url", url("busy/2")}});
  ASSERT_EQ(client.send_weights(5), 0) << client.error();
  ASSERT_EQ(client.sample(3), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 6U);
  EXPECT_EQ(count_of(log("busy/2"), "/v1/completions"), 3 + 1) << "a probe, and none twice";
  EXPECT_THAT(client.log(), IsEmpty());
}

// Neither its answers nor its start time say so.
TEST_F(RolloutServers, AServerThatLostItsWeightsUnnoticedGetsThemAgain) {
  RolloutClient client("vllm", {{"url", url("blank")}, {"slots", "2"}});
  ASSERT_EQ(client.send_weights(5), 0) << client.error();
  ASSERT_EQ(client.sample(6), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 12U);
  EXPECT_EQ(client.sink.num_twice, 0);
  EXPECT_EQ(count_of(log("blank"), "/collective_rpc"), 2);
  ASSERT_THAT(client.log(), testing::Not(IsEmpty()));
  EXPECT_THAT(client.log().front(), HasSubstr("it has weights without a version, but was given version 5"));
}

TEST_F(RolloutServers, AnyServerOfTheInterfaceWithItsOwnWeightsOrAReload) {
  RolloutClient own("openai", {{"url", url("good/3")}});
  ASSERT_EQ(own.send_weights(7), 0) << own.error();
  ASSERT_EQ(own.sample(1), 0) << own.error();
  EXPECT_EQ(own.sink.taken.begin()->second.version, 0) << "its weights never change";
  own.sampling.top_k = 5;
  EXPECT_EQ(own.submit(9, 1), MORTISE_INVALID_ARGUMENT);
  RolloutClient told("openai", {{"url", url("good/4")}, {"reload_path", "/reload"}});
  ASSERT_EQ(told.send_weights(7), 0) << told.error();
  ASSERT_EQ(told.sample(1), 0) << told.error();
  EXPECT_EQ(told.sink.taken.begin()->second.version, 7);
  const json body = log("good/4")["calls"][1][1];
  EXPECT_EQ(body["weight_version"], 7);
  EXPECT_THAT(body["weight_name"].get<std::string>(), testing::EndsWith("000000007"));
}

// Both runs call it version 7.
TEST_F(RolloutServers, AServerThatGivesBackNamesTellsRunsApart) {
  RolloutClient client("openai", {{"url", url("named/2")}, {"reload_path", "/reload"}});
  ASSERT_EQ(client.send_weights(7), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();
  for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 7);
  EXPECT_EQ(client.sample(1), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(client.error(), HasSubstr("has the weights of another run (version 7 of run 777777; this is"));
}

}  // namespace
}  // namespace mortise::test
