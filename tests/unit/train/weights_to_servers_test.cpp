// Weights over the network, from the pack rollout_servers through the engine's links to processes that take them with
// torch.distributed's own stores and groups (tests/support/rollout_transfers.py). Gloo stands in for NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <thread>
#include <tuple>

#include "dist/weights/weight_link.h"
#include "e2e/python_service.h"
#include "plugins/rollout_client.h"
#include "support/http_get.h"
#include "train/sampling/weight_extension.h"

namespace mortise::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The engine's table, but "nccl_id" is Gloo, and its unique id names the store: "address:port", zeros, and three bytes that
// no text has.
struct GlooAsNccl {
  void* group = nullptr;
  std::string id;
  std::unique_ptr<TempDir> shared;  // cuda_ipc: files in the place of the GPU's memory
};

const mortise_weight_group_vtable& engine() { return *weight_group_extension(); }
GlooAsNccl& stand_in(void* group) { return *static_cast<GlooAsNccl*>(group); }

int32_t open_stand_in(const mortise_host* host, mortise_call* call, const mortise_weight_group_options* options,
                      void** group) noexcept {
  mortise_weight_group_options changed = *options;
  const bool is_nccl = str(options->carrier) == "nccl_id";
  if (is_nccl) {
    changed.carrier = {"gloo", 4};
    changed.prefix = {"nccl_by_gloo", 12};
  }
  auto made = std::make_unique<GlooAsNccl>();
  if (str(options->carrier) == "cuda_ipc") {
    made->shared = std::make_unique<TempDir>();
    *group = made.release();
    return 0;
  }
  const int32_t status = engine().open(host, call, &changed, &made->group);
  if (status != 0) return status;
  if (is_nccl) {
    made->id = str(options->address) + ":" + std::to_string(engine().port(made->group));
    made->id.resize(125, '\0');
    made->id += "\xff";
    made->id += '\0';
    made->id += "\x7f";
  }
  *group = made.release();
  return 0;
}

int32_t share_stand_in(void* group, mortise_call*, const mortise_weight_send* what,
                       const mortise_shared_sink* sink) noexcept {
  for (uint64_t i = 0; i < what->num_pieces; ++i) {
    const std::string path = (stand_in(group).shared->path() / std::to_string(i)).string();
    std::ofstream(path, std::ios::binary)
        .write(static_cast<const char*>(what->pieces[i].data), std::streamsize(what->pieces[i].num_bytes));
    const std::string uuid = "0123-uuid", counter = "/counter", event("e\0\xff", 3);
    const mortise_shared_piece piece{
        sizeof(mortise_shared_piece), 1,   {uuid.data(), uuid.size()},       3, {path.data(), path.size()},
        what->pieces[i].num_bytes,    512, {counter.data(), counter.size()}, 7, {event.data(), event.size()}};
    sink->piece(sink->context, &piece);
  }
  what->release(what->context);
  return 0;
}

const mortise_weight_group_vtable& stand_in_table() {
  static const mortise_weight_group_vtable table = {
      sizeof(mortise_weight_group_vtable),
      0,
      open_stand_in,
      [](void* group) noexcept { return stand_in(group).shared ? int64_t{0} : engine().port(stand_in(group).group); },
      [](void* group) noexcept {
        return mortise_bytes{stand_in(group).id.data(), stand_in(group).id.size()};
      },
      [](void* group, mortise_call* call, mortise_text key, mortise_bytes value) noexcept {
        return engine().set(stand_in(group).group, call, key, value);
      },
      [](void* group, mortise_call* call) noexcept { return engine().join(stand_in(group).group, call); },
      [](void* group, mortise_call* call, const mortise_weight_send* what) noexcept {
        return engine().send(stand_in(group).group, call, what);
      },
      [](void* group, int32_t* is_busy, mortise_text* failure) noexcept {
        engine().state(stand_in(group).group, is_busy, failure);
      },
      share_stand_in,
      [](void* group) noexcept {
        if (!stand_in(group).shared) engine().close(stand_in(group).group);
        delete &stand_in(group);
      }};
  return table;
}

