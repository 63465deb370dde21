// Binary packs of other days and compilers: each loads, and gives the bits of expected.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <bit>
#include <filesystem>
#include <set>

#include "foundation/base/env.h"
#include "foundation/formats/json.h"
#include "foundation/formats/sha256.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/advantage_estimator.h"
#include "plugin/host/kinds/environment.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/kinds/rollout_backend.h"
#include "plugin/host/plugin_reads.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

const Path kMuseum = Path(MORTISE_SOURCE_DIR) / "tests" / "museum";
const Path kPieces = kMuseum / "pieces";

Json read_json(const std::string& name) {
  const auto text = default_env().read_file(kMuseum / name);
  auto json = parse_json(text.ok() ? *text : "null", name, {});
  if (!json.ok()) ADD_FAILURE() << json.error().to_string();
  return json.ok() ? *std::move(json) : Json();
}

std::string bits_of(float value) { return fmt::format("{:08x}", std::bit_cast<uint32_t>(value)); }
std::string bits_of(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:016x}", std::bit_cast<uint64_t>(value));
}
template <class T>
Json all_bits(const std::vector<T>& values) {
  Json out = Json::array();
  for (const T value : values) out.push_back(bits_of(value));
  return out;
}

// The token tensors of expected.json.
struct Tokens {
  explicit Tokens(const Json& json) {
    const auto read = [&](const char* name) { return json.at(name).get<std::vector<float>>(); };
    offsets = json.at("row_offsets").get<std::vector<int64_t>>();
    group = json.at("group_index").get<std::vector<int64_t>>();
    for (size_t row = 0; row < group.size(); ++row) row_id.push_back(static_cast<int64_t>(row));
    mask = json.at("mask").get<std::vector<uint8_t>>();
    valid = json.at("row_valid").get<std::vector<uint8_t>>();
    log_prob = read("log_prob"), old = read("old_log_prob"), ref = read("ref_log_prob");
    advantages = read("advantages"), weight = read("weight"), rewards = read("token_level_rewards");
    first.resize(mask.size()), second.resize(mask.size());
  }
  [[nodiscard]] StepView view() const {
    StepView in;
    in.layout = {offsets, row_id, group};
    in.step = 1;
    in.set<column::LogProb>(log_prob).set<column::OldLogProb>(old).set<column::RefLogProb>(ref);
    in.set<column::Advantages>(advantages).set<column::ResponseMask>(mask).set<column::Weight>(weight);
    in.set<column::TokenLevelRewards>(rewards).set<column::RowValid>(valid);
    return in;
  }
  [[nodiscard]] Json outputs() const { return {{"first", all_bits(first)}, {"second", all_bits(second)}}; }

  std::vector<int64_t> offsets, group, row_id;
  std::vector<uint8_t> mask, valid;
  std::vector<float> log_prob, old, ref, advantages, weight, rewards, first, second;
};

Result<Json> run_loss(PluginRegistry& registry, const Json& params, const Json& inputs) {
  PolicyLoss loss = TRY(PolicyLoss::create(registry, "piece", params, {}));
  Tokens tokens(inputs.at("tokens"));
  MetricSet metrics;
  TRY(loss.compute(tokens.view(), {tokens.first, tokens.second, {}}, &metrics));
  EXPECT_EQ(metrics.value("museum/tokens"), 1.0);
  return tokens.outputs();
}

Result<Json> run_kl(PluginRegistry& registry, const Json& params, const Json& inputs) {
  KlEstimator kl = TRY(KlEstimator::create(registry, "piece", params, {}));
  Tokens tokens(inputs.at("tokens"));
  TRY(kl.compute(tokens.view(), {tokens.first, tokens.second}, nullptr));
  return tokens.outputs();
}

Result<Json> run_advantage(PluginRegistry& registry, const Json& params, const Json& inputs) {
  AdvantageEstimator estimator = TRY(AdvantageEstimator::create(registry, "piece", params, {}));
  Tokens tokens(inputs.at("tokens"));
  AdvantageInput in;
  in.columns = tokens.view();
  TRY(estimator.compute(in, {tokens.first, tokens.second}, nullptr));
  return tokens.outputs();
}

