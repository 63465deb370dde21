// The command line as a new user sees it: hints for misspelt words, a published loss with one key, lengths that fit,
// and pipes that close.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "program.h"

namespace mortise::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Commands, EveryMisspeltWordGetsTheRightOne) {
  const TaskFolder task;
  struct Misspelt {
    const char* args;
    const char* hint;
  };
  const Misspelt words[] = {
      {"trian run.toml", "there is no command 'trian'; did you mean 'train'?"},
      {"train run.toml --dryrun", "there is no option '--dryrun'; did you mean '--dry-run'?"},
      {"train run.toml --resum=auto", "did you mean '--resume'?"},
      {"sft run.toml --alow-change", "did you mean '--allow-change'?"},
      {"eval run.toml --jsn", "did you mean '--json' or '--n'?"},
      {"generate --modle model", "there is no option '--modle'; did you mean '--model'?"},
      {"model logprob --modl model", "did you mean '--model'?"},
      {"model savee", "there is no command 'savee'; did you mean 'save'?"},
      {"model save --modl x", "did you mean '--model'?"},
      {"model save --model model --out saved dtype=bfloat16", "unexpected word 'dtype=bfloat16'"},
      {"tokenizer encod", "there is no command 'encod'; did you mean 'encode'?"},
      {"tokenizer encode --modell model", "did you mean '--model'?"},
      {"chat rendr", "there is no command 'rendr'; did you mean 'render'?"},
      {"chat render --tempalte F", "did you mean '--template'?"},
      {"plugin lst", "there is no command 'lst'; did you mean 'list'?"},
      {"plugin list --jso", "did you mean '--json'?"},
      {"plugin list policy_los", "there is no kind 'policy_los'; did you mean 'policy_loss'?"},
      {"plugin eval reward length --outputt x", "there is no option '--outputt'; did you mean '--outputs'?"},
      {"plugin new reward a.b --langg c", "did you mean '--lang'?"},
      {"plugin check F --onyl x", "did you mean '--only'?"},
      {"objective evl", "there is no command 'evl'; did you mean 'eval'?"},
      {"objective eval --inputt F", "did you mean '--inputs'?"},
      {"config shwo", "there is no command 'shwo'; did you mean 'show'?"},
      {"config show --origin", "did you mean '--origins'?"},
      {"config explain --jsn", "did you mean '--json'?"},
      {"checkpoint verfy", "there is no command 'verfy'; did you mean 'verify'?"},
      {"checkpoint list out --jsn", "did you mean '--json'?"},
      {"doctor --dirr x", "did you mean '--dir'?"},
      {"config import --outputt x", "there is no option '--outputt'; did you mean '--output'?"},
  };
  for (const Misspelt& word : words) {
    const Outcome outcome = task.mortise(word.args);
    EXPECT_EQ(outcome.code, 2) << word.args;
    EXPECT_THAT(outcome.output, HasSubstr(word.hint)) << word.args;
  }
}

std::string health_of(const Json& report, const std::string& subject) {
  std::string worst;
  for (const Json& finding : report["findings"])
    if (finding["subject"] == subject && worst != "fails") worst = finding["health"].get<std::string>();
  return worst;
}

