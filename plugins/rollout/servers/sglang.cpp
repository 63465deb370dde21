// sglang: completions from SGLang's servers by their own interface.
#include "server_backend.h"
#include "sglang_protocol.h"

namespace {

struct Sglang : mortise::ServerBackend {
  static constexpr const char* summary = "rollouts from SGLang's servers; new weights go by files";
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::SglangProtocol>();
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("sglang", Sglang)
