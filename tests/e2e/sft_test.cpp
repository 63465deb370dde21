// `mortise sft` on whole chats, against the log-probs of `mortise model logprob`; what `tokenizer` and `chat` leave
// behind when a row cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "foundation/formats/safetensors.h"
#include "program.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'a' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}={% endif %}{% endfor %}";

struct Chat {
  std::string question, answer, second_question, second_answer;
  [[nodiscard]] std::string text() const {
    return question + "=" + answer + "<|end|>" + second_question + "=" + second_answer + "<|end|>";
  }
};
const std::vector<Chat> kChats = {{"1+1", "2", "2+2", "4"}, {"3+4", "7", "5+1", "6"}, {"9+0", "9", "1+2", "3"}};

// Log-prob of each token of the chats but the first, by the model as it is.
std::vector<float> log_probs(const TaskFolder& task, std::vector<std::string>& tokens) {
  std::string rows;
  for (const Chat& chat : kChats) rows += Json{{"text", chat.text()}}.dump() + "\n";
  task.write("text.jsonl", rows);
  EXPECT_EQ(task.mortise("tokenizer encode --model model --in text.jsonl --out ids.jsonl").code, 0);
  std::vector<int64_t> ids;
  for (const Json& row : rows_of(task.path() / "ids.jsonl")) {
    for (const Json& id : row["ids"]) ids.push_back(id.get<int64_t>());
  }
  const auto num_rows = static_cast<int64_t>(kChats.size());
  const int64_t length = static_cast<int64_t>(ids.size()) / num_rows;
  EXPECT_EQ(length, 12);
  const std::vector<int64_t> ones(ids.size(), 1);
  const TensorView inputs[] = {view_of<int64_t>("in.input_ids", ids, {num_rows, length}),
                               view_of<int64_t>("in.attention_mask", ones, {num_rows, length})};
  EXPECT_TRUE(write_safetensors_file(default_env(), task.path() / "in.safetensors", inputs).ok());
  EXPECT_EQ(task.mortise("model logprob --model model --inputs in.safetensors --outputs out.safetensors").code, 0);
  const SafetensorsFile file = SafetensorsFile::open(default_env(), task.path() / "out.safetensors").value();
  const TensorView view = file.get("log_prob").value();
  const std::span<const float> values = view.as<float>();
  // Each token in words: a character, or E for the end.
  for (const Chat& chat : kChats) {
    std::string text = chat.text();
    for (size_t at = text.find("<|end|>"); at != std::string::npos; at = text.find("<|end|>")) text.replace(at, 7, "E");
    for (size_t i = 1; i < text.size(); ++i) tokens.push_back(text.substr(i, 1));
  }
  return {values.begin(), values.end()};
}

TEST(Sft, LearnsTheAssistantsTokensOfChatsOrAllOfThem) {
  const TaskFolder task;
  task.write("template.jinja", kTemplate);
  std::string chats, completions;
  for (const Chat& chat : kChats) {
    const auto turn = [](const char* role, const std::string& text) { return Json{{"role", role}, {"content", text}}; };
    const Json turns = Json::array({turn("u", chat.question), turn("a", chat.answer), turn("u", chat.second_question),
                                    turn("a", chat.second_answer)});
    chats += Json{{"messages", turns}}.dump() + "\n";
    completions +=
        Json{{"prompt", Json::array({turns[0], turns[1], turns[2]})}, {"response", Json::array({turns[3]})}}.dump() +
        "\n";
  }
  task.write("chats.jsonl", chats);
  task.write("completions.jsonl", completions);
  std::vector<std::string> tokens;
  const std::vector<float> log_prob = log_probs(task, tokens);
  ASSERT_EQ(log_prob.size(), tokens.size());
  // Positions of a row's eleven targets (in 1+1=2E2+2=4E all but the first character).
  const std::set<size_t> assistant = {3, 4, 9, 10}, completion = {9, 10};
  const auto mean = [&](const std::set<size_t>& places) {
    double sum = 0.0;
    int64_t count = 0;
    for (size_t i = 0; i < log_prob.size(); ++i) {
      if (!places.empty() && !places.contains(i % 11)) continue;
      sum -= static_cast<double>(log_prob[i]);
      ++count;
    }
    return sum / static_cast<double>(count);
  };
  for (const size_t place : assistant) {
    for (size_t row = 0; row < kChats.size(); ++row)
      EXPECT_TRUE(tokens[row * 11 + place] == "E" || tokens[row * 11 + place].find_first_of("234679") == 0);
  }
  struct Case {
    std::string settings;
    double loss;
    double num_learnt;
  };
  const Case cases[] = {
      {"data.train_files=chats.jsonl", mean({}), 33},
      {"data.train_files=chats.jsonl sft.assistant_only_loss=true", mean(assistant), 12},
      {"data.train_files=completions.jsonl", mean(completion), 6},
      {"data.train_files=completions.jsonl sft.assistant_only_loss=true sft.completion_only_loss=false",
       mean(assistant), 12},
      {"data.train_files=chats.jsonl sft.assistant_only_loss=true actor.ppo_micro_batch_size_per_gpu=1",
       mean(assistant), 12},
  };
  for (const Case& c : cases) {
    const Outcome outcome = task.mortise(
        "sft run.toml sft.total_training_steps=1 sft.train_batch_size=3 data.max_response_length=8 "
        "model.custom_chat_template=template.jinja --resume never " +
        c.settings);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
    ASSERT_FALSE(rows.empty());
    EXPECT_NEAR(rows.back()["loss"].get<double>(), c.loss, 1e-5) << c.settings;
    EXPECT_EQ(rows.back()["training/learnt_tokens"].get<double>(), c.num_learnt) << c.settings;
  }
  task.write("template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const Outcome unmarked = task.mortise(
      "sft run.toml sft.train_batch_size=3 model.custom_chat_template=template.jinja data.train_files=chats.jsonl "
      "sft.assistant_only_loss=true --resume never");
  EXPECT_EQ(unmarked.code, 3) << unmarked.output;
  for (const char* text : {"sft.assistant_only_loss", "{% generation %}", "model.custom_chat_template"})
    EXPECT_NE(unmarked.output.find(text), std::string::npos) << unmarked.output;
}

