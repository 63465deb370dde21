// Patterns that guide sampling, as the backends vllm and sglang tell them to servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugins/rollout_servers_fixture.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Log-probs of SGLang, and those of vLLM that were taken last, have the pattern in them.
TEST_F(RolloutServers, APatternIsSentInTheWordsOfTheServer) {
  const std::string pattern = "(yes|no)\\.";
  const auto sample = [&](const std::string& backend, const std::string& mode) {
    RolloutClient client(backend, {{"url", url(mode)}, {"structured_outputs_regex", pattern}});
    EXPECT_EQ(client.sample(1), 0) << client.error();
    return client.sink.taken.begin()->second;
  };
  EXPECT_EQ(sample("vllm", "good/2").log_prob.front(), -0.5F);
  EXPECT_EQ(log("good/2")["calls"].back()[1]["structured_outputs"], json({{"regex", pattern}}));
  EXPECT_THAT(sample("vllm", "processed").log_prob, IsEmpty());
  EXPECT_EQ(sample("vllm", "mortise").log_prob.front(), -0.5F);
  EXPECT_EQ(log("mortise")["calls"].back()[1]["structured_outputs"], json({{"regex", pattern}}));
  EXPECT_THAT(sample("sglang", "good/2").log_prob, IsEmpty());
  EXPECT_EQ(log("good/2")["calls"].back()[1]["sampling_params"]["regex"], pattern);
}

}  // namespace
}  // namespace mortise::test