Result<Json> run_reward(PluginRegistry& registry, const Json& params, const Json& inputs) {
  Reward reward = TRY(Reward::create(registry, "piece", params, {}));
  RewardBatch rows;
  DataColumn answer;
  answer.name = params.contains("column") ? params.at("column").get<std::string>() : "answer";
  for (const Json& text : inputs.at("rewards").at("completions")) {
    rows.completion.append(text.get<std::string>());
    rows.row_id.push_back(rows.num_rows);
    rows.group_index.push_back(rows.num_rows++);
  }
  for (const Json& text : inputs.at("rewards").at("answers")) {
    answer.text.append(text.is_null() ? "" : text.get<std::string>());
    answer.valid.push_back(text.is_null() ? 0 : 1);
  }
  rows.columns.push_back(std::move(answer));
  const RewardOutput out = TRY(reward.score(rows, nullptr));
  return Json{{"rewards", all_bits(out.rewards)}};
}

Result<Json> run_rollout(PluginRegistry& registry, const Json& params, const Json& inputs) {
  RolloutBackend backend = TRY(RolloutBackend::create(registry, "piece", params, {}));
  const Json& rollout = inputs.at("rollout");
  TRY(backend.set_version(rollout.at("version").get<int64_t>()));
  Sampling sampling;
  sampling.max_new_tokens = rollout.at("max_new_tokens").get<int64_t>();
  const auto prompts = rollout.at("prompts").get<std::vector<std::vector<int64_t>>>();
  std::vector<RolloutRequest> requests;
  for (const auto& prompt : prompts) {
    RolloutRequest& request = requests.emplace_back();
    const auto place = static_cast<int64_t>(requests.size() - 1);
    request.request_id = 100 + place;
    request.prompt_ids = prompt;
    request.num_samples = rollout.at("num_samples").get<int64_t>();
    request.first_row_id = place * request.num_samples;
    request.step = 1;
    request.sampling = &sampling;
  }
  if (TRY(backend.submit(requests)) != requests.size())
    return Error{ErrorKind::kPlugin, "did not take all requests", "", ""};
  Json sequences = Json::array();
  const auto take = [&](const RolloutSequence& s) {
    const std::vector<float> log_prob(s.log_prob.begin(), s.log_prob.end());
    sequences.push_back({{"request_id", s.request_id},
                         {"sample_index", s.sample_index},
                         {"weight_version", s.weight_version},
                         {"ids", std::vector<int64_t>(s.ids.begin(), s.ids.end())},
                         {"log_prob", all_bits(log_prob)}});
    return true;
  };
  const uint64_t outstanding = TRY(backend.poll(100, take, nullptr));
  EXPECT_EQ(outstanding, 0U);
  return Json{{"sequences", std::move(sequences)}};
}

Result<Json> run_environment(PluginRegistry& registry, const Json& params, const Json& inputs) {
  Environment environment = TRY(Environment::create(registry, "piece", params, {}));
  std::vector<EpisodeAction> actions;
  for (const Json& one : inputs.at("episodes")) {
    EpisodeAction& action = actions.emplace_back();
    action.episode = one.at("episode").get<int64_t>();
    action.step = 1;
    action.turn = one.at("turn").get<int64_t>();
    action.text = one.at("text").get<std::string>();
    action.calls = "[]";
    action.ids = one.at("ids").get<std::vector<int64_t>>();
  }
  Json answers = Json::array();
  for (const EpisodeAnswer& answer : environment.act(actions, {})) {
    EXPECT_EQ(answer.failure, "");
    answers.push_back({{"episode", answer.episode},
                       {"done", answer.done},
                       {"reward", bits_of(answer.reward)},
                       {"messages", answer.messages}});
  }
  return Json{{"answers", std::move(answers)}};
}

Result<PluginRegistry> registry_of(const Path& piece) {
  RegistryOptions options;
  options.use_environment = false;
  options.use_user_packs = false;
  options.builtin_dir = "/nonexistent/packs";
  options.files.emplace_back(piece);
  return PluginRegistry::open(options);
}

