// vllm: completions from vLLM's servers, or from `mortise serve`, which speaks the same protocol.
#include "completions_protocol.h"
#include "server_backend.h"

namespace {

struct Vllm : mortise::TransferBackend {
  static constexpr const char* summary =
      "rollouts from vLLM's servers or from `mortise serve`; new weights go by files or over the network";
  std::string weight_transfer =
      param("weight_transfer", "file",
            "how new weights get to the servers: file, through weights_dir; c10d, over the network to `mortise serve`; "
            "nccl, between GPUs to vLLM; cuda_ipc, to a vLLM on the trainer's GPU")
          .choices({"file", "c10d", "nccl", "cuda_ipc"});
  const std::string& transfer_name() const override { return weight_transfer; }
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::VllmProtocol>(transfer());
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("vllm", Vllm)
