// vllm: completions from vLLM's servers, or from `mortise serve`, which speaks the same protocol.
#include "completions_protocol.h"
#include "server_backend.h"

namespace {

struct Vllm : mortise::TransferBackend {
  static constexpr const char* summary =
      "rollouts from vLLM's servers or from `mortise serve`; new weights go by files or over the network";
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::VllmProtocol>(transfer());
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("vllm", Vllm)
