// sglang: completions from SGLang's servers by their own interface.
#include "server_backend.h"
#include "sglang_protocol.h"

namespace {

struct Sglang : mortise::TransferBackend {
  static constexpr const char* summary = "rollouts from SGLang's servers; new weights go by files or over the network";
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::SglangProtocol>(transfer());
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("sglang", Sglang)