class WeightsToServers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
    if (python == nullptr) return;
    extensions()[MORTISE_EXT_WEIGHT_GROUP] = &stand_in_table();
    dir_ = new TempDir;
    service_ = new PythonService(dir_->path(), "rollout_server.py", python);
  }
  static void TearDownTestSuite() {
    delete service_;
    delete dir_;
    extensions().clear();
  }
  void SetUp() override {
    if (service_ == nullptr)
      GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: no torch.distributed took weights over the network";
    ASSERT_TRUE(service_->started());
  }
  static std::string url(const std::string& mode) { return service_->url("/" + mode); }
  static json log(const std::string& mode) {
    return json::parse(http_get(service_->port(), "/" + mode + "/log").body, nullptr, false);
  }
  static std::vector<std::string> control_paths(const json& log) {
    std::vector<std::string> paths;
    for (const json& call : log["calls"])
      if (call[0] != "/v1/completions" && call[0] != "/generate") paths.push_back(call[0]);
    return paths;
  }

  static inline TempDir* dir_ = nullptr;
  static inline PythonService* service_ = nullptr;
};

const json kSixOnes = {1.5, 1.5, 1.5, 1.5, 1.5, 1.5};

// Both ways in which vLLM's workers learn NCCL's unique id.
TEST_F(WeightsToServers, VllmTakesThemInTheOrderOfItsCalls) {
  for (const std::string mode : {"net/27", "net/29", "net/32"}) {
    SCOPED_TRACE(mode);
    RolloutClient client("vllm", {{"url", url(mode)}, {"weight_transfer", "nccl"}, {"weights_dtype", "bfloat16"}});
    ASSERT_EQ(client.created(), 0) << client.error();
    ASSERT_EQ(client.send_weights(3), 0) << client.error();
    const json first = log(mode);
    EXPECT_EQ(first["loaded"],
              json({{"model.a", {"bfloat16", {2, 3}, kSixOnes}}, {"model.b", {"bfloat16", {2, 3}, kSixOnes}}}));
    ASSERT_EQ(client.send_weights(4, 2.5F), 0) << client.error();
    ASSERT_EQ(client.sample(2), 0) << client.error();
    for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 4);
    EXPECT_THAT(client.log(), IsEmpty()) << client.log().front();
    const json seen = log(mode);
    EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
    EXPECT_EQ(seen["loaded"]["model.b"][2][5], 2.5);
    const std::vector<std::string> update = {"/pause?mode=wait",
                                             "/start_weight_update",
                                             "/update_weights",
                                             "/finish_weight_update",
                                             "/update_weight_version",
                                             "/reset_prefix_cache?reset_running_requests=true",
                                             "/resume"};
    std::vector<std::string> expected = {"/init_weight_transfer_engine"};
    for (int i = 0; i < 2; ++i) expected.insert(expected.end(), update.begin(), update.end());
    EXPECT_EQ(control_paths(seen), expected);
  }
}

// A broadcast ends with the piece that takes it past the limit.
TEST(WeightGroup, PutsPiecesIntoBuckets) {
  const mortise_weight_group_vtable& table = engine();
  mortise_call call;
  mortise_weight_group_options options{};
  options.struct_size = sizeof options;
  options.carrier = {"gloo", 4};
  options.address = {"127.0.0.1", 9};
  options.num_ranks = 2;
  options.timeout_ns = 60'000'000'000;
  void* group = nullptr;
  ASSERT_EQ(table.open(host(), &call, &options, &group), 0) << call.error;
  WeightPlace place;
  place.address = "127.0.0.1";
  place.port = int(table.port(group));
  place.rank = 1;
  std::vector<std::byte> taken(12);
  std::string failure;
  std::thread receiver([&] {
    const auto take = [&]() -> Result<> {
      const auto link = TRY(open_weight_link(place));
      TRY(link->join());
      TRY(link->receive(std::span(taken).first(8)));  // 3 + 5 bytes are more than 7
      return link->receive(std::span(taken).subspan(8));
    };
    if (const Result<> done = take(); !done.ok()) failure = done.error().to_string();
  });
  const auto wait = [&] {
    int32_t is_busy = 1;
    mortise_text text{};
    while (is_busy != 0) table.state(group, &is_busy, &text);
    return str(text);
  };
  EXPECT_EQ(table.join(group, &call), 0);
  EXPECT_EQ(wait(), "");
  const std::string bytes = "abcdefghijkl";
  const mortise_weight_piece pieces[] = {{bytes.data(), 3}, {bytes.data() + 3, 5}, {bytes.data() + 8, 4}};
  mortise_weight_send what{};
  what.struct_size = sizeof what;
  what.pieces = pieces;
  what.num_pieces = 3;
  what.bucket_bytes = 7;
  EXPECT_EQ(table.send(group, &call, &what), 0);
  EXPECT_EQ(wait(), "");
  receiver.join();
  EXPECT_EQ(failure, "");
  EXPECT_EQ(std::memcmp(taken.data(), bytes.data(), bytes.size()), 0);
  table.close(group);
}

