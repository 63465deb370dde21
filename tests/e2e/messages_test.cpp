// A user's mistakes: the message says what, where and what to do, the exit code is the documented one, and nothing is
// lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "foundation/formats/safetensors.h"
#include "program.h"

namespace mortise::test {
namespace {

struct Mistake {
  const char* args;
  int code;
  std::vector<const char*> says;
};

void expect_told(const TaskFolder& task, const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    const Outcome outcome = task.mortise(mistake.args);
    EXPECT_EQ(outcome.code, mistake.code) << mistake.args << "\n" << outcome.output;
    for (const char* text : mistake.says)
      EXPECT_NE(outcome.output.find(text), std::string::npos) << mistake.args << "\n" << outcome.output;
    // The message names the searched folders once, for any number of names.
    EXPECT_EQ(outcome.output.find("searched:"), outcome.output.rfind("searched:")) << mistake.args;
  }
}

TEST(Messages, MistakesEndInPlaceCauseAndNextStep) {
  const TaskFolder task;
  task.write("typo.toml", "base = \"run.toml\"\n\n[actor]\nppo_epoch = 2\ngrad_clip = \"much\"\n");
  task.write("bad.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \n");
  task.write("ids.jsonl", "{\"prompt_token_ids\": [2, 3, 99]}\n");
  task.write("long.jsonl", "{\"prompt\": \"" + std::string(69, '1') + "=\", \"response\": \"1\"}\n");
  task.write("loss.toml", "base = \"run.toml\"\n[actor.policy_loss]\nloss_mode = \"clip_cov\"\nclip_cov_lb = 9.0\n");
  task.write("advantage.toml",
             "base = \"run.toml\"\n[algorithm]\nadv_estimator = \"bnpo\"\n[algorithm.adv_params]\nalpha = 2.0\n");
  const std::vector<Mistake> mistakes = {
      {"train loss.toml", 4, {"loss.toml:3:", "policy_loss clip_cov@", "clip_cov_lb must be below clip_cov_ub"}},
      {"train run.toml actor.policy_loss.loss_mode=sapo actor.policy_loss.tau_pos=0",
       2,
       {"'tau_pos' is 0", "out of its range", "give a number above 0"}},
      {"train advantage.toml", 4, {"advantage.toml:3:", "advantage_estimator bnpo@", "set both or neither"}},
      {"train run.toml rollout.name=replay rollout.replay.path=none.jsonl",
       3,
       {"rollout.name=replay", "rollout_backend replay@", "none.jsonl"}},
      {"trian run.toml", 2, {"no command 'trian'", "train"}},
      {"train nothing.toml", 2, {"nothing.toml"}},
      {"train typo.toml", 2, {"typo.toml:4", "ppo_epoch", "ppo_epochs", "typo.toml:5", "grad_clip"}},
      {"train run.toml actor.clip_ratoi=0.1", 2, {"actor.clip_ratoi", "actor.clip_ratio"}},
      {"train run.toml model.path=nowhere", 3, {"nowhere", "config.json"}},
      {"train run.toml data.train_files=missing.jsonl", 3, {"missing.jsonl", "does not exist"}},
      {"train run.toml data.train_files=bad.jsonl", 3, {"bad.jsonl:2"}},
      {"train run.toml data.train_files=ids.jsonl data.train_batch_size=1 actor.ppo_mini_batch_size=1",
       3,
       {"ids.jsonl:1", "token id 99"}},
      {"train run.toml data.train_batch_size=9000 actor.ppo_mini_batch_size=9000", 3, {"7600 prompts", "9000"}},
      {"train run.toml actor.policy_loss.loss_mode=gspoo", 4, {"gspoo", "gspo"}},
      {"train run.toml reward.0.use=exact", 4, {"exact", "exact_match"}},
      {"train run.toml actor.policy_loss.tau=1", 2, {"actor.policy_loss.tau=1", "vanilla", "clip_ratio_c"}},
      {"train run.toml --resume out/global_step_9", 3, {"out/global_step_9: there is no such checkpoint"}},
      {"plugin describe nosuch", 4, {"nosuch"}},
      {"train run.toml rollout.val_kwargs.n=100000", 2, {"rollout.val_kwargs.n", "at most 65536"}},
      {"train run.toml trainer.total_training_steps=9223372036854775807", 2, {"2^53", "total_training_steps"}},
      {"eval run.toml data.val_files=data/val.jsonl rollout.val_kwargs.n=40000", 2, {"500 prompts", "too many"}},
      {"generate --model model --prompts data/val.jsonl --out data/val.jsonl", 2, {"--prompts and --out", "same file"}},
      {"tokenizer encode --model model --in data/val.jsonl --out ./data/../data/val.jsonl", 2, {"same file"}},
      {"chat render --template t.jinja --in linked.jsonl --out ids.jsonl", 2, {"--in and --out", "same file"}},
      {"generate --model model --prompts g.partial --out g", 2, {"g.partial"}},
      {"plugin check packs/missing.so", 3, {"packs/missing.so"}},
      {"train run.toml model.path=dropped", 3, {"dropped/config.json: key 'attention_dropout' = 0.1", "set it to 0.0"}},
      {"train run.toml model.path=dropped --dry-run", 3, {"'attention_dropout' = 0.1"}},
      {"train run.toml model.path=deep", 3, {"deep/config.json", "nested deeper than 128 levels"}},
      {"generate --model deep --prompts ids.jsonl --out g", 3, {"deep/config.json", "nested deeper than 128 levels"}},
      {"sft run.toml data.train_files=long.jsonl data.max_prompt_length=99 sft.train_batch_size=1",
       3,
       {"long.jsonl:1: the row has 72 tokens, the model has 64 positions"}},
      {"sft run.toml model.path=dropped data.train_files=data/sft.jsonl", 3, {"'attention_dropout' = 0.1"}},
      {"generate --model dropped --prompts ids.jsonl --out g", 3, {"ids.jsonl:1", "token id 99"}},
      {"train run.toml rollout.temperature=1e60", 2, {"'rollout.temperature' must be at least 0 and at most 1000000"}},
      {"train run.toml data.train_files=foreign.jsonl rollout.name=replay rollout.replay.path=foreign.jsonl "
       "rollout.n=1 "
       "data.train_batch_size=1 actor.ppo_mini_batch_size=1 data.shuffle=false trainer.val_before_train=false",
       4,
       {"rollout_backend replay@", "token id 9999", "vocabulary"}},
  };
  ASSERT_EQ(
      run("ln -s ids.jsonl linked.jsonl && cp data/val.jsonl g.partial && cp -r model dropped && cp -r model deep && "
          "head -c 300000 /dev/zero | tr '\\0' '[' > deep/config.json && "
          "sed -i 's/\"attention_dropout\": 0.0/\"attention_dropout\": 0.1/' dropped/config.json",
          task.path())
          .code,
      0);
  task.write("foreign.jsonl", R"({"prompt_token_ids": [2, 3], "completions": [[4, 9999]], "finish_reasons": ["stop"]})"
                              "\n");
  expect_told(task, mistakes);
}

// What users of other frameworks write first.
TEST(Messages, HabitsOfOtherFrameworksAreAnswered) {
  const TaskFolder task;
  task.write("twice.toml", "[actor]\nppo_epochs = 2\n[actor]\ngrad_clip = 1.0\n");
  expect_told(
      task,
      {
          {"train run.toml model.path=Qwen/Qwen2.5-0.5B",
           3,
           {"models/Qwen/Qwen2.5-0.5B", "no such folder here", "cache does not have it", "must be downloaded once"}},
          {"train run.toml rollout.n = 4", 2, {"'rollout.n' has no value", "write rollout.n=VALUE, without spaces"}},
          {"train run.toml --rollout.n=4",
           2,
           {"no option '--rollout.n'", "settings have no dashes: write rollout.n=4"}},
          {"train run.toml --rollout.n 4", 2, {"settings have no dashes: write rollout.n=VALUE"}},
          {"train twice.toml", 2, {"twice.toml:3:1", "the table 'actor' is there twice", "under one header"}},
      });
}

// Each name with its place and the nearest one, also of keys and files that are looked at before a run.
TEST(Messages, WrongNamesAreToldAtOnceWithTheNearest) {
  const TaskFolder task;
  task.write("names.toml",
             "base = \"run.toml\"\n\n[algorithm]\nadv_estimator = \"grpoo\"\n[actor]\nuse_kl_loss = true\n"
             "kl_loss_type = \"k33\"\n[actor.policy_loss]\nloss_mode = \"gspoo\"\n[rollout]\nname = \"natve\"\n"
             "[[reward]]\nuse = \"exact_mach\"\n[[reward]]\nuse = \"length\"\nlongest = 3\n");
  task.write("promt.jsonl", "{\"promt\": \"1+1=\"}\n");
  expect_told(
      task,
      {
          {"train names.toml",
           4,
           {"names.toml:4:1: no advantage_estimator is named 'grpoo'; did you mean 'grpo'",
            "names.toml:7:1: no kl_estimator is named 'k33'; did you mean",
            "names.toml:9:1: no policy_loss is named 'gspoo'",
            "names.toml:11:1: no rollout_backend is named 'natve'; did you mean 'native'",
            "names.toml:13:1: no reward is named 'exact_mach'; did you mean 'exact_match'", "names.toml:16:1"}},
          {"objective eval --config names.toml --inputs no --outputs g",
           4,
           {"names.toml:7:1: no kl_estimator is named 'k33'; did you mean", "names.toml:9:1: no policy_loss is named"}},
          {"train run.toml --dry-run actor.policy_loss.los_mode=gspo reward.0.wieght=2 reward.0.colunm=answer",
           2,
           {"no parameter 'los_mode'; did you mean 'loss_mode'?", "no parameter 'wieght'; did you mean 'weight'?",
            "no parameter 'colunm'; did you mean 'column'?"}},
          {"train run.toml --dry-run actor.policy_loss.loss_mode=dapo",
           4,
           {"'dapo'; it is a preset: preset=dapo sets"}},
          {"train run.toml --dry-run actor.policy_loss.loss_mode=gmpo",
           4,
           {"'gmpo'; GMPO is the policy_loss geo_mean"}},
          {"sft run.toml data.train_files=data/sft.jsonl data.max_response_length=8 sft.train_batch_size=90000",
           3,
           {"fewer than sft.train_batch_size = 90000; lower sft.train_batch_size"}},
          {"generate --model model --prompts promt.jsonl --out g rollout.temprature=1",
           2,
           {"unknown key 'rollout.temprature'; did you mean 'rollout.temperature'"}},
          {"generate --model model --prompts promt.jsonl --out g rollout.name=replay",
           2,
           {"has no effect on generate"}},
          {"generate --model model --prompts promt.jsonl --out g",
           3,
           {"promt.jsonl:1: the row has no prompt", "the row has 'promt': did you mean 'prompt'?"}},
          {"train run.toml --dry-run rollout.name=replay rollout.replay.path=no.jsonl",
           3,
           {"'rollout.replay.path=no.jsonl'", "no.jsonl", "does not exist"}},
          {"train run.toml --dry-run reward.1.use=python reward.1.path=no.py reward.2.use=reward_model "
           "reward.2.model=model reward.2.chat_template=no.jinja",
           3,
           {"'reward.1.path=no.py'", "'reward.2.chat_template=no.jinja'", "does not exist"}},
          {"train run.toml --dry-run reward.1.use=reward_model reward.1.model=model",
           3,
           {"'reward.1.model=model'", "this is a language model"}},
          {"train run.toml --dry-run actor.optim.groups.a.match=embed_token. actor.optim.groups.a.freeze=true "
           "actor.optim.groups.b.match=q_prj",
           2,
           {"'actor.optim.groups.b.match=q_prj': 'actor.optim.groups.b.match' is 'q_prj', which matches no parameter's name",
            "did you mean 'q_proj'"}},
          {"sft run.toml data.train_files=data/sft.jsonl data.max_response_length=8 actor.optim.groups.a.match=. "
           "actor.optim.groups.a.freeze=true",
           2,
           {"'actor.optim.groups' freezes every parameter; leave some to be trained"}},
          {"train run.toml --dry-run data.val_files=no.jsonl",
           3,
           {"no.jsonl", "does not exist; correct data.val_files"}},
          {"config explain actor.policy_loss.tau_poss",
           2,
           {"no policy_loss has a parameter 'tau_poss'; did you mean 'tau_pos'"}},
      });
}

// docs/exit_codes.md: a missing input is 3 for every command, and an output that cannot be written is 6.
TEST(Messages, OneRuleForFiles) {
  const TaskFolder task;
  task.write("rows.jsonl", "{\"prompt\": \"1+1=\", \"messages\": [], \"text\": \"1\"}\n");
  task.write("t.jinja", "text");
  const std::string commands[] = {"train run.toml data.train_files=@",
                                  "train run.toml data.train_files=@ --dry-run",
                                  "train run.toml model.custom_chat_template=@",
                                  "train run.toml model.path=@",
                                  "train run.toml --resume @",
                                  "train run.toml rollout.name=replay rollout.replay.path=@",
                                  "sft run.toml data.train_files=@",
                                  "eval run.toml data.val_files=@",
                                  "generate --model model --prompts @ --out g",
                                  "generate --model @ --prompts rows.jsonl --out g",
                                  "model logprob --model model --inputs @ --outputs g",
                                  "tokenizer encode --model model --in @ --out g",
                                  "tokenizer encode --model @ --in rows.jsonl --out g",
                                  "chat render --template @ --in rows.jsonl --out g",
                                  "chat render --template t.jinja --in @ --out g",
                                  "chat render --model @ --in rows.jsonl --out g",
                                  "plugin eval policy_loss vanilla --inputs @ --outputs g",
                                  "plugin eval reward length --inputs @ --outputs g",
                                  "objective eval --inputs @ --outputs g"};
  for (std::string command : commands) {
    command.replace(command.find('@'), 1, "no/such");
    const Outcome outcome = task.mortise(command);
    EXPECT_EQ(outcome.code, 3) << command << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find("no/such"), std::string::npos) << command << "\n" << outcome.output;
  }
  for (const char* command : {"generate --model model --prompts rows.jsonl --out no/such/g rollout.response_length=1",
                              "tokenizer encode --model model --in rows.jsonl --out no/such/g",
                              "chat render --template t.jinja --in rows.jsonl --out no/such/g"}) {
    const Outcome outcome = task.mortise(command);
    EXPECT_EQ(outcome.code, 6) << command << "\n" << outcome.output;
  }
}