// Two ranks learn together. Nothing is sampled, and what compares completions to a reference does not count.
TEST(Sft, ADryRunSaysWhatAnUpdateTakesAndSends) {
  const TaskFolder task;
  std::string rows;
  for (const Chat& chat : kChats)
    rows += Json{{"prompt", chat.question + "="}, {"response", chat.answer}}.dump() + "\n";
  task.write("rows.jsonl", rows + rows);
  const std::string place = "RANK=0 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 ";
  const auto mortise = [&](const std::string& options) {
    return task.mortise(
        "sft run.toml data.train_files=rows.jsonl sft.train_batch_size=2 sft.total_training_steps=7 ranks.zero_stage=1 "
        "actor.ppo_micro_batch_size_per_gpu=1 algorithm.use_kl_in_reward=true " +
            options,
        place + program());
  };
  const Outcome shown = mortise("--dry-run");
  EXPECT_EQ(shown.code, 0) << shown.output;
  for (const char* text :
       {"# loss: the mean cross-entropy", "# data: 6 training rows, 3 updates per epoch\n",
        "# update: 2 rows of up to 11 tokens\n# run: 7 updates\n",
        "# ranks: 2 processes; they share about 2 passes of an update\n", " in all\n# memory: about "})
    EXPECT_THAT(shown.output, HasSubstr(text));
  for (const char* text : {"#   reference", "#   KV cache", "#   generator's copy"})
    EXPECT_THAT(shown.output, Not(HasSubstr(text)));
  const Outcome numbers = mortise("--dry-run --json 2>/dev/null");
  const Json run = parse_json(numbers.output, "dry run").value();
  const auto parameters = run["parameters"].get<int64_t>();
  EXPECT_EQ(run["rows_per_update"], 2);
  EXPECT_EQ(run["updates"], 7);
  // Half of the gradients and half of the new weights, of four bytes a number.
  EXPECT_EQ(run["ranks"]["bytes_sent_per_update"], 4 * parameters);
  EXPECT_EQ(run["ranks"]["bytes_sent_per_step"], 4 * parameters);
  EXPECT_GE(run["memory_bytes"]["gradients"], 4 * parameters) << "and messages that bring them to their owners";
  EXPECT_EQ(run["memory_bytes"]["optimizer"], 4 * parameters) << "half of two moments";
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
  EXPECT_EQ(mortise("--json").code, 2);
}

TEST(TokenizerAndChat, ABadRowLeavesTheOldFileAlone) {
  const TaskFolder task;
  task.write("t.jinja", "{{ messages[0].content }}");
  const std::string good = "{\"text\": \"1+1\", \"ids\": [2, 3], \"messages\": [{\"content\": \"1\"}]}\n";
  const struct {
    const char* command;
    const char* bad_row;
    const char* says;
  } cases[] = {
      {"tokenizer encode --model model", "{\"text\": 3}", "rows.jsonl:2: "},
      {"tokenizer encode --model model", "{\"text\": \"a\xFFz\"}", "rows.jsonl:2:12: not UTF-8 at byte 74"},
      {"tokenizer encode --model model", "{\"text\": \"\\ud800\"}", "rows.jsonl:2"},
      {"tokenizer decode --model model", "{\"ids\": [99]}", "rows.jsonl:2: the token id 99"},
      {"chat render --template t.jinja", "{\"messages\": 3}", "rows.jsonl:2: the key 'messages' must be a list"},
      {"chat render --template t.jinja", "{\"messages\": [", "rows.jsonl:2"},
  };
  for (const auto& c : cases) {
    task.write("rows.jsonl", good + c.bad_row + "\n");
    task.write("made/g.jsonl", "old\n");
    const Outcome outcome = task.mortise(std::string(c.command) + " --in rows.jsonl --out made/g.jsonl");
    EXPECT_EQ(outcome.code, 3) << c.command << outcome.output;
    EXPECT_NE(outcome.output.find(c.says), std::string::npos) << c.command << outcome.output;
    EXPECT_EQ(default_env().read_file(task.path() / "made/g.jsonl").value(), "old\n") << c.command;
    EXPECT_EQ(default_env().list_dir(task.path() / "made").value().size(), 1U) << c.command;
  }
  task.write("rows.jsonl", good);
  ASSERT_EQ(task.mortise("tokenizer encode --model model --in rows.jsonl --out made/g.jsonl").code, 0);
  EXPECT_EQ(rows_of(task.path() / "made/g.jsonl").size(), 1U);
  const Outcome shown = task.mortise("tokenizer encode --model model --in rows.jsonl --out /dev/stdout");
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_NE(shown.output.find("\"ids\""), std::string::npos) << shown.output;
}

}  // namespace
}  // namespace mortise::test
