// Reward models: the scores of transformers for the same texts, and the errors if there can be no score.
#include "train/loop/score_model.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/safetensors.h"
#include "plugin/host/host_services.h"
#include "support/golden_models.h"
#include "support/locked_device.h"
#include "support/temp_dir.h"
#include "train/loop/critic.h"
#include "train/loop/score_extension.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Path kGolden = Path(MORTISE_SOURCE_DIR) / "tests/golden/reward_model";

std::string text_in(const Json& row, const char* key) {
  const Json* value = json_find(row, key);
  if (value == nullptr) return "";
  return value->is_string() ? value->get<std::string>() : dump_json(*value);
}

// A case of cases.jsonl with the texts that its ScoreRow borrows.
struct Case {
  explicit Case(Json json)
      : row(std::move(json)),
        prompt(text_in(row, "prompt")),
        completion(text_in(row, "completion")),
        messages(text_in(row, "messages")),
        tools(text_in(row, "tools")) {}
  [[nodiscard]] ScoreRow view() const { return {prompt, completion, messages, tools}; }
  [[nodiscard]] bool has_options() const { return row.contains("max_length") || row.contains("plain_text"); }
  [[nodiscard]] double score() const { return row["score"].get<double>(); }
  Json row;
  std::string prompt, completion, messages, tools;
};

std::vector<Case> all_cases() {
  std::vector<Case> out;
  auto reader = JsonlReader::open(default_env(), kGolden / "cases.jsonl");
  while (reader.ok()) {
    auto row = reader->next();
    if (!row.ok() || !row->has_value()) break;
    out.emplace_back((*row)->value);
  }
  return out;
}

ScoreModelOptions options_of(const Json& row) {
  ScoreModelOptions out;
  out.folder = kGolden / "model";
  out.plain_text = row.value("plain_text", false);
  out.max_length = row.value("max_length", 0);
  out.truncation = parse_choice<Truncation>(row.value("truncation", std::string("error"))).value();
  return out;
}

ScoreModel load(const ScoreModelOptions& options) {
  auto made = ScoreModel::load(default_env(), options);
  if (!made.ok()) {
    ADD_FAILURE() << made.error().to_string();
    std::abort();
  }
  return std::move(made).value();
}

// The errors of loading a copy of the folder with some files replaced.
class ScoreModelFolder : public testing::Test {
 protected:
  ScoreModelFolder() {
    for (const auto& entry : std::filesystem::directory_iterator(kGolden / "model"))
      std::filesystem::copy(entry.path(), dir_ / entry.path().filename().string());
  }
  [[nodiscard]] std::string error() const {
    ScoreModelOptions options;
    options.folder = dir_.path();
    const auto made = ScoreModel::load(default_env(), options);
    if (made.ok()) return "loaded";
    EXPECT_EQ(made.error().kind, ErrorKind::kData) << made.error().to_string();
    return made.error().to_string();
  }
  void change_config(const std::function<void(Json&)>& change) const {
    auto config = parse_json(dir_.read("config.json"), "config.json");
    ASSERT_TRUE(config.ok());
    change(*config);
    dir_.write("config.json", dump_json(*config));
  }
  TempDir dir_;
};

// As a plugin sees it: the status and text of open().
struct Opening {
  explicit Opening(const Path& folder, int64_t max_length = 0, const std::string& chat_template = "") {
    offer_score_models();
    const auto* table =
        static_cast<const mortise_score_model_vtable*>(host_table()->get_extension(MORTISE_EXT_SCORE_MODEL));
    const std::string name = folder.string();
    mortise_score_model_options options{};
    options.struct_size = sizeof options;
    options.folder = {name.data(), name.size()};
    options.chat_template = {chat_template.data(), chat_template.size()};
    options.max_length = max_length;
    void* model = nullptr;
    status = table->open(host_table(), &call, &options, &model);
    if (model != nullptr) table->close(model);
  }
  mortise_call call;
  int32_t status = MORTISE_OK;
};