// The group of torch.distributed is made by SGLang's own steps.
TEST_F(WeightsToServers, SglangTakesThem) {
  RolloutClient client("sglang", {{"url", url("net/5")}, {"weight_transfer", "c10d"}});
  ASSERT_EQ(client.created(), 0) << client.error();
  ASSERT_EQ(client.send_weights(3), 0) << client.error();
  ASSERT_EQ(client.send_weights(4, 0.1F), 0) << client.error();
  ASSERT_EQ(client.sample(2), 0) << client.error();
  for (const auto& [key, sample] : client.sink.taken) EXPECT_EQ(sample.version, 4);
  const json seen = log("net/5");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  EXPECT_EQ(seen["loaded"]["model.a"][0], "float32");
  EXPECT_EQ(seen["loaded"]["model.a"][2][5].get<float>(), 0.1F);
  EXPECT_THAT(control_paths(seen),
              ElementsAre("/init_weights_update_group", "/end_weight_update", "/begin_weight_update",
                          "/update_weights_from_distributed", "/end_weight_update", "/begin_weight_update",
                          "/update_weights_from_distributed", "/end_weight_update"));
}

// The handles are pickled as torch pickles them.
TEST_F(WeightsToServers, AVllmOnTheTrainersGpuOpensItsMemory) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const std::string mode = dtype == "float32" ? "ipc/31" : "ipc/32";
    RolloutClient client("vllm", {{"url", url(mode)}, {"weight_transfer", "cuda_ipc"}, {"weights_dtype", dtype}});
    ASSERT_EQ(client.created(), 0) << client.error();
    ASSERT_EQ(client.send_weights(3), 0) << client.error();
    ASSERT_EQ(client.send_weights(4, 2.5F), 0) << client.error();
    ASSERT_EQ(client.sample(2), 0) << client.error();
    const json seen = log(mode);
    EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
    const json values = {2.5, 2.5, 2.5, 2.5, 2.5, 2.5};
    EXPECT_EQ(seen["loaded"], json({{"model.a", {dtype, {2, 3}, values}}, {"model.b", {dtype, {2, 3}, values}}}));
  }
}

// Nothing is sampled before the weights have come by a new connection.
TEST_F(WeightsToServers, AnUpdateThatFailsIsSentAgain) {
  RolloutClient client("vllm", {{"url", url("netfail/32")}, {"weight_transfer", "nccl"}});
  ASSERT_EQ(client.send_weights(3), 0) << client.error();
  ASSERT_EQ(client.sample(1), 0) << client.error();
  const json seen = log("netfail/32");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  EXPECT_EQ(seen["loaded"]["model.a"][2], kSixOnes);
  ASSERT_FALSE(client.log().empty());
  EXPECT_THAT(client.log().front(), HasSubstr("no room for the weights")) << "the server's words, not the connection's";
}

// SGLang leaves an update open that failed.
TEST_F(WeightsToServers, AnUpdateThatFailsAtSglangIsSentAgain) {
  RolloutClient client("sglang", {{"url", url("netfail/7")}, {"weight_transfer", "c10d"}});
  ASSERT_EQ(client.send_weights(3), 0) << client.error();
  ASSERT_EQ(client.sample(1), 0) << client.error();
  const json seen = log("netfail/7");
  EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
  EXPECT_EQ(seen["loaded"]["model.a"][2], kSixOnes);
}

