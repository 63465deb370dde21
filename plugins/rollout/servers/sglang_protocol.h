// SGLang's own interface: /generate, /update_weights_from_disk, /update_weights_from_distributed. Written from its source
// (0.5.23).
#pragma once

#include "protocol.h"

namespace mortise {

class SglangProtocol final : public Protocol {
 public:
  explicit SglangProtocol(WeightTransfer transfer) : transfer_(transfer) {}
  std::vector<HttpCall> probes(const ServerFacts& facts) const override;
  std::string read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const override;
  std::string refusal(const ServerRequest& request, const ServerFacts& facts) const override;
  HttpCall generate(const ServerRequest& request, const ServerFacts& facts) const override;
  Fault read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                    std::vector<ServerSample>& samples) const override;
  std::vector<HttpCall> weight_calls(const std::string& folder, std::int64_t version) const override;
  std::vector<HttpCall> adapter_calls(const std::string& folder, const ServerFacts& facts) const override;
  bool takes_marks() const override { return true; }
  std::string read_weight_answer(std::size_t number, const std::string& body) const override;
  TransferWay transfer_way(const ServerFacts& facts, const std::string& number) const override;
  std::vector<HttpCall> transfer_calls(const ServerFacts& facts, const TransferWay& way, const SenderPlace* place,
                                       const WeightImage& image, std::int64_t version) const override;

 private:
  WeightTransfer transfer_;
};

}  // namespace mortise