TEST(Commands, DoctorTriesWhatARunNeeds) {
  const TaskFolder task;
  const Outcome well = task.mortise("doctor --json --dir runs");
  const auto report = parse_json(well.output, "doctor");
  ASSERT_TRUE(report.ok()) << well.output;
  EXPECT_EQ(well.code, 0) << well.output;
  EXPECT_EQ((*report)["works"], true);
  for (const char* subject : {"disk", "packs", "workers"}) EXPECT_EQ(health_of(*report, subject), "ok") << well.output;
  // A note on a machine with a GPU and without libtorch's CUDA half.
  EXPECT_THAT(health_of(*report, "GPU"), testing::AnyOf("ok", "note")) << well.output;
  EXPECT_TRUE(std::filesystem::is_empty(task.path() / "runs"));  // nothing is left there
  // A file stands where the folder is to be.
  task.write("no_folder", "text");
  const Outcome blocked = task.mortise("doctor --json --dir no_folder/runs");
  EXPECT_EQ(blocked.code, 6) << blocked.output;
  EXPECT_EQ(health_of(parse_json(blocked.output, "doctor").value(), "disk"), "fails");
  // Without Python and bubblewrap on PATH a run is possible, and the report says what is missing.
  task.write("empty/file", "");
  const Outcome bare = run("PATH=$PWD/empty " + program() + " doctor --json", task.path());
  const Json notes = parse_json(bare.output, "doctor").value();
  EXPECT_EQ(health_of(notes, "python3"), "note") << bare.output;
  EXPECT_EQ(health_of(notes, "sandbox"), "note") << bare.output;
}

// A run needs no temporary files, but some commands do.
TEST(Commands, DoctorSaysThatThereIsNoFolderForTemporaryFiles) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("doctor --json --dir runs", "TMPDIR=nowhere " + program("mortise"));
  const auto report = parse_json(outcome.output, "doctor");
  ASSERT_TRUE(report.ok()) << outcome.output;
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(health_of(*report, "temporary files"), "note") << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("set TMPDIR to a folder in which you can write"));
  EXPECT_THAT(outcome.output, HasSubstr("nowhere"));
}

TEST(Commands, AWorkingFolderThatIsGoneIsSaid) {
  const TaskFolder task;
  std::filesystem::create_directory(task.path() / "gone");
  const Outcome outcome = run("cd gone && rmdir ../gone && " + program("mortise") + " doctor", task.path());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("the working folder cannot be found"));
}

// Its settings name every key.
TEST(Commands, EvalOfARunWarnsOfNoKeyThatNobodyHasSet) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise("train run.toml trainer.total_training_steps=1 rollout.n=2 data.val_files=data/val.jsonl "
                         "data.val_max_samples=4")
                .code,
            0);
  const Outcome outcome = task.mortise("eval out");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("has no effect")));
  EXPECT_THAT(task.mortise("eval out rollout.val_kwargs.top_p=0.5").output,
              HasSubstr("'rollout.val_kwargs.top_p' has no effect: validation is greedy"));
}

TEST(Commands, NoOutputReplacesWhatIsRead) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise("train run.toml trainer.total_training_steps=1 rollout.n=2").code, 0);
  ASSERT_EQ(task.mortise("train run.toml trainer.total_training_steps=1 rollout.n=2 model.lora_rank=2 "
                         "trainer.default_local_dir=lora")
                .code,
            0);
  task.write("chat.jinja", "{{ messages[0]['content'] }}");
  task.write("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1=\"}]}\n");
  task.write("prompts.jsonl", "{\"prompt\": \"1+1=\"}\n");
  task.write("scored.jsonl", "{\"prompt\": \"1\", \"completion\": \"1\"}\n");
  const std::pair<const char*, const char*> commands[] = {
      {"chat render --template chat.jinja --in chats.jsonl --out chat.jinja", "chat.jinja"},
      {"generate --model model --config run.toml --prompts prompts.jsonl --out ./run.toml", "run.toml"},
      {"plugin eval reward length --config run.toml --inputs scored.jsonl --outputs run.toml", "run.toml"},
      {"model save --model model --out new/../model/ --dtype float16", "model/model.safetensors"},
      {"model save --model lora/global_step_1/huggingface --out ./model", "model/model.safetensors"},
      {"report out -o out/./mortise.lock", "out/mortise.lock"},
      {"report out -o out/metrics.jsonl", "out/metrics.jsonl"}};
  for (const auto& [words, file] : commands) {
    const std::string before = default_env().read_file(task.path() / file).value();
    const Outcome outcome = task.mortise(words);
    EXPECT_EQ(outcome.code, 2) << words << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("name another output")) << words;
    EXPECT_EQ(default_env().read_file(task.path() / file).value(), before) << words;
  }
}