// The trainer before has died within an update, which is still open. What it loaded must not mix with the new weights.
TEST_F(WeightsToServers, AnUpdateThatBrokeOffIsEndedFirst) {
  for (const auto& [backend, mode, way] :
       {std::tuple("vllm", "torn/32", "nccl"), std::tuple("sglang", "torn/8", "c10d")}) {
    SCOPED_TRACE(mode);
    RolloutClient client(backend, {{"url", url(mode)}, {"weight_transfer", way}});
    ASSERT_EQ(client.created(), 0) << client.error();
    ASSERT_EQ(client.send_weights(3), 0) << client.error();
    ASSERT_EQ(client.sample(1), 0) << client.error();
    const json seen = log(mode);
    EXPECT_THAT(seen["faults"], IsEmpty()) << seen["faults"];
    EXPECT_EQ(seen["loaded"]["model.a"][2], kSixOnes);
  }
}

TEST_F(WeightsToServers, WhatAServerCannotTakeIsSaidAtTheStart) {
  RolloutClient c10d("vllm", {{"url", url("net/33")}, {"weight_transfer", "c10d"}});
  EXPECT_EQ(c10d.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(c10d.error(), HasSubstr("vLLM takes no weights over Gloo. Set weight_transfer to \"nccl\" or \"file\""));
  RolloutClient nccl("vllm", {{"url", url("mortise/40")}, {"weight_transfer", "nccl"}});
  EXPECT_EQ(nccl.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(nccl.error(), HasSubstr("`mortise serve` takes no weights over NCCL"));
  RolloutClient gpus("vllm", {{"url", url("net/37")}, {"weight_transfer", "cuda_ipc"}});
  EXPECT_EQ(gpus.created(), MORTISE_UNAVAILABLE);
  EXPECT_THAT(gpus.error(), HasSubstr("has several GPUs, and the trainer shares one"));
  RolloutClient adapter("vllm", {{"url", url("net/34")}, {"weight_transfer", "nccl"}});
  EXPECT_EQ(adapter.send_adapter(1), MORTISE_UNIMPLEMENTED);
  EXPECT_THAT(adapter.error(), HasSubstr("adapters go to servers by files only"));
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  RolloutClient ranks("sglang", {{"url", url("net/6")}, {"weight_transfer", "c10d"}});
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(ranks.created(), MORTISE_UNIMPLEMENTED);
  EXPECT_THAT(ranks.error(), HasSubstr("several ranks send their weights to servers by files only"));
}

TEST(WeightGroup, OnlyAPolicyOnAGpuSendsFromThere) {
  mortise_weight_group_options options{};
  options.struct_size = sizeof options;
  options.address = {"127.0.0.1", 9};
  options.num_ranks = 2;
  options.timeout_ns = 60'000'000'000;
  void* group = nullptr;
  for (const std::string carrier : {"nccl", "nccl_id", "cuda_ipc"}) {
    mortise_call call;
    options.carrier = {carrier.data(), carrier.size()};
    EXPECT_EQ(engine().open(host(), &call, &options, &group), MORTISE_FAILED_PRECONDITION);
    EXPECT_THAT(std::string(call.error), HasSubstr("needs a policy on a GPU, and it is on the CPU")) << carrier;
  }
}

// On a machine without GPUs the engine's own NCCL refuses, and says what helps.
TEST_F(WeightsToServers, NcclAndSharedMemoryNeedAPolicyOnAGpu) {
  extensions()[MORTISE_EXT_WEIGHT_GROUP] = weight_group_extension();
  RolloutClient shared("vllm", {{"url", url("ipc/33")}, {"weight_transfer", "cuda_ipc"}});
  EXPECT_EQ(shared.send_weights(1), MORTISE_FAILED_PRECONDITION);
  RolloutClient client("vllm", {{"url", url("net/35")}, {"weight_transfer", "nccl"}});
  ASSERT_EQ(client.created(), 0) << client.error();
  EXPECT_EQ(client.send_weights(1), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(client.error(), HasSubstr("opening a connection for the weights failed")) << "the host has said why";
  extensions()[MORTISE_EXT_WEIGHT_GROUP] = &stand_in_table();
}

TEST_F(WeightsToServers, AProcessWithoutConnectionsSaysSo) {
  extensions().clear();
  RolloutClient client("vllm", {{"url", url("net/36")}, {"weight_transfer", "nccl"}});
  extensions()[MORTISE_EXT_WEIGHT_GROUP] = &stand_in_table();
  EXPECT_EQ(client.created(), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(client.error(), HasSubstr("Set weight_transfer to \"file\""));
}

}  // namespace
}  // namespace mortise::test
