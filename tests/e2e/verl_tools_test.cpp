// A model that calls a tool now and then: as the policy of an imported run of verl's, and behind `mortise serve`.
//
// A run of verl with a tool of its own form (BaseTool), imported and trained: the tool runs in a worker without verl,
// and its rewards reach the reward function as verl gives them to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kTool = R"(
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class ProductTool(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.wanted = {}

    async def create(self, instance_id=None, **kwargs):
        instance_id, response = await super().create(instance_id)
        self.wanted[instance_id] = kwargs["create_kwargs"]["ground_truth"]
        return instance_id, response

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        product = str(parameters["a"] * parameters["b"])
        right = product == self.wanted[instance_id]
        return ToolResponse(text=product), 1.0 if right else self.config["penalty"], {}

    async def release(self, instance_id, **kwargs):
        del self.wanted[instance_id]
)";

constexpr const char* kTools = R"(tools:
  - class_name: "my_tools.product.ProductTool"
    config: {type: native, penalty: -0.25}
    tool_schema:
      type: "function"
      function:
        name: "mul"
        description: "Multiplies two numbers"
        parameters:
          type: "object"
          properties:
            a: {type: "integer", description: "the first number"}
            b: {type: "integer", description: "the second number"}
          required: ["a", "b"]
)";

constexpr const char* kReward = R"(
def compute_score(data_source, solution_str, ground_truth, extra_info):
    rewards = extra_info["tool_rewards"]
    assert extra_info["turn_scores"] == [] and extra_info["num_turns"] == 2 + 2 * len(rewards), extra_info
    return {"score": float(solution_str.endswith(ground_truth)), "tool_reward": sum(rewards),
            "num_calls": len(rewards)}
)";

constexpr const char* kRun = R"(python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_files=train.jsonl data.train_batch_size=8 data.max_prompt_length=16 data.max_response_length=48 \
  actor_rollout_ref.model.path=runs/tools/warm/global_step_150/huggingface \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.optim.lr=1e-3 \
  actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.multi_turn.enable=True actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \
  actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml \
  custom_reward_function.path=score.py trainer.total_training_steps=2
)";

class VerlTools : public ::testing::Test {
 protected:
  // A warm start that calls the tool now and then, and rows in verl's form.
  VerlTools() {
    const Outcome made = run(program("make_tool_task") + " runs/tools", dir_.path());
    EXPECT_EQ(made.code, 0) << made.output;
    const Outcome warm = mortise("sft " + std::string(MORTISE_SOURCE_DIR) +
                                 "/configs/sft_tools.toml sft.total_training_steps=150" + here_);
    EXPECT_EQ(warm.code, 0) << warm.output;
    std::string rows;
    for (const Json& row : rows_of(dir_.path() / "runs/tools/data/train.jsonl")) {
      const Json create = {{"create_kwargs", {{"ground_truth", row["answer"]}}}};
      rows += dump_json({{"prompt", row["prompt"]},
                         {"data_source", "products"},
                         {"reward_model", {{"style", "rule"}, {"ground_truth", row["answer"]}}},
                         {"extra_info", {{"need_tools_kwargs", true}, {"tools_kwargs", {{"mul", create}}}}}}) +
              "\n";
    }
    std::filesystem::create_directory(dir_.path() / "my_tools");
    for (const auto& [name, text] : {std::pair<const char*, std::string>{"train.jsonl", rows},
                                     {"my_tools/product.py", kTool},
                                     {"tools.yaml", kTools},
                                     {"score.py", kReward},
                                     {"run.sh", kRun}})
      dir_.write(name, text);
  }
  [[nodiscard]] Outcome mortise(const std::string& args) const { return run(program() + " " + args, dir_.path()); }
  const std::string here_ = " trainer.num_threads=2 trainer.logger='[]' ";
  TempDir dir_;
};

TEST_F(VerlTools, AnImportedRunCallsTheToolAndItsRewardSeesWhatVerlGives) {
  const Outcome imported = mortise("config import --from verl run.sh --output run.toml");
  ASSERT_EQ(imported.code, 0) << imported.output;
  const std::string train =
      "train run.toml rollout.multi_turn.format=llama3_pythonic trainer.default_local_dir=out "
      "trainer.save_freq=1 trainer.rollout_data_dir=dump" +
      here_;
  const Outcome done = mortise(train);
  ASSERT_EQ(done.code, 0) << done.output;
  int64_t num_calls = 0;
  for (const int step : {1, 2}) {
    for (const Json& row : rows_of(dir_.path() / "dump" / (std::to_string(step) + ".jsonl"))) {
      num_calls += row["num_tool_calls"].get<int64_t>();
      for (const Json& message : row["turns"]) {
        if (message["role"] != "tool") continue;
        EXPECT_THAT(message["content"].get<std::string>(), testing::MatchesRegex("[0-9]+|.*error.*|Error.*"));
      }
    }
  }
  EXPECT_GT(num_calls, 3) << "the warm start calls it";
  for (const Json& step : rows_of(dir_.path() / "out/metrics.jsonl")) {
    EXPECT_EQ(step["environment/failed_ratio"], 0.0);
    // The tool's rewards are a number of the reward function, and no part of the reward.
    EXPECT_NE(number_of(step, "rewards/environment/mean"), 0.0);
    EXPECT_NEAR(number_of(step, "rewards/python/mean"), number_of(step, "reward"), 1e-6) << step;
  }
  // An edit of the tool is seen by a resume.
  dir_.write("my_tools/product.py", std::string(kTool) + "\nOTHER = 1\n");
  const Outcome again = mortise(train + "trainer.total_training_steps=3");
  EXPECT_NE(again.code, 0);
  EXPECT_THAT(again.output, HasSubstr("my_tools/product.py"));
}

// The template of this model does not write calls, so the form is named.
TEST_F(VerlTools, ClientsOfOpenAiGetTheCallsOfAServedModel) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: no client of OpenAI was tried";
  const Path log = dir_.path() / "server.txt";
  Process server({program(), "serve", "--model", "runs/tools/warm/global_step_150/huggingface", "--port", "0", "--json",
                  "--tool-call-parser", "llama3_pythonic", "trainer.num_threads=1"},
                 dir_.path(), log);
  std::string port;
  const Stopwatch watch(default_env());
  while (port.empty() && watch.elapsed_s() < 300 && !server.poll()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto said = default_env().read_file(log);
    const size_t at = said.ok() ? said->find("\"port\":") : std::string::npos;
    if (at != std::string::npos && said->find('\n', at) != std::string::npos)
      port = said->substr(at + 7, said->find_first_of(",}", at) - at - 7);
  }
  ASSERT_FALSE(port.empty()) << dir_.read("server.txt");
  const Outcome tried = run(std::string(python) + " " + MORTISE_SOURCE_DIR +
                                "/tests/e2e/serve_tools.py http://127.0.0.1:" + port + " '37*84'",
                            dir_.path());
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  if (tried.code == 77) GTEST_SKIP() << "the oracles have no `openai`: install them again from tests/oracles.lock";
  EXPECT_EQ(tried.code, 0) << tried.output;
}

}  // namespace
}  // namespace mortise::test