TEST(Commands, AnErrorAboutAFileOfSomeoneElseControlsNoTerminal) {
  const TaskFolder task;
  task.write("model/tokenizer.json", "{\"model\": {\"type\": \"\\u009b2J\\u001b[2J\"}}");
  task.write("texts.jsonl", "{\"text\": \"1\"}\n");
  const Outcome outcome = task.mortise("tokenizer encode --model model --in texts.jsonl --out ids.jsonl");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.output, HasSubstr("\\xc2\\x9b2J\\x1b[2J"));
}

TEST(Commands, ReportWritesOnePageAboutTwoRuns) {
  const TaskFolder task;
  const std::string train =
      "train run.toml trainer.total_training_steps=6 rollout.n=4 trainer.rollout_data_dir=a/dump "
      "trainer.rollout_data_tokens=8 actor.ppo_epochs=2 trainer.default_local_dir=";
  ASSERT_EQ(task.mortise(train + "a").code, 0);
  ASSERT_EQ(task.mortise(train + "b actor.optim.lr=1e-3 trainer.rollout_data_dir=b/dump").code, 0);
  const Outcome made = task.mortise("report a b -o page.html");
  ASSERT_EQ(made.code, 0) << made.output;
  const std::string page = default_env().read_file(task.path() / "page.html").value();
  EXPECT_THAT(page, HasSubstr("id=\"rows-0-6\""));
  EXPECT_THAT(page, HasSubstr("id=\"rows-1-1\""));
  EXPECT_THAT(page, HasSubstr("\"actor.optim.lr\":\"0.001\""));
  // The numbers of tokens are those of the first rows, and their texts are the completion.
  const std::vector<Json> rows = rows_of(task.path() / "a/dump/6.jsonl");
  EXPECT_FALSE(rows.at(8).contains("tokens"));
  bool has_moved = false;
  for (size_t i = 0; i < 8; ++i) {
    const Json& tokens = rows[i]["tokens"];
    const size_t size = rows[i]["token_ids"].size();
    for (const char* name : {"text", "advantage", "rollout_log_prob", "log_prob", "entropy", "ratio", "clipped"})
      ASSERT_EQ(tokens[name].size(), size) << name;
    std::string text;
    for (size_t t = 0; t < size; ++t) {
      text += tokens["text"][t].get<std::string>();
      EXPECT_EQ(tokens["advantage"][t].get<float>() == 0.0F, rows[i]["advantage"].get<float>() == 0.0F);
      EXPECT_NEAR(tokens["log_prob"][t].get<double>(), tokens["rollout_log_prob"][t].get<double>(), 1e-4);
      EXPECT_GT(tokens["ratio"][t].get<double>(), 0.0);
      EXPECT_GE(tokens["entropy"][t].get<double>(), 0.0);
      has_moved = has_moved || tokens["ratio"][t] != 1.0;
    }
    EXPECT_THAT(text, testing::StartsWith(rows[i]["output"].get<std::string>()));
  }
  EXPECT_TRUE(has_moved) << "the second pass sees another policy than the first";
  const Outcome top = task.mortise("top a");
  EXPECT_EQ(top.code, 0) << top.output;
  EXPECT_THAT(top.output, HasSubstr("step 6/6"));
  EXPECT_THAT(top.output, HasSubstr("the run is done"));
  EXPECT_THAT(task.mortise("top data").output, HasSubstr("there is no metrics.jsonl in this folder"));
  const Json findings = parse_json(task.mortise("report a --json").output, "report").value();
  EXPECT_EQ(findings["runs"][0]["last_step"], 6);
  EXPECT_THAT(task.mortise("report data").output, HasSubstr("there is no metrics.jsonl in this folder"));
}