TEST(ScoreModel, GivesTheScoresOfTransformers) {
  const std::vector<Case> cases = all_cases();
  ASSERT_GE(cases.size(), 15U);
  for (const Case& one : cases) {
    const ScoreModel model = load(options_of(one.row));
    const ScoreRow row = one.view();
    const auto scores = model.score({&row, 1}, {});
    ASSERT_TRUE(scores.ok()) << scores.error().to_string();
    ASSERT_FALSE((*scores)[0].error) << one.row.dump() << "\n" << (*scores)[0].error->to_string();
    EXPECT_NEAR((*scores)[0].score, one.score(), 1e-4) << one.row.dump();
    if (!one.row.contains("max_length")) {
      EXPECT_EQ((*scores)[0].num_tokens, one.row["num_tokens"].get<int64_t>()) << one.row.dump();
    }
  }
}

// A reward model as TRL saves one that it trained by LoRA: a language model in base/ and, in adapter/, the matrices and
// the head that make the golden model of it.
Path lora_reward_model(const TempDir& dir) {
  constexpr size_t kRank = 2, kWidth = 32;
  constexpr float kScale = 2.0F;
  std::filesystem::copy(kGolden / "model", dir / "base");
  Json config = *read_json_file(default_env(), dir / "base/config.json");
  config["architectures"] = Json::array({"Qwen2ForCausalLM"});
  config["tie_word_embeddings"] = true;
  for (const char* key : {"id2label", "label2id"}) config.erase(key);
  dir.write("base/config.json", dump_json(config));
  std::vector<float> a(kRank * kWidth), b(kWidth * kRank), query(kWidth * kWidth);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 0.01F * static_cast<float>(i % 13) - 0.05F;
  for (size_t i = 0; i < b.size(); ++i) b[i] = 0.02F * static_cast<float>(i % 11) - 0.1F;
  const auto whole = SafetensorsFile::open(default_env(), kGolden / "model/model.safetensors");
  EXPECT_TRUE(whole.ok());
  const std::string module = "model.layers.0.self_attn.q_proj";
  const std::string prefix = "base_model.model.";
  std::vector<TensorView> base, adapter = {view_of<float>(prefix + module + ".lora_A.weight", a, {kRank, kWidth}),
                                           view_of<float>(prefix + module + ".lora_B.weight", b, {kWidth, kRank})};
  for (TensorView view : whole->tensors()) {
    if (view.name == kScoreHead) {
      view.name = prefix + kScoreHead;
      adapter.push_back(view);
      continue;
    }
    if (view.name == module + ".weight") {
      std::memcpy(query.data(), view.bytes.data(), view.bytes.size());
      for (size_t i = 0; i < query.size(); ++i) {
        for (size_t r = 0; r < kRank; ++r) query[i] -= kScale * b[i / kWidth * kRank + r] * a[r * kWidth + i % kWidth];
      }
      view.bytes = std::as_bytes(std::span(query));
    }
    base.push_back(view);
  }
  EXPECT_OK(default_env().create_dirs(dir / "adapter"));
  EXPECT_OK(write_safetensors_file(default_env(), dir / "base/model.safetensors", base));
  EXPECT_OK(write_safetensors_file(default_env(), dir / "adapter/adapter_model.safetensors", adapter));
  dir.write("adapter/adapter_config.json",
            R"({"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": "../base", "r": 2,
                "lora_alpha": 4, "target_modules": ["q_proj"], "modules_to_save": ["classifier", "score"]})");
  return dir / "adapter";
}

// By a device's code, in memory that the host cannot touch: also with an adapter's matrices in the model.
TEST(ScoreModel, ScoresOnADeviceAreThoseOfTransformers) {
  const TempDir dir;
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& one) { return one.has_options(); });
  ASSERT_GE(cases.size(), 2U);
  cases.erase(cases.begin() + 2, cases.end());  // such a device is slow
  for (const Path& folder : {kGolden / "model", lora_reward_model(dir)}) {
    ScoreModelOptions options;
    options.folder = folder;
    options.device = {.device = locked_device(), .by_operators = true, .text = "locked memory"};
    const ScoreModel model = load(options);
    const long before = operators_on_locked_device();
    std::vector<ScoreRow> rows;
    for (const Case& one : cases) rows.push_back(one.view());
    const auto scores = model.score(rows, {});
    ASSERT_OK(scores);
    for (size_t i = 0; i < cases.size(); ++i) EXPECT_NEAR((*scores)[i].score, cases[i].score(), 1e-4) << i;
    EXPECT_GT(operators_on_locked_device(), before);
  }
}

