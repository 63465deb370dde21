// --servers: the engine that a framework starts itself becomes the backend of its name on servers that the user starts.
#include "foundation/base/choice.h"
#include "import_support.h"

namespace mortise::test {
namespace {

using testing::Not;

const std::vector<std::string> kTwo = {"http://a:8000", "http://b:8000"};

constexpr std::string_view kVerl =
    "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.enforce_eager=False ";

ImportedConfig taken(const std::vector<std::string>& servers, std::string_view framework, const std::string& text) {
  Result<ImportedConfig> result = import_for(servers, framework, text, framework == "trl" ? "grpo.yaml" : "run.sh");
  if (result) return *std::move(result);
  ADD_FAILURE() << result.error().to_string();
  return {};
}

std::string refused(const std::vector<std::string>& servers, std::string_view framework, const std::string& text) {
  return error_of(import_for(servers, framework, text, framework == "trl" ? "grpo.yaml" : "run.sh"));
}

TEST(ImportServers, VerlsEngineBecomesTheBackendOfItsName) {
  const std::string vllm = std::string(kVerl) + "actor_rollout_ref.rollout.name=vllm ";
  const std::string toml = taken(kTwo, "verl", vllm).toml;
  const RunConfig config = config_of(toml);
  EXPECT_EQ(config.rollout.name, "vllm");
  EXPECT_EQ(config.rollout.params, Json({{"url", "http://a:8000, http://b:8000"}}));
  EXPECT_EQ(config.rollout.val_engine, ValEngine::kNative) << "nothing to validate with";
  EXPECT_THAT(toml, HasSubstr("VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --port PORT --tensor-parallel-size 2 "
                              "--gpu-memory-utilization 0.6\n"))
      << "enforce_eager is false: no word";
  EXPECT_THAT(toml, HasSubstr("the servers' command line has --tensor-parallel-size 2\n"));
  EXPECT_THAT(toml, Not(HasSubstr("samples in the trainer's process")));

  const std::string files = "data.train_files=a.parquet data.val_files=b.parquet ";
  const std::string more =
      "actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.enforce_eager=True "
      "actor_rollout_ref.rollout.expert_parallel_size=2 actor_rollout_ref.rollout.max_num_seqs=512 "
      "actor_rollout_ref.rollout.free_cache_engine=True ";
  const std::string sglang_toml = taken({"https://gpu1/v"}, "verl", std::string(kVerl) + files + more).toml;
  const RunConfig sglang = config_of(sglang_toml);
  EXPECT_EQ(sglang.rollout.name, "sglang");
  EXPECT_EQ(sglang.rollout.params, Json({{"url", "https://gpu1/v"}, {"slots", 512}}));
  EXPECT_EQ(sglang.rollout.val_engine, ValEngine::kRollout) << "verl validates with its engine";
  EXPECT_THAT(sglang_toml, HasSubstr("python -m sglang.launch_server --model-path MODEL --port PORT --tp-size 2 "
                                     "--ep-size 2 --mem-fraction-static 0.6 --max-running-requests 512 "
                                     "--disable-cuda-graph\n"));
  EXPECT_THAT(sglang_toml, HasSubstr("free_cache_engine = true (run.sh:1): the command lines of the servers decide\n"));
}

TEST(ImportServers, WithoutThemANoteSaysHowToGetThem) {
  const std::string toml = taken({}, "verl", std::string(kVerl) + "actor_rollout_ref.rollout.name=vllm").toml;
  EXPECT_EQ(config_of(toml).rollout.name, "native");
  EXPECT_FALSE(config_of(toml).rollout.enforce_eager);
  EXPECT_THAT(toml, HasSubstr("import with --servers http://HOST:PORT"));
  EXPECT_THAT(toml, Not(HasSubstr("vllm serve")));
  EXPECT_THAT(taken({}, "trl", "use_vllm: true").toml, HasSubstr("import with --servers http://HOST:PORT"));
}

TEST(ImportServers, WithoutThemTheTrainersEngineSamplesEagerlyIfTheFileSaysSo) {
  const std::string verl = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.enforce_eager=True";
  EXPECT_TRUE(config_of(taken({}, "verl", verl).toml).rollout.enforce_eager);
  const std::string swift =
      "--per_device_train_batch_size 8 --use_vllm true --vllm_mode colocate --vllm_enforce_eager ";
  EXPECT_TRUE(config_of(taken({}, "swift", swift + "true").toml).rollout.enforce_eager);
  EXPECT_FALSE(config_of(taken({}, "swift", swift + "false").toml).rollout.enforce_eager);
}

TEST(ImportServers, ColocatedEnginesOfTrlAndSwift) {
  const std::string colocated = "use_vllm: true\nvllm_mode: colocate\nvllm_gpu_memory_utilization: 0.3\n";
  const std::string toml = taken(kTwo, "trl", colocated + "vllm_tensor_parallel_size: 2\nvllm_dtype: $(date)\n").toml;
  const RunConfig config = config_of(toml);
  EXPECT_EQ(config.rollout.name, "vllm");
  EXPECT_EQ(config.rollout.params["url"], "http://a:8000, http://b:8000");
  EXPECT_TRUE(config.algorithm.rollout_correction.rollout_is) << "TRL corrects in both modes";
  EXPECT_THAT(toml, HasSubstr("vllm serve MODEL --port PORT --tensor-parallel-size 2 --gpu-memory-utilization 0.3\n"))
      << "a word that means something to a shell is left out";
  EXPECT_EQ(config_of(taken(kTwo, "trl", "use_vllm: true").toml).rollout.name, "vllm") << "colocate is the default";

  const std::string swift =
      "--per_device_train_batch_size 8 --use_vllm true --vllm_mode colocate --vllm_max_num_seqs 64 "
      "--vllm_enable_expert_parallel true";
  const std::string swift_toml = taken({"http://c:1"}, "swift", swift).toml;
  EXPECT_EQ(config_of(swift_toml).rollout.params, Json({{"slots", 64}, {"url", "http://c:1"}}));
  EXPECT_THAT(swift_toml, HasSubstr("--port PORT --enable-expert-parallel --max-num-seqs 64\n"));
}

TEST(ImportServers, ColocatedEnginesOnSeveralRanksBecomeRanksThatSampleTogether) {
  const std::string two = "use_vllm: true\nvllm_tensor_parallel_size: 2\n";
  EXPECT_EQ(imported("trl", two, "grpo.yaml", 4).rollout.tensor_model_parallel_size, 2) << "colocate is the default";
  EXPECT_THAT(imported_toml("trl", two, "grpo.yaml", 4), Not(HasSubstr("start a multiple")));
  EXPECT_EQ(imported("trl", two).rollout.tensor_model_parallel_size, 2);
  EXPECT_THAT(imported_toml("trl", two), HasSubstr("start a multiple of 2 ranks"));
  EXPECT_THAT(error_of(import_text("trl", two, "grpo.yaml", 3)),
              HasSubstr("3 processes cannot form groups of 2; choose a divisor of the number of processes"));
  EXPECT_THAT(error_of(import_text("trl", two, "grpo.yaml", 1)), HasSubstr("1 process cannot form groups of 2"));

  const auto none = [](const std::string& text, const std::string& why) {
    const std::string toml = imported_toml("trl", text + "\n", "grpo.yaml", 4);
    EXPECT_EQ(config_of(toml).rollout.tensor_model_parallel_size, 1);
    EXPECT_THAT(toml, HasSubstr(why));
  };
  none("vllm_tensor_parallel_size: 2", "only with use_vllm and vllm_mode colocate");
  none("use_vllm: true\nvllm_tensor_parallel_size: 1", "1: every rank samples rows of its own");
  none(two + "vllm_mode: server\nvllm_server_host: gpu1\n", "the command lines of the servers decide");

  const std::string swift = "--per_device_train_batch_size 8 --use_vllm true --vllm_tensor_parallel_size 4";
  EXPECT_EQ(imported("swift", swift, "run.sh", 8).rollout.tensor_model_parallel_size, 4);
  EXPECT_THAT(error_of(import_text("swift", swift, "run.sh", 6)), HasSubstr("6 processes cannot form groups of 4"));
  const std::string ahead = imported_toml("swift", swift + " --async_generate true", "run.sh", 8);
  EXPECT_EQ(config_of(ahead).rollout.tensor_model_parallel_size, 1);
  EXPECT_THAT(ahead, HasSubstr("ranks sample together only with trainer.mode"));
}

// An engine of the trainer's own that sleeps while it trains. Servers have their own settings.
TEST(ImportServers, AnEngineThatSleepsGivesItsMemoryBack) {
  const std::string verl_sleeps = std::string(kVerl) + "actor_rollout_ref.rollout.free_cache_engine=";
  EXPECT_TRUE(config_of(taken({}, "verl", verl_sleeps + "True").toml).rollout.sleep_while_training);
  EXPECT_FALSE(config_of(taken({}, "verl", verl_sleeps + "False").toml).rollout.sleep_while_training);
  EXPECT_FALSE(config_of(taken({}, "verl", std::string(kVerl)).toml).rollout.sleep_while_training) << "a default";
  EXPECT_TRUE(imported("trl", "use_vllm: true\nvllm_enable_sleep_mode: true\n").rollout.sleep_while_training);
  EXPECT_FALSE(imported("trl", "vllm_enable_sleep_mode: true\n").rollout.sleep_while_training) << "no engine sleeps";
  const std::string swift = "--per_device_train_batch_size 8 --use_vllm true --vllm_mode colocate --sleep_level ";
  EXPECT_TRUE(config_of(taken({}, "swift", swift + "1").toml).rollout.sleep_while_training);
  const std::string off = taken({}, "swift", swift + "0 --offload_optimizer true").toml;
  EXPECT_FALSE(config_of(off).rollout.sleep_while_training);
  EXPECT_EQ(config_of(off).actor.optim.offload, StateOffloading::kNone);
  EXPECT_THAT(off, HasSubstr("keys and values stay in memory while the run trains, so it would give no room"));
  const std::string both = taken({}, "swift", swift + "1 --offload_optimizer true").toml;
  EXPECT_EQ(config_of(both).actor.optim.offload, StateOffloading::kWhileSampling);
  const std::string ahead = taken({}, "swift", swift + "1 --offload_optimizer true --async_generate true").toml;
  EXPECT_FALSE(config_of(ahead).rollout.sleep_while_training);
  EXPECT_EQ(config_of(ahead).actor.optim.offload, StateOffloading::kNone);
  EXPECT_THAT(ahead, HasSubstr("sampling ahead runs next to the updates, which need the state"));
  EXPECT_THAT(ahead, HasSubstr("sampling ahead needs its keys and values while the run trains"));
}

TEST(ImportServers, TheyWinOverTheFilesAddresses) {
  const std::string server = "use_vllm: true\nvllm_mode: server\nvllm_server_host: gpu1\nvllm_server_timeout: 30\n";
  const std::string toml = taken({"http://c:1"}, "trl", server + "vllm_tensor_parallel_size: 2").toml;
  EXPECT_EQ(config_of(toml).rollout.params, Json({{"url", "http://c:1"}, {"start_limit", 30.0}}));
  EXPECT_THAT(toml, HasSubstr("vllm_server_host = \"gpu1\" (grpo.yaml:3:1): the addresses of --servers win"));
  EXPECT_THAT(toml, Not(HasSubstr("vllm serve"))) << "these servers have their own command lines, as in TRL";
}

TEST(ImportServers, WhatCannotBeIsRefused) {
  const std::string verl(kVerl), name = "actor_rollout_ref.rollout.name=";
  EXPECT_THAT(refused(kTwo, "verl", verl + name + "trtllm"), HasSubstr("but rollout.name is 'trtllm'"));
  EXPECT_THAT(refused(kTwo, "verl", verl), HasSubstr("does not say which"));
  EXPECT_THAT(refused(kTwo, "verl", "python3 -m verl.trainer.main_ppo " + verl + name + "$ENGINE"),
              HasSubstr("ENGINE"));
  EXPECT_THAT(refused(kTwo, "trl", "num_generations: 8"), HasSubstr("the file samples without vLLM"));
  EXPECT_THAT(refused({"gpu1:8000"}, "trl", "use_vllm: true"), HasSubstr("write it like http://127.0.0.1:8000"));
  EXPECT_THAT(refused({""}, "trl", "use_vllm: true"), HasSubstr("is not the address of a server"));
  EXPECT_THAT(refused({"http://a", "http://a"}, "trl", "use_vllm: true"), HasSubstr("named twice"));
}

}  // namespace
}  // namespace mortise::test
