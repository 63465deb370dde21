// [ranks]: how the processes of a run wait for each other, and what they share. The launcher says how many there are
// (docs/ranks.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace mortise {

inline constexpr double kMostRanks = 65536;  // that share the tokens of a pass, or its layers

struct RanksConfig {
  std::chrono::milliseconds join_timeout{600'000};    // until all ranks have started
  std::chrono::milliseconds answer_timeout{30'000};   // a rank that is silent for longer hangs
  std::chrono::milliseconds wait_timeout{1'800'000};  // in one collective (TRL: ddp_timeout)
  std::optional<std::string> store_file;              // instead of a TCP store
  int64_t zero_stage = 0;                             // what the ranks share of the training state (ZeRO)
  int64_t window_bytes = int64_t{32} << 20;           // a shared embedding or head that is larger is read in windows
  bool operator==(const RanksConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Catalog>
void describe_ranks_section(Catalog& catalog) {
  auto keys = catalog.table("ranks", "How the processes of a run wait for each other, and what they share.",
                            [](auto& run) -> RanksConfig& { return run.ranks; });
  keys.free("join_timeout", &RanksConfig::join_timeout,
            "Longest time from the start of a rank until all ranks have started. After it the run stops with exit code "
            "7 and names the ranks that are missing.")
      .above(0);
  keys.free("answer_timeout", &RanksConfig::answer_timeout,
            "Ranks tell each other several times a second that they live. If one is silent for longer than this, its "
            "process hangs or its machine is gone. The other ranks then stop with exit code 7 and name it.")
      .above(0);
  keys.free("wait_timeout", &RanksConfig::wait_timeout,
            "Longest time that ranks wait in one collective for a rank that lives but does not arrive. They then stop "
            "with exit code 7 and name it. Raise it if one rank may work for longer than the others, for example on "
            "slow rewards. (TRL: ddp_timeout; verl: nccl_timeout.)")
      .above(0);
  keys.free("store_file", &RanksConfig::store_file,
            "A new file on a file system that all ranks share. They find each other through it instead of a TCP "
            "connection to rank 0. null: the TCP store at MASTER_ADDR and MASTER_PORT.")
      .place();
  keys.free(
          "zero_stage", &RanksConfig::zero_stage,
          "What the ranks share of the training state (ZeRO), to save memory. 0: each rank has all of it. 1: each rank "
          "has the optimizer moments of a part of the weights. 2: as 1, and each rank sends its gradient while "
          "the backward pass of every micro-batch runs, and keeps the sum for its part only. 3: as 2, and each rank keeps only a part of the weights of the "
          "policy, the reference and the critic; passes gather them layer by layer, and a rollout gathers all of them. "
          "A run can resume with another stage. "
          "(DeepSpeed: zero_optimization.stage.)")
      .at_least(0)
      .at_most(3);
  keys.compared("window_bytes", &RanksConfig::window_bytes,
                "With zero_stage = 3, passes read an embedding or a head of more bytes than this in windows of so many "
                "bytes, but of at least 2,048 tokens of the vocabulary. Smaller windows need less memory and more "
                "messages. With trainer.deterministic, one process has the same windows.")
      .at_least(1)
      .no_effect(
          kLearning, [](const auto& k) { return k.config.ranks.zero_stage < 3 && !k.config.trainer.deterministic; },
          "only zero_stage = 3 and trainer.deterministic read an embedding or a head in windows");
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