// A write failure is reported, whatever limit causes it.
TEST(Messages, OutputThatIsNotTakenIsAnError) {
  const TaskFolder task;
  const Outcome device = run(program() + " config show run.toml --json > /dev/full", task.path());
  EXPECT_EQ(device.code, 6) << device.output;
  EXPECT_NE(device.output.find("standard output"), std::string::npos) << device.output;
  // The model is larger than the limit. So is every pack, which a run would load from a sealed copy in memory.
  const Outcome limited = run("ulimit -f 64; " + program() + " model save --model model --out saved", task.path());
  EXPECT_EQ(limited.code, 6) << limited.output;
  EXPECT_NE(limited.output.find("ulimit -f"), std::string::npos) << limited.output;
  const Outcome pack = run("ulimit -f 64; " + program() + " train run.toml", task.path());
  EXPECT_EQ(pack.code, 4) << pack.output;
  EXPECT_NE(pack.output.find("ulimit -f"), std::string::npos) << pack.output;
}

TEST(Messages, LogprobWantsRowsAndAMaskOfZerosAndOnes) {
  const TaskFolder task;
  const auto logprob = [&](const std::vector<int64_t>& ids, const std::vector<int64_t>& mask, int64_t rows) {
    const TensorView tensors[] = {view_of<int64_t>("in.input_ids", ids, {rows, 2}),
                                  view_of<int64_t>("in.attention_mask", mask, {rows, 2})};
    EXPECT_TRUE(write_safetensors_file(default_env(), task.path() / "in.safetensors", tensors).ok());
    return task.mortise("model logprob --model model --inputs in.safetensors --outputs out.safetensors");
  };
  EXPECT_EQ(logprob({2, 3, 4, 5}, {1, 1, 1, 0}, 2).code, 0);
  const Outcome empty = logprob({}, {}, 0);
  EXPECT_EQ(empty.code, 3) << empty.output;
  EXPECT_NE(empty.output.find("tensor 'in.input_ids' is empty"), std::string::npos) << empty.output;
  const Outcome seven = logprob({2, 3, 4, 5}, {1, 1, 1, 7}, 2);
  EXPECT_EQ(seven.code, 3) << seven.output;
  EXPECT_NE(seven.output.find("holds 7 in row 1, column 1"), std::string::npos) << seven.output;
}

