// sglang: completions from SGLang's servers by their own interface.
#include "server_backend.h"
#include "sglang_protocol.h"

namespace {

struct Sglang : mortise::TransferBackend {
  static constexpr const char* summary = "rollouts from SGLang's servers; new weights go by files or over the network";
  std::string weight_transfer =
      param("weight_transfer", "file",
            "how new weights get to the servers: file, through weights_dir; c10d, over the network without GPUs; nccl, "
            "between GPUs")
          .choices({"file", "c10d", "nccl"});
  const std::string& transfer_name() const override { return weight_transfer; }
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::SglangProtocol>(transfer());
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("sglang", Sglang)