TEST(ScoreModel, ScoresDoNotDependOnWhatIsComputedBeside) {
  const std::vector<Case> cases = all_cases();
  for (const int64_t batch_size : {1, 3, 64}) {
    ScoreModelOptions options;
    options.folder = kGolden / "model";
    options.batch_size = batch_size;
    const ScoreModel model = load(options);
    std::vector<ScoreRow> rows;
    std::vector<double> expected;
    for (const Case& one : cases) {
      if (one.has_options()) continue;
      rows.push_back(one.view());
      expected.push_back(one.score());
    }
    const auto scores = model.score(rows, {});
    ASSERT_TRUE(scores.ok()) << scores.error().to_string();
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR((*scores)[i].score, expected[i], 1e-4) << batch_size;
  }
}

TEST(ScoreModel, ALoraRewardModelGivesTheScoresOfTransformers) {
  const TempDir dir;
  ScoreModelOptions options;
  options.folder = lora_reward_model(dir);
  const auto config = read_score_config(default_env(), options.folder);
  ASSERT_OK(config);
  EXPECT_EQ(config->num_labels, 1);
  const ScoreModel model = load(options);
  int num_scored = 0;
  for (const Case& one : all_cases()) {
    if (one.has_options()) continue;
    const ScoreRow row = one.view();
    const auto scores = model.score({&row, 1}, {});
    ASSERT_OK(scores);
    EXPECT_NEAR((*scores)[0].score, one.score(), 1e-4) << one.row.dump();
    ++num_scored;
  }
  EXPECT_GE(num_scored, 10);
  // The base without the adapter is a language model.
  EXPECT_THAT(error_of(read_score_config(default_env(), dir / "base")), HasSubstr("this is a language model"));
}

TEST(CriticModel, BeginsFromAnAdaptersHeadAndRefusesDropout) {
  const TempDir dir;
  const Path adapter = lora_reward_model(dir);
  const auto critic = open_critic_model(default_env(), adapter, "float32", 1);
  ASSERT_OK(critic);
  const auto whole = Model::load(default_env(), kGolden / "model");
  ASSERT_OK(whole);
  EXPECT_TRUE(critic->config().is_classifier);
  EXPECT_TRUE(critic->find_parameter(kScoreHead)->tensor.equal(whole->find_parameter(kScoreHead)->tensor));
  const auto fresh = open_critic_model(default_env(), dir / "base", "float32", 1);
  ASSERT_OK(fresh);
  EXPECT_THAT(fresh->config().config_text, HasSubstr("Qwen2ForSequenceClassification"));
  EXPECT_FALSE(fresh->find_parameter(kScoreHead)->tensor.equal(whole->find_parameter(kScoreHead)->tensor));
  Json config = *read_json_file(default_env(), dir / "base/config.json");
  config["attention_dropout"] = 0.1;
  dir.write("base/config.json", dump_json(config));
  ScoreModelOptions options;
  options.folder = adapter;
  EXPECT_OK(ScoreModel::load(default_env(), options));
  EXPECT_THAT(error_of(open_critic_model(default_env(), adapter, "float32", 1)),
              AllOf(HasSubstr("base/config.json"), HasSubstr("'attention_dropout' = 0.1")));
}

void expect_head_of_seed(const Path& folder) {
  const Model language = Model::load(default_env(), folder).value();
  Model critic = open_critic_model(default_env(), folder, "float32", 7).value();
  ASSERT_OK(critic.read_parts());
  const Model made = Model::random(critic_config(default_env(), folder).value(), 7).value();
  ASSERT_EQ(critic.parameters().size(), made.parameters().size());
  for (size_t i = 0; i < made.parameters().size(); ++i) {
    const NamedParameter& got = critic.parameters()[i];
    EXPECT_TRUE(got.tensor.requires_grad()) << got.name;
    const NamedParameter* const read = language.find_parameter(got.name);
    EXPECT_TRUE(got.tensor.equal(read != nullptr ? read->tensor : made.parameters()[i].tensor)) << got.name;
  }
}