TEST(Messages, TheObjectiveNamesTheInputThatASettingNeeds) {
  const TempDir dir;
  const std::vector<float> numbers(4, -1.0F), ones(4, 1.0F);
  const TensorView tensors[] = {view_of<float>("in.log_prob", numbers, {2, 2}),
                                view_of<float>("in.advantages", ones, {2, 2}),
                                view_of<float>("in.response_mask", ones, {2, 2})};
  ASSERT_TRUE(write_safetensors_file(default_env(), dir / "in.safetensors", tensors).ok());
  const auto eval = [&](const std::string& settings) {
    return run(program() + " objective eval --inputs in.safetensors --outputs out.safetensors " + settings, dir.path());
  };
  EXPECT_EQ(eval("").code, 0);
  const std::pair<const char*, const char*> needs[] = {
      {"actor.use_kl_loss=true", "the input 'ref_log_prob' is missing, and actor.use_kl_loss needs it; add it"},
      {"actor.entropy_coeff=0.1", "the input 'entropy' is missing, and actor.entropy_coeff needs it; add it"},
      {"actor.top_entropy_quantile=0.5", "'entropy' is missing, and actor.top_entropy_quantile needs it; add it"},
      {"actor.policy_loss.loss_mode=topr",
       "'rollout_log_prob' is missing, and actor.policy_loss.loss_mode (policy_loss topr@"},
      {"algorithm.rollout_correction.rollout_is=token",
       "'rollout_log_prob' is missing, and algorithm.rollout_correction needs it"}};
  for (const auto& [settings, says] : needs) {
    const Outcome outcome = eval(settings);
    EXPECT_EQ(outcome.code, 3) << settings << outcome.output;
    EXPECT_NE(outcome.output.find("in.safetensors: the input"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find(says), std::string::npos) << outcome.output;
  }
}

// The errors name the config key of a parameter in a pack's table.
TEST(Messages, ExplainsTheParametersOfPlugins) {
  const TempDir dir;
  dir.write("run.toml", "[actor.policy_loss]\nloss_mode = \"gspo\"\n[[reward]]\nuse = \"regex\"\n");
  const auto explained = [&](const std::string& key) { return run(program() + " config explain " + key, dir.path()); };
  EXPECT_EQ(explained("actor.policy_loss.tau_pos").output,
            "actor.policy_loss.tau_pos\n"
            "  Parameter of the policy_loss sapo, sapo_sequence: temperature of the gate where A > 0\n"
            "  type:    number\n  default: 1.0\n  allowed: above 0\n");
  const struct {
    const char* key;
    std::vector<const char*> says;
  } cases[] = {
      {"actor_rollout_ref.actor.policy_loss.gradient", {"the policy_loss gspo:", "allowed: token | row"}},
      {"actor.policy_loss.clip_ratio", {"vanilla", "half width", "\n  see also actor.clip_ratio\n"}},
      {"algorithm.adv_params.ddof", {"the advantage_estimator grpo", "type:    integer"}},
      {"reward.0.pattern", {"reward.*.pattern\n", "the reward regex", "default: (mandatory)"}},
      {"rollout.replay.path", {"the rollout_backend replay: JSONL file", "type:    text"}},
      {"actor.policy_loss.gradient --config run.toml", {"the policy_loss gspo:"}},
      {"actor.policy_loss.tau_pos --config run.toml", {"the policy_loss 'gspo' has no parameter 'tau_pos'"}},
      {"reward.math_equal.on_unreadable_gold",
       {"reward.*.on_unreadable_gold\n  Parameter of the reward math_equal: ", "default: "}},
      {"reward.0.regex.pattern", {"the reward regex: "}},
      {"tau_neg", {"actor.policy_loss.tau_neg\n  Parameter of the policy_loss sapo, sapo_sequence: "}},
      {"actor.policy_loss.gspo.gradient", {"the policy_loss gspo: "}},
      {"algorithm.adv_params.mortise.advantage_estimator/grpo.epsilon", {"the advantage_estimator grpo: "}},
      {"reward.math_equal.pattern", {"the reward 'math_equal' has no parameter 'pattern'; `mortise plugin describe"}},
      {"reward.math_equal.on_unreadable_god",
       {"the reward 'math_equal' has no parameter 'on_unreadable_god'; did you mean 'on_unreadable_gold'?"}},
      {"reward.math_equl.on_unreadable_gold", {"no reward is named 'math_equl'; did you mean 'math_equal'"}},
      {"actor.policy_loss.tau_neg --json", {"\"plugin\": \"sapo\"", "\"default\": \"1.05\"", "\"pack\""}},
  };
  for (const auto& [key, says] : cases) {
    const Outcome outcome = explained(key);
    const bool is_known = outcome.output.find("has no parameter") == std::string::npos &&
                          outcome.output.find("is named") == std::string::npos;
    EXPECT_EQ(outcome.code, is_known ? 0 : 2) << outcome.output;
    for (const char* text : says) EXPECT_NE(outcome.output.find(text), std::string::npos) << key << outcome.output;
  }
}

TEST(Messages, SummariesAsJson) {
  const TaskFolder task;
  task.write("text.jsonl", "{\"text\": \"1+1\"}\n{\"text\": \"22\"}\n");
  task.write("chat.jsonl", "{\"messages\": [{\"role\": \"u\", \"content\": \"1\"}]}\n{\"messages\": []}\n");
  task.write("t.jinja", "{{ messages[0].content.strip() }}");
  const auto summary = [&](const std::string& args) {
    const Outcome outcome = task.mortise(args + " --json 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    auto json = parse_json(outcome.output, args);
    return json.ok() ? *json : Json{{"not_json", outcome.output}};
  };
  EXPECT_EQ(summary("tokenizer encode --model model --in text.jsonl --out ids.jsonl"),
            (Json{{"out", "ids.jsonl"}, {"rows", 2}, {"ids", 5}}));
  EXPECT_EQ(summary("tokenizer decode --model model --in ids.jsonl --out back.jsonl"),
            (Json{{"out", "back.jsonl"}, {"rows", 2}, {"ids", 5}}));
  EXPECT_EQ(summary("chat render --template t.jinja --in chat.jsonl --out g.jsonl"),
            (Json{{"out", "g.jsonl"}, {"rows", 2}, {"errors", 1}}));
  const Json dry = summary("train run.toml --dry-run");
  EXPECT_EQ(dry["rows_per_step"], 128);
  EXPECT_EQ(dry["updates"], 40);
  EXPECT_EQ(dry["config"]["rollout"]["n"], 8);
  EXPECT_GT(dry["memory_bytes"]["total"], dry["memory_bytes"]["weights"]);
  const Json again = summary("train run.toml --dry-run model.enable_gradient_checkpointing=true");
  EXPECT_LT(again["memory_bytes"]["activations"], dry["memory_bytes"]["activations"]);
  const Json roomy =
      summary("train run.toml --dry-run model.enable_gradient_checkpointing=true model.activation_memory_mib=4096");
  EXPECT_EQ(roomy["memory_bytes"]["activations"], dry["memory_bytes"]["activations"]);
  const Json full = summary("train run.toml --dry-run actor.use_kl_loss=true actor.kl_loss_type=full");
  const auto in_format = [&](const std::string& settings) {
    return summary("train run.toml --dry-run actor.use_kl_loss=true " + settings)["memory_bytes"];
  };
  const Json single = in_format(""), rounded = in_format("model.dtype=bfloat16");
  const Json no_masters = in_format("model.dtype=bfloat16 actor.optim.master_weights=false");
  const auto bytes = [](const Json& memory, const char* part) { return memory[part].get<int64_t>(); };
  // 2 bytes more for a copy of each matrix, or 2 bytes less without its master.
  EXPECT_EQ(bytes(rounded, "weights") + bytes(no_masters, "weights"), 2 * bytes(single, "weights"));
  EXPECT_LT(bytes(no_masters, "weights"), bytes(single, "weights"));
  EXPECT_EQ(bytes(rounded, "reference"), bytes(no_masters, "weights"));
  EXPECT_EQ(bytes(single, "reference"), bytes(single, "weights"));
  EXPECT_LT(bytes(rounded, "activations"), bytes(single, "activations"));
  EXPECT_EQ(bytes(rounded, "optimizer"), bytes(single, "optimizer"));
  const Json frozen =
      summary("train run.toml --dry-run actor.optim.groups.a.match=embed_tokens actor.optim.groups.a.freeze=true");
  const auto num_trained = frozen["trained_parameters"].get<int64_t>();
  EXPECT_LT(num_trained, frozen["parameters"].get<int64_t>());
  EXPECT_EQ(bytes(frozen["memory_bytes"], "gradients"), 4 * num_trained);
  EXPECT_EQ(bytes(frozen["memory_bytes"], "optimizer"), 8 * num_trained);
  EXPECT_EQ(bytes(frozen["memory_bytes"], "weights"), bytes(dry["memory_bytes"], "weights"));
  EXPECT_GT(full["memory_bytes"]["head"], dry["memory_bytes"]["head"]);  // the reference uses memory as well
  EXPECT_GT(dry["memory_bytes"]["head"], 0);
  EXPECT_EQ(dry["memory_bytes"]["reward_models"], 0);
  EXPECT_EQ(dry["memory_bytes"]["critic"], 0);
  EXPECT_EQ(dry["val_rows"], 0);
  const std::string scorer = std::string(MORTISE_SOURCE_DIR) + "/tests/golden/reward_model/model";
  const Json scored = summary(
      "train run.toml --dry-run data.val_files=data/val.jsonl algorithm.adv_estimator=gae "
      "reward.1.use=reward_model reward.1.model=" +
      scorer);
  EXPECT_EQ(scored["val_rows"], 500);
  const auto file_size = default_env().info(Path(scorer) / "model.safetensors")->size_bytes;  // float32, and a header
  EXPECT_LT(scored["memory_bytes"]["reward_models"], file_size);
  EXPECT_GT(scored["memory_bytes"]["reward_models"], file_size * 9 / 10);
  // Weights, gradients and two moments, as for the policy without its head.
  EXPECT_GT(scored["memory_bytes"]["critic"], dry["memory_bytes"]["optimizer"]);
  EXPECT_LE(scored["memory_bytes"]["critic"].get<double>(), 4.1 * dry["memory_bytes"]["weights"].get<double>());
  EXPECT_EQ(task.mortise("train run.toml --json").code, 2);
}

// An adapter of the critic on the policy's base, and on another one.
TEST(Messages, ADryRunCountsTheBaseThatACriticShares) {
  const TaskFolder task;
  std::filesystem::copy(task.path() / "model", task.path() / "copy", std::filesystem::copy_options::recursive);
  const auto summary = [&](const std::string& more) {
    const Outcome outcome =
        task.mortise("train run.toml --dry-run --json algorithm.adv_estimator=gae " + more + " 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return parse_json(outcome.output, "dry-run").value();
  };
  const Json whole = summary("");
  const Json shared = summary("model.lora_rank=2 critic.model.lora_rank=2");
  const Json apart = summary("model.lora_rank=2 critic.model.lora_rank=2 critic.model.path=copy");
  const double base = apart["memory_bytes"]["critic"].get<double>() - shared["memory_bytes"]["critic"].get<double>();
  const auto weights = whole["memory_bytes"]["weights"].get<double>();
  EXPECT_GT(base, 0.8 * weights);  // the critic has no vocabulary head
  EXPECT_LE(base, weights);
  EXPECT_LT(shared["checkpoint_bytes"], whole["checkpoint_bytes"]);
  const Json spelled =
      summary("model.lora_rank=2 critic.model.lora_rank=2 critic.model.path=" + (task.path() / "model/").string());
  EXPECT_EQ(spelled["memory_bytes"]["critic"], shared["memory_bytes"]["critic"]);
}

// A save of a folder in four bits writes plain numbers, of the dtype of its embedding.
TEST(Messages, ADryRunKnowsWhatASaveOfFourBitsWrites) {
  const TaskFolder task;
  const Path golden = Path(MORTISE_SOURCE_DIR) / "tests/golden/models/gpt_oss_mxfp4";
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(golden / name, task.path() / "model" / name,
                               std::filesystem::copy_options::overwrite_existing);
  const auto bytes = [&](const std::string& dtype) {
    const Outcome outcome =
        task.mortise("train run.toml --dry-run --json trainer.save_dtype=" + dtype + " 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return parse_json(outcome.output, "dry-run").value()["checkpoint_bytes"].get<int64_t>();
  };
  EXPECT_EQ(bytes("stored"), bytes("bfloat16"));
}

TEST(Messages, HelpEverywhere) {
  const TaskFolder task;
  for (const char* command :
       {"", "train ", "sft ", "eval ", "generate ", "model ", "tokenizer ", "chat ", "plugin ", "objective ", "config ",
        "launch ", "serve ", "checkpoint ", "pack ", "top ", "report ", "doctor "}) {
    const Outcome outcome = task.mortise(std::string(command) + "--help");
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.output.find("usage: mortise"), std::string::npos) << command << outcome.output;
  }
}

// Which estimators compare, their own tables say.
TEST(Messages, LoneCompletionsAreToldWhereTheyAreCompared) {
  const TaskFolder task;
  const auto warned = [&](const std::string& estimator) {
    const Outcome outcome = task.mortise("train run.toml --dry-run rollout.n=1 algorithm.adv_estimator=" + estimator);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output.find("rollout.n is 1: " + estimator + " compares the completions of one prompt") !=
           std::string::npos;
  };
  EXPECT_TRUE(warned("maxrl"));
  EXPECT_TRUE(warned("bnpo"));
  EXPECT_FALSE(warned("reinforce_plus_plus"));
}

// A dry run accepts what a run accepts, and reports the same error otherwise.
TEST(Messages, DryRunReadsTheRowsAsTheRunDoes) {
  const TaskFolder task("--tiny");
  task.write("one.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"1+1\"}\n{\"prompt\": 7}\n");
  const std::string train =
      "train run.toml trainer.total_training_steps=1 data.train_files=data/val.jsonl trainer.default_local_dir=";
  const std::pair<std::string, int> cases[] = {
      {" data.max_prompt_length=1000000", 0},  // no prompt is that long
      {" data.max_response_length=1000000 rollout.kv_cache_mib=1000000", 3},
      {" data.train_files=one.jsonl data.train_batch_size=2 actor.ppo_mini_batch_size=2", 3},
      {" data.max_prompt_length=4", 3},
      {" data.train_batch_size=9000 actor.ppo_mini_batch_size=9000", 3}};
  int number = 0;
  for (const auto& [settings, code] : cases) {
    const std::string out = std::to_string(++number);
    const Outcome planned = task.mortise(train + out + settings + " --dry-run");
    const Outcome done = task.mortise(train + out + settings);
    EXPECT_EQ(planned.code, code) << settings << planned.output;
    EXPECT_EQ(done.code, code) << settings << done.output;
    const auto error_of_run = [](const std::string& text) {
      return text.substr(std::min(text.size(), text.find("error: ")));
    };
    EXPECT_EQ(error_of_run(planned.output).empty(), code == 0) << planned.output;
    if (code != 0) {
      EXPECT_EQ(error_of_run(planned.output), error_of_run(done.output)) << settings;
    }
  }
  const Outcome long_ones = task.mortise(train + "x data.max_response_length=1000000 --dry-run");
  for (const char* text : {"data/val.jsonl:1: ", "(max_position_embeddings)", "lower the length of completions"})
    EXPECT_NE(long_ones.output.find(text), std::string::npos) << long_ones.output;
  const Outcome only =
      task.mortise("train run.toml --dry-run trainer.val_only=true data.train_files=[] data.val_files=data/val.jsonl");
  EXPECT_EQ(only.code, 0) << only.output;
}

// What an estimator does by itself is in its table, and so is what it cannot be joined with.
TEST(Messages, NormalizeThenSumDoesNotSuitEveryEstimator) {
  const TaskFolder task;
  const std::string on = "train run.toml algorithm.multi_objective_aggregation=normalize_then_sum";
  const auto expect_refused = [&](const std::string& estimator, const std::string& text) {
    const Outcome outcome = task.mortise(on + " algorithm.adv_estimator=" + estimator);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  };
  expect_refused("gdpo", "'algorithm.multi_objective_aggregation=normalize_then_sum': normalize_then_sum with gdpo");
  expect_refused("mortise.advantage_estimator/remax", "remax subtracts the reward of the greedy completion");
}

// Keys that only a plugin's table defines: an error if the plugins in use do not have them.
TEST(Messages, KeysThatNoPluginInUseReadsAreTold) {
  const TaskFolder task;
  const auto told = [&](const std::string& settings) {
    const Outcome outcome = task.mortise("train run.toml --dry-run --json " + settings + " >/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  const auto expect_told = [](const std::string& output, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_NE(output.find(text), std::string::npos) << text << "\n" << output;
  };
  expect_told(told("algorithm.gamma=0.9 actor.policy_loss.loss_mode=gpg actor.clip_ratio_low=0.1 critic.ppo_epochs=2 "
                   "ref.sync_steps=5 ref.log_prob_max_token_len_per_gpu=512 actor.loss_scale_factor=8"),
              {"override 'algorithm.gamma=0.9': 'algorithm.gamma' has no effect: grpo has no parameter of this name",
               "'actor.clip_ratio_low' has no effect: gpg has no parameter of this name",
               "'critic' has no effect: there is no critic (grpo asks for no values)",
               "'ref.sync_steps' has no effect: there is no reference (actor.use_kl_loss and",
               "'ref.log_prob_max_token_len_per_gpu' has no effect: there is no reference",
               "'actor.loss_scale_factor' has no effect: the aggregation of gpg is token-mean, not"});
  expect_told(told("actor.use_kl_loss=true actor.kl_loss_type=full ref.log_prob_max_token_len_per_gpu=512"),
              {"'ref.log_prob_max_token_len_per_gpu' has no effect: the reference runs in the policy's own passes"});
  const std::string quiet = told(
      "algorithm.adv_estimator=gae algorithm.gamma=0.9 algorithm.lam=0.9 critic.ppo_epochs=2 "
      "actor.clip_ratio_low=0.1 algorithm.use_kl_in_reward=true ref.sync_steps=5 "
      "ref.log_prob_max_token_len_per_gpu=512 trainer.critic_warmup=2");
  EXPECT_EQ(quiet.find("has no effect"), std::string::npos) << quiet;
  const Outcome narrow =
      task.mortise("train run.toml --dry-run algorithm.adv_estimator=gae critic.ppo_max_token_len_per_gpu=4");
  EXPECT_EQ(narrow.code, 2) << narrow.output;
  EXPECT_NE(narrow.output.find("raise critic.ppo_max_token_len_per_gpu"), std::string::npos) << narrow.output;
  const Outcome idle = task.mortise("train run.toml --dry-run trainer.critic_warmup=3");
  EXPECT_EQ(idle.code, 2) << idle.output;
  EXPECT_NE(idle.output.find("'trainer.critic_warmup' is 3, but there is no critic"), std::string::npos) << idle.output;
}

// A row has at most 8 + 3 tokens. The token budget matters if a reference makes its own passes.
TEST(Messages, TheReferencesTokenBudgetIsJudgedWhereThereIsOne) {
  const TaskFolder task;
  const std::string narrow = "ref.log_prob_max_token_len_per_gpu=10 ";
  const std::pair<std::string, bool> cases[] = {
      {narrow, true},
      {narrow + "actor.use_kl_loss=true actor.kl_loss_type=full", true},
      {narrow + "algorithm.use_kl_in_reward=true ref.log_prob_micro_batch_size_per_gpu=4", true},
      {"algorithm.use_kl_in_reward=true ref.log_prob_max_token_len_per_gpu=11", true},
      {narrow + "algorithm.use_kl_in_reward=true", false},
      {narrow + "actor.use_kl_loss=true", false},
      {narrow + "actor.use_kl_loss=true actor.ppo_micro_batch_size_per_gpu=4 ref.log_prob_use_dynamic_bsz=true", false},
  };
  for (const auto& [settings, good] : cases) {
    const Outcome outcome = task.mortise("train run.toml --dry-run " + settings);
    EXPECT_EQ(outcome.code, good ? 0 : 2) << settings << outcome.output;
    for (const char* text : {"one row may have 11 tokens", "raise ref.log_prob_max_token_len_per_gpu"})
      EXPECT_EQ(outcome.output.find(text) == std::string::npos, good) << settings << outcome.output;
  }
}

TEST(Messages, DryRunWritesNothing) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml --dry-run");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("16 prompts x 8 samples = 128 rows"), std::string::npos) << outcome.output;
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
}

}  // namespace
}  // namespace mortise::test
