// openai: completions from any server of OpenAI's /v1/completions that gives token ids and their log-probs.
#include "completions_protocol.h"
#include "server_backend.h"

namespace {

struct Openai : mortise::ServerBackend {
  static constexpr const char* summary =
      "rollouts from servers of OpenAI's interface that give token ids and log-probs";
  std::string reload_path = param(
      "reload_path", "",
      "path that is told of new weights by POST {weights_path, weight_version, weight_name}; empty: the server keeps its own, "
      "and all its completions count as those of version 0");
  std::unique_ptr<mortise::Protocol> make_protocol() const override {
    return std::make_unique<mortise::OpenaiProtocol>(reload_path);
  }
};

}  // namespace

MORTISE_ROLLOUT_BACKEND("openai", Openai)
