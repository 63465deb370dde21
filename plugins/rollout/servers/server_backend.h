// What the backends vllm, sglang and openai share: their parameters, and the slots over a pool of servers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <mortise/cpp/mortise.hpp>

#include "adapter_tensors.h"
#include "server_pool.h"
#include "weight_folder.h"
#include "weight_image.h"

namespace mortise {

class ServerBackend : public WeightedRolloutBackend {
 public:
  static constexpr std::uint32_t flags = MORTISE_FLAG_NEEDS_NETWORK;

  void setup(Call call) override;
  void set_version(std::int64_t version, Call call) override;
  void begin_update(std::int64_t version, Call call) override;
  void update_weight(const WeightShard& shard, Call call) override;
  void end_update(Call call) override;
  std::uint64_t submit(Span<const mortise_rollout_request* const> requests, Call call) override;
  std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t timeout_ns, Call call) override;
  void abort(std::int64_t request_id, Call call) override;

 protected:
  virtual std::unique_ptr<Protocol> make_protocol() const = 0;
  [[nodiscard]] virtual WeightTransfer transfer() const { return WeightTransfer::kFile; }
  // As the servers see this machine; empty: find out.
  [[nodiscard]] virtual std::string own_address() const { return ""; }
  // The pattern that completions match; empty: any text.
  [[nodiscard]] virtual const std::string& regex() const;

 private:
  bool deliver(const mortise_rollout_sink& sink);

  std::string url_ = param<std::string>(
      "url", required, "addresses of the servers, separated by commas: http://host:8000; with a login, write env:NAME");
  std::string api_key_env_ = param("api_key_env", "", "environment variable with the servers' API key");
  std::string weights_dir_ = param("weights_dir", "/dev/shm",
                                   "folder for new weights that the servers see too: shared memory or a shared disk");
  std::string weights_dtype_ =
      param("weights_dtype", "float32", "number format of the weights that are sent; bfloat16 halves them")
          .choices({"float32", "bfloat16"});
  PoolOptions options_ = read_options();
  std::unique_ptr<ServerPool> pool_;
  std::unique_ptr<WeightFolder> weights_;
  std::shared_ptr<WeightImage> image_;  // while weights are being sent over the network
  AdapterTensors adapter_;              // while an adapter is being sent
  std::int64_t coming_version_ = 0;

  static PoolOptions read_options();
};

// Servers that also take weights over the network and patterns.
class TransferBackend : public ServerBackend {
 protected:
  // The parameter weight_transfer, whose choices are those of the servers.
  [[nodiscard]] virtual const std::string& transfer_name() const = 0;
  [[nodiscard]] WeightTransfer transfer() const override;
  [[nodiscard]] std::string own_address() const override { return transfer_address_; }
  [[nodiscard]] const std::string& regex() const override { return regex_; }

 private:
  std::string transfer_address_ =
      param("transfer_address", "",
            "address of this machine at which the servers take weights over the network; empty: that from which it "
            "reaches them");
  std::string regex_ = param("structured_outputs_regex", "",
                             "pattern that completions match; set rollout.structured_outputs_regex instead");
};

}  // namespace mortise