TEST(Commands, AFailedRunSaysSoAfterwards) {
  const TaskFolder task;
  const std::string train =
      "train run.toml trainer.total_training_steps=6 rollout.n=4 reward.0.pattern=^ trainer.zero_variance_limit=0.9 "
      "trainer.default_local_dir=a";
  ASSERT_NE(task.mortise(train).code, 0);
  const Outcome top = task.mortise("top a");
  EXPECT_THAT(top.output, HasSubstr("the run failed: the end of log.txt says why"));
  const Json findings = parse_json(task.mortise("report a --json").output, "report").value()["runs"][0]["findings"];
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0]["rule"], "failed_run");
  EXPECT_THAT(findings[0]["evidence"].get<std::string>(), HasSubstr("trainer.zero_variance_limit"));
  EXPECT_THAT(task.mortise("report b").output, HasSubstr("b: this folder does not exist"));
}

TEST(Commands, AModelInsideACheckpointIsFound) {
  const TaskFolder task;
  std::filesystem::create_directories(task.path() / "runs/a/global_step_3");
  std::filesystem::copy(task.path() / "model", task.path() / "runs/a/global_step_3/huggingface",
                        std::filesystem::copy_options::recursive);
  task.write("runs/a/latest", "global_step_3\n");
  const std::string hint = "did you mean 'runs/a/global_step_3/huggingface'?";
  for (const std::string path : {"runs/a/global_step_3", "runs/a"}) {
    const Outcome outcome = task.mortise("train run.toml model.path=" + path);
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(hint)) << path;
  }
  EXPECT_THAT(task.mortise("train run.toml model.path=modle").output, HasSubstr("did you mean 'model'?"));
  task.write("prompts.jsonl", "{\"prompt\": \"1+1=\"}\n");
  EXPECT_THAT(task.mortise("generate --model runs/a/global_step_3 --prompts prompts.jsonl --out o.jsonl").output,
              HasSubstr(hint));
}

// The name is looked at before the settings are compared: --allow-change would not have helped.
TEST(Commands, AMisspeltPluginInAnOldRunFolderIsNoChangeOfSettings) {
  const TaskFolder task;
  const std::string short_run = "train run.toml trainer.total_training_steps=1 rollout.n=2";
  const Outcome first = task.mortise(short_run);
  ASSERT_EQ(first.code, 0) << first.output;
  const Outcome outcome = task.mortise(short_run + " actor.policy_loss.loss_mode=gspoo reward.0.use=regexx");
  EXPECT_EQ(outcome.code, 4) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("'gspoo'; did you mean 'gspo'"));
  EXPECT_THAT(outcome.output, HasSubstr("'regexx'; did you mean 'regex'"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("--allow-change")));
}

