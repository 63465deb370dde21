// Servers of OpenAI's /v1/completions: vLLM, `mortise serve`, and others that give token ids.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "protocol.h"

namespace mortise {

// The parts that vLLM and other servers of this interface share.
class CompletionsProtocol : public Protocol {
 public:
  std::vector<HttpCall> probes(const ServerFacts& facts) const override;
  std::string read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const override;
  HttpCall generate(const ServerRequest& request, const ServerFacts& facts) const override;
  Fault read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                    std::vector<ServerSample>& samples) const override;
  HttpCall identity_call() const override;
  std::string read_identity(const std::string& body) const override;

 protected:
  // `version`: what a choice says of its weights.
  using ReadVersion = std::int64_t (*)(const nlohmann::json& choice);
  static Fault read_choices(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                            ReadVersion version, std::vector<ServerSample>& samples);
};

class VllmProtocol final : public CompletionsProtocol {
 public:
  explicit VllmProtocol(WeightTransfer transfer) : transfer_(transfer) {}
  std::vector<HttpCall> probes(const ServerFacts& facts) const override;
  std::string read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const override;
  std::string refusal(const ServerRequest& request, const ServerFacts& facts) const override;
  std::vector<HttpCall> weight_calls(const std::string& folder, std::int64_t version) const override;
  std::string read_weight_answer(std::size_t number, const std::string& body) const override;
  bool takes_marks() const override { return true; }
  HttpCall version_call() const override;
  std::int64_t read_version_answer(const std::string& body) const override;
  std::vector<HttpCall> adapter_calls(const std::string& folder, const ServerFacts& facts) const override;
  TransferWay transfer_way(const ServerFacts& facts, const std::string& number) const override;
  std::vector<HttpCall> transfer_calls(const ServerFacts& facts, const TransferWay& way, const SenderPlace* place,
                                       const WeightImage& image, std::int64_t version) const override;

 private:
  [[nodiscard]] std::string check_transfer(const ServerFacts& facts) const;

  WeightTransfer transfer_;
};

// Any other server of the interface. `reload_path` is where it is told of new weights; empty: it keeps its own.
class OpenaiProtocol final : public CompletionsProtocol {
 public:
  explicit OpenaiProtocol(std::string reload_path) : reload_path_(std::move(reload_path)) {}
  std::string refusal(const ServerRequest& request, const ServerFacts& facts) const override;
  std::vector<HttpCall> weight_calls(const std::string& folder, std::int64_t version) const override;
  Fault read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                    std::vector<ServerSample>& samples) const override;
  bool takes_marks() const override { return true; }

 private:
  std::string reload_path_;
};

}  // namespace mortise