// Also that of an adapter, which may have a head of the language model too.
TEST(CriticModel, OfALanguageModelGetsTheHeadOfItsSeed) {
  const Path base = test::golden_model("qwen2_untied_sharded");
  expect_head_of_seed(base);
  const TempDir dir;
  LoraChoice choice{.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "down_proj"}};
  for (const std::string saved : {"lm_head", "embed_tokens"}) {
    choice.modules_to_save = {saved};
    Model trained = Model::load(default_env(), base).value();
    ASSERT_OK(trained.train_lora(choice, 4));
    const at::NoGradGuard no_grad;
    for (const NamedParameter& one : trained.trainable()) one.tensor.add_(0.125);
    ASSERT_OK(trained.save(default_env(), dir / saved, {.lora = LoraSave::kApart, .base_model = base.string()}));
    expect_head_of_seed(dir / saved);
  }
}

TEST(ScoreModel, ARowThatCannotBeScoredCostsItself) {
  ScoreModelOptions options;
  options.folder = kGolden / "model";
  options.max_length = 12;
  const ScoreModel model = load(options);
  const std::vector<ScoreRow> rows = {{"12+34=", "46", "", ""},
                                      {"", "", "", ""},
                                      {"", std::string_view("a long completion, longer than twelve tokens"), "", ""},
                                      {"", "4\xFF", "", ""},
                                      {"", "46", "[{\"role\": \"user\"", ""},
                                      {"", "46", "{}", ""}};
  const auto scores = model.score(rows, {});
  ASSERT_TRUE(scores.ok()) << scores.error().to_string();
  EXPECT_FALSE((*scores)[0].error);
  EXPECT_TRUE(std::isfinite((*scores)[0].score));
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_TRUE((*scores)[i].error) << i;
    EXPECT_TRUE(std::isnan((*scores)[i].score)) << i;
  }
  EXPECT_THAT((*scores)[1].error->to_string(), HasSubstr("there is nothing to score"));
  EXPECT_THAT((*scores)[2].error->to_string(),
              AllOf(HasSubstr("more than the reward model's max_length = 12"), HasSubstr("truncation = \"left\"")));
  EXPECT_GT((*scores)[2].num_tokens, 12);
  EXPECT_THAT((*scores)[5].error->to_string(), HasSubstr("are not a list"));
}

TEST(ScoreModel, StopsBetweenPasses) {
  ScoreModelOptions options;
  options.folder = kGolden / "model";
  options.batch_size = 1;
  const ScoreModel model = load(options);
  const std::vector<ScoreRow> rows(4, ScoreRow{"1+1=", "2", "", ""});
  int asked = 0;
  const auto scores = model.score(rows, [&] { return ++asked == 3; });
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().kind, ErrorKind::kSignal);
  EXPECT_EQ(asked, 3);
}

TEST_F(ScoreModelFolder, HasToBeThatOfAClassifierOfOneLabel) {
  EXPECT_EQ(error(), "loaded");
  change_config([](Json& config) {
    config["id2label"] = {{"0", "bad"}, {"1", "good"}};
    config["label2id"] = {{"bad", 0}, {"good", 1}};
  });
  EXPECT_THAT(error(), AllOf(HasSubstr(dir_.path().string()), HasSubstr("has one label, and this classifier has 2")));
  change_config([](Json& config) { config["architectures"] = Json::array({"Qwen2ForCausalLM"}); });
  EXPECT_THAT(error(), AllOf(HasSubstr("this is a language model"), HasSubstr("sequence classifier with one label")));
  std::filesystem::remove(dir_ / "config.json");
  EXPECT_THAT(error(), AllOf(HasSubstr(dir_.path().string()), HasSubstr("no config.json")));
}