Result<Json> run(const Path& piece, const Json& one, const Json& inputs) {
  PluginRegistry registry = TRY(registry_of(piece));
  const std::string kind = one.at("kind").get<std::string>();
  const Json& params = one.at("params");
  if (kind == "policy_loss") return run_loss(registry, params, inputs);
  if (kind == "kl_estimator") return run_kl(registry, params, inputs);
  if (kind == "advantage_estimator") return run_advantage(registry, params, inputs);
  if (kind == "reward") return run_reward(registry, params, inputs);
  if (kind == "environment") return run_environment(registry, params, inputs);
  return run_rollout(registry, params, inputs);
}

// The pieces of both ABIs, each with the folder in its file's name.
std::vector<Json> all_pieces() {
  std::vector<Json> pieces;
  for (const std::string abi : {"v0", "v1"}) {
    const Json manifest = read_json("pieces/" + abi + "/manifest.json");
    EXPECT_GE(manifest.at("pieces").size(), 20U) << abi;
    for (Json piece : manifest.at("pieces")) {
      piece["file"] = abi + "/" + piece.at("file").get<std::string>();
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

TEST(Museum, EveryPieceGivesItsBits) {
  const Json inputs = read_json("expected.json");
  ASSERT_EQ(inputs.at("cases").size(), 12U);
  for (const Json& piece : all_pieces()) {
    const Path path = kPieces / piece.at("file").get<std::string>();
    const std::string kinds = piece.at("kinds").get<std::string>();
    for (const Json& one : inputs.at("cases")) {
      if (kinds.find(one.at("kind").get<std::string>()) == std::string::npos) continue;
      SCOPED_TRACE(piece.dump() + "\n" + one.at("kind").dump() + " " + one.at("params").dump());
      const auto got = run(path, one, inputs);
      ASSERT_TRUE(got.ok()) << got.error().to_string();
      EXPECT_EQ(*got, one.at("expected"));
    }
  }
}

const char* const kExtensionPieces[] = {"v0/c11-gcc-11-O3-extensions.so", "v0/c11-clang-16-O0-extensions.so",
                                        "v1/c11-gcc-11-O3-extensions.so", "v1/c11-clang-16-O0-extensions.so"};

RewardBatch rows_of(const std::vector<std::string>& completions) {
  RewardBatch rows;
  for (const std::string& text : completions) {
    rows.completion.append(text);
    rows.completion_ids.append(std::vector<int64_t>(text.size(), 1));
    rows.row_id.push_back(rows.num_rows);
    rows.group_index.push_back(rows.num_rows++);
  }
  return rows;
}

// Texts and numbers of rows, rewards of tokens, failed rows and the state, of both ABIs.
TEST(Museum, RewardsUseTheExtensions) {
  for (const char* const piece : kExtensionPieces) {
    SCOPED_TRACE(piece);
    auto registry = registry_of(kPieces / piece);
    ASSERT_TRUE(registry.ok()) << registry.error().to_string();
    auto reward = Reward::create(*registry, "texts", Json::object(), {});
    ASSERT_TRUE(reward.ok()) << reward.error().to_string();
    ASSERT_TRUE(reward->score(rows_of({"a"}), nullptr).ok());
    auto state = reward->instance().save_state();
    ASSERT_TRUE(state.ok() && state->has_value());
    auto resumed = Reward::create(*registry, "texts", Json::object(), {});
    ASSERT_TRUE(resumed.ok() && resumed->instance().load_state(**state).ok());
    const auto out = resumed->score(rows_of({"four", "", "x"}), nullptr);
    ASSERT_TRUE(out.ok()) << out.error().to_string();
    EXPECT_EQ(out->rewards[0], 2.0) << "the second call, one before the resume";
    EXPECT_TRUE(std::isnan(out->rewards[1]));
    ASSERT_EQ(out->failed_rows.size(), 1U);
    EXPECT_EQ(out->failed_rows[0].text, "an empty completion");
    EXPECT_EQ(out->token_rewards[0], (std::vector<float>{0.125F, 0, 0, 0}));
    ASSERT_EQ(out->row_values.size(), 4U);
    EXPECT_EQ(out->row_values[0].value, 4.0);
    EXPECT_EQ(out->row_values[1].name, "pred");
    EXPECT_EQ(out->row_values[1].text, "four");
  }
}

TEST(Museum, TheyTellWhatTheyRead) {
  for (const char* const piece : kExtensionPieces) {
    SCOPED_TRACE(piece);
    auto registry = registry_of(kPieces / piece);
    ASSERT_TRUE(registry.ok()) << registry.error().to_string();
    const auto ref = registry->find("reward", "texts");
    ASSERT_TRUE(ref.ok());
    EXPECT_EQ(ref->plugin->find_param("table")->role, ParamRole::kFile);
    const auto reads = plugin_reads(*registry, *ref, Json::object());
    ASSERT_TRUE(reads.ok()) << reads.error().to_string();
    ASSERT_EQ(reads->files.size(), 1U);
    EXPECT_EQ(reads->files[0].files, std::vector<std::string>{"table.txt"});
    ASSERT_EQ(reads->columns.size(), 1U);
    EXPECT_EQ(reads->columns[0].name, "level");
  }
}

// A draft environment keeps its random numbers, which come from the id of its time.
TEST(Museum, EnvironmentsOfBothAbis) {
  for (const std::string piece : kExtensionPieces) {
    SCOPED_TRACE(piece);
    auto registry = registry_of(kPieces / piece);
    ASSERT_TRUE(registry.ok()) << registry.error().to_string();
    auto environment = Environment::create(*registry, "piece", Json::object(), {});
    ASSERT_TRUE(environment.ok()) << environment.error().to_string();
    const auto description = environment->description();
    EXPECT_TRUE(description.ok() && *description == R"({"tools":[],"rewards":true})");
    EpisodeStart start;
    start.episode = 7;
    start.messages = "[]";
    start.columns = "{}";
    const auto answers = environment->reset({&start, 1}, {});
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(answers[0].failure, "");
    EXPECT_EQ(answers[0].messages, R"([{"role":"user","content":"begin"}])");
    environment->close(std::vector<int64_t>{7}, 1);

    const auto ref = registry->find("environment", "piece");
    ASSERT_TRUE(ref.ok());
    const auto identity = PluginInstance::identify(*ref, Json::object(), {});
    ASSERT_TRUE(identity.ok());
    const std::string hash = sha256_hex(fmt::format("mortise.environment/{}\nmuseum.piece\npiece", piece[1]));
    EXPECT_EQ(fmt::format("{:016x}", identity->rng_seed), hash.substr(0, 16));
  }
}

// Nobody makes a piece again without saying so, and the museum stays small.
TEST(Museum, PiecesAreThoseOfTheManifest) {
  std::set<std::string> listed;
  std::set<std::string> growth, languages;
  uint64_t total = 0;
  for (const Json& piece : all_pieces()) {
    const std::string file = piece.at("file").get<std::string>();
    const auto bytes = default_env().read_file(kPieces / file, 1 << 20);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(sha256_hex(*bytes), piece.at("sha256").get<std::string>()) << file;
    EXPECT_LT(bytes->size(), 100'000U) << file;
    total += bytes->size();
    growth.insert(piece.at("growth").get<std::string>());
    languages.insert(piece.at("language").get<std::string>());
    EXPECT_TRUE(listed.insert(file).second) << file << " twice";
  }
  EXPECT_LT(total, 2'600'000U);
  EXPECT_EQ(growth, (std::set<std::string>{"none", "older", "newer"}));
  EXPECT_EQ(languages, (std::set<std::string>{"C11", "C++17", "C++20", "Rust"}));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kPieces)) {
    if (entry.is_directory() || entry.path().filename() == "manifest.json") continue;
    EXPECT_EQ(listed.count(entry.path().lexically_relative(kPieces).string()), 1U)
        << entry.path() << " is in no manifest";
  }
}

}  // namespace
}  // namespace mortise::test