// loss_mode=gspo, and nothing else, is GSPO as published.
TEST(Commands, OneKeyGivesGspoAsPublished) {
  const TaskFolder task;
  const std::string published =
      "policy loss gspo: clip_ratio_low 0.0003, clip_ratio_high 0.0004, loss_agg_mode seq-mean-token-mean\n";
  const std::string key = " actor.policy_loss.loss_mode=gspo";
  EXPECT_THAT(task.mortise("train run.toml --dry-run" + key).output, HasSubstr("# " + published));
  EXPECT_THAT(task.mortise("train run.toml --dry-run preset=gspo").output, HasSubstr("# " + published));
  const std::string shown = task.mortise("config show run.toml" + key).output;
  EXPECT_THAT(shown, HasSubstr("# clip_ratio_low = null  # gspo: 0.0003\n"));
  EXPECT_THAT(shown, HasSubstr("# clip_ratio_high = null  # gspo: 0.0004\n"));
  EXPECT_THAT(shown, HasSubstr("loss_agg_mode = \"auto\"  # gspo: seq-mean-token-mean\n"));
  EXPECT_THAT(task.mortise("config explain actor.clip_ratio_low").output,
              ::testing::ContainsRegex("Parameter of the policy_loss [^\n]*gspo[^\n]*: the paper's clip_ratio_low"));

  // The user's setting wins, and the line shows the difference from the paper.
  const Outcome run = task.mortise(
      "train run.toml trainer.total_training_steps=1 rollout.n=2 actor.clip_ratio=0.2 actor.loss_agg_mode=token-mean" +
      key);
  ASSERT_EQ(run.code, 0) << run.output;
  const std::string departs =
      "policy loss gspo: clip_ratio_low 0.2 (override 'actor.clip_ratio=0.2'; its own: 0.0003), clip_ratio_high 0.2 "
      "(override 'actor.clip_ratio=0.2'; its own: 0.0004), loss_agg_mode token-mean (override "
      "'actor.loss_agg_mode=token-mean'; its own: seq-mean-token-mean)\n";
  EXPECT_THAT(run.output, HasSubstr(departs));
  EXPECT_THAT(default_env().read_file(task.path() / "out/log.txt").value(), HasSubstr(departs));

  // The console and the run's log show the keys that a preset replaces.
  const Outcome preset = task.mortise(
      "train run.toml trainer.default_local_dir=other trainer.total_training_steps=1 preset=dapo "
      "algorithm.filter_groups.enable=false");
  ASSERT_EQ(preset.code, 0) << preset.output;
  const std::string told = "preset dapo replaces rollout.n = 8 (run.toml:";
  EXPECT_THAT(preset.output, HasSubstr(told));
  EXPECT_THAT(preset.output, HasSubstr("preset dapo is overridden: "));
  EXPECT_THAT(default_env().read_file(task.path() / "other/log.txt").value(), HasSubstr(told));
}

TEST(Commands, AReaderThatLeavesIsNoError) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("plugin describe --all --json | head -1; echo \"codes ${PIPESTATUS[@]}\" ");
  EXPECT_THAT(outcome.output, Not(HasSubstr("error")));
  const Outcome piped = run(
      "bash -c '" + program() + " config schema | { read -r line; exec 0<&-; sleep 1; }; echo code ${PIPESTATUS[0]}'",
      task.path());
  EXPECT_EQ(piped.output, "code 141\n");
}

TEST(Commands, CompletionsFitAShortModelUnlessTold) {
  const TaskFolder task;
  task.write("prompts.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"12+34=\"}\n");
  const std::string generate = "generate --model model --prompts prompts.jsonl --out o.jsonl ";
  const Outcome outcome = task.mortise(generate + "rollout.ignore_eos=true");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("completions of 2 of 2 prompts end before the default of 512 tokens"));
  const std::vector<Json> rows = rows_of(task.path() / "o.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  const auto length = [](const Json& row) {
    return row["prompt_token_ids"].size() + row["completions"][0]["token_ids"].size();
  };
  EXPECT_EQ(length(rows[0]), length(rows[1])) << "both fill the model's positions";
  EXPECT_EQ(rows[0]["completions"][0]["finish_reason"], "length");
  EXPECT_EQ(task.mortise(generate + "rollout.response_length=512").code, 3) << "what a person asks for is not changed";
}

// A table of chats shows the user's last turn of each.
TEST(Commands, CompletionsOfChatsShowTheUsersLastTurn) {
  const TaskFolder task;
  task.write("template.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
  std::string rows;
  for (int i = 0; i < 16; ++i)
    rows += R"({"messages": [{"role": "system", "content": "0"}, {"role": "user", "content": ")" +
            std::to_string(10 + i) + "+1=\"}]}\n";
  task.write("chats.jsonl", rows);
  const Outcome outcome = task.mortise(
      "train run.toml trainer.total_training_steps=1 rollout.n=2 data.train_files=chats.jsonl data.shuffle=false "
      "model.custom_chat_template=template.jinja trainer.num_completions_to_print=3");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\n10+1= "));
  EXPECT_THAT(outcome.output, HasSubstr("\n11+1= "));
}

}  // namespace
}  // namespace mortise::test