TEST_F(ScoreModelFolder, TheStatusOfAnOpeningIsThatOfItsCause) {
  EXPECT_EQ(Opening(dir_.path()).status, MORTISE_OK);
  const auto expect = [&](const Opening& opening, int32_t status, const std::string& says) {
    EXPECT_EQ(status_name(opening.status), status_name(status)) << opening.call.fail_text;
    EXPECT_THAT(opening.call.fail_text, HasSubstr(says));
    EXPECT_TRUE(opening.call.bad_file);
  };
  expect(Opening(dir_ / "nowhere"), MORTISE_NOT_FOUND, "there is no model folder");
  expect(Opening(dir_.path(), 0, (dir_ / "none.jinja").string()), MORTISE_NOT_FOUND, "none.jinja");
  expect(Opening(dir_.path(), 0, dir_.write("odd.jinja", "{% if %}").string()), MORTISE_INVALID_ARGUMENT, "odd.jinja");
  const std::string weights = dir_.read("model.safetensors");
  dir_.write("model.safetensors", weights.substr(0, weights.size() / 2));
  expect(Opening(dir_.path()), MORTISE_DATA_LOSS, "model.safetensors");
  dir_.write("tokenizer.json", "{");
  expect(Opening(dir_.path()), MORTISE_DATA_LOSS, "tokenizer.json");
  std::filesystem::remove(dir_ / "tokenizer.json");
  expect(Opening(dir_.path()), MORTISE_NOT_FOUND, "tokenizer");
  change_config([](Json& config) { config["architectures"] = Json::array({"Qwen2ForCausalLM"}); });
  expect(Opening(dir_.path()), MORTISE_INVALID_ARGUMENT, "this is a language model");
  dir_.write("config.json", "{\"architectures\": [");
  expect(Opening(dir_.path()), MORTISE_DATA_LOSS, "config.json");
}

TEST_F(ScoreModelFolder, ALimitBeyondItsPositionsIsTold) {
  const auto log_of = [&](int64_t max_length) {
    const Path file = dir_ / ("log" + std::to_string(max_length));
    EXPECT_TRUE(log_init({.console_level = LogLevel::kOff, .file = file, .force_plain = true}).ok());
    EXPECT_EQ(Opening(dir_.path(), max_length).status, MORTISE_OK);
    log_flush();
    return default_env().read_file(file).value();
  };
  EXPECT_THAT(log_of(257), HasSubstr("max_length = 257 is more than its max_position_embeddings = 256"));
  EXPECT_THAT(log_of(256), testing::Not(HasSubstr("max_position_embeddings")));
}

TEST_F(ScoreModelFolder, NeedsATokenizerAndForChatsATemplate) {
  std::filesystem::remove(dir_ / "chat_template.jinja");
  auto config = parse_json(dir_.read("tokenizer_config.json"), "tokenizer_config.json");
  ASSERT_TRUE(config.ok());
  config->erase("chat_template");
  dir_.write("tokenizer_config.json", dump_json(*config));
  ScoreModelOptions options;
  options.folder = dir_.path();
  const ScoreRow row{"1+1=", "2", R"([{"role": "user", "content": "1+1="}])", ""};
  {
    const ScoreModel model = load(options);
    const auto scores = model.score({&row, 1}, {});
    ASSERT_TRUE(scores.ok());
    ASSERT_TRUE((*scores)[0].error);
    EXPECT_THAT((*scores)[0].error->to_string(),
                AllOf(HasSubstr("the reward model has no chat template"), HasSubstr("plain_text = true")));
  }
  // A template from elsewhere that writes what the plain row is.
  options.chat_template = dir_.write("own.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const ScoreModel model = load(options);
  const std::vector<ScoreRow> both = {row, {"1+1=", "2", "", ""}};
  const auto scores = model.score(both, {});
  ASSERT_TRUE(scores.ok());
  EXPECT_NEAR((*scores)[0].score, (*scores)[1].score, 1e-5);
  std::filesystem::remove(dir_ / "tokenizer.json");
  EXPECT_THAT(error(), HasSubstr("tokenizer"));
}

}  // namespace
}  // namespace mortise::test
