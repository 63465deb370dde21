// The tables of the import: every setting that the installed TRL has is in its table, with TRL's default, and every
// line of every table points to something.
#include <cstdlib>
#include <set>

#include "config/fields.h"
#include "foundation/base/text.h"
#include "import/rules.h"
#include "import_support.h"

namespace mortise::test {
namespace {

struct Table {
  const char* name;
  const PeerRules& rules;
};

std::vector<Table> tables() { return {{"trl", trl_rules()}, {"verl", verl_rules()}, {"swift", swift_rules()}}; }

TEST(ImportRules, EveryLineIsWhole) {
  for (const Table& table : tables()) {
    std::set<std::string_view> names;
    for (const PeerRule* rule : table.rules.all()) {
      SCOPED_TRACE(std::string(table.name) + ": " + std::string(rule->name));
      EXPECT_TRUE(names.insert(rule->name).second);
      if (!rule->values.empty()) ASSERT_OK(parse_json(rule->values, "values"));
      switch (rule->action) {
        case PeerAction::kTranslate:
          EXPECT_NE(find_field(rule->target), nullptr) << "no key " << rule->target;
          break;
        case PeerAction::kRefuse:
          EXPECT_TRUE(rule_json(rule->values).is_array());
          [[fallthrough]];
        case PeerAction::kCompute:
        case PeerAction::kNoEffect:
          EXPECT_FALSE(rule->text.empty());
          break;
      }
      if (rule->name.ends_with(".*")) {
        EXPECT_EQ(rule->action, PeerAction::kNoEffect);
      }
    }
    EXPECT_GT(names.size(), 100U);
  }
}

// Below a table that is passed over, too, every name is known; the few without a list hold the user's own names.
TEST(ImportRules, EveryTableKnowsItsNames) {
  std::set<std::string_view> open;
  size_t num_names = 0;
  for (const Table& table : tables()) {
    for (const PeerRule* rule : table.rules.all()) {
      if (!rule->name.ends_with(".*")) continue;
      const std::string stem(rule->name.substr(0, rule->name.size() - 1));
      if (rule->below.empty()) {
        open.insert(rule->name);
        EXPECT_EQ(table.rules.find(stem + "anything.at.all"), rule);
        continue;
      }
      SCOPED_TRACE(rule->name);
      EXPECT_EQ(table.rules.find(stem + "no_such_name"), nullptr);
      std::set<std::string_view> words;
      for (const std::string_view word : split(rule->below, ' ')) {
        ++num_names;
        EXPECT_TRUE(words.insert(word).second) << word << " stands twice";
        const bool any = word.ends_with(".*");
        const std::string name = stem + std::string(any ? word.substr(0, word.size() - 2) : word);
        const PeerRule* found = table.rules.find(name);
        ASSERT_NE(found, nullptr) << word;
        EXPECT_EQ(table.rules.find(name + ".no_such_name") != nullptr, any) << word;
        if (found == rule) {
          EXPECT_EQ(takes_any_name(*rule, name), any) << word;
        }
      }
    }
  }
  EXPECT_GT(num_names, 400U);
  EXPECT_THAT(open, ElementsAre("data.mm_processor_kwargs.*", "hydra.*", "ray_init.*"));
}

// Settings of the installed TRL, by class; null if no Python has it.
Json installed_fields() {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') return Json();
  const TempDir dir;
  const Path out = dir.path() / "fields.json";
  const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/golden/import/trl_fields.py";
  if (std::system((std::string(python) + " " + script + " > " + out.string()).c_str()) != 0) return Json::object();
  Result<Json> fields = read_json_file(default_env(), out);
  return fields ? std::move(*fields) : Json::object();
}

TEST(ImportRules, EverySettingOfTheInstalledTrlIsInTheTable) {
  const Json classes = installed_fields();
  if (classes.is_null()) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: TRL's settings were not listed";
  ASSERT_TRUE(classes.contains("GRPOConfig"));
  size_t num_fields = 0;
  for (const auto& [name, fields] : classes.items()) {
    for (const auto& [field, fallback] : fields.items()) {
      SCOPED_TRACE(name + "." + field);
      ++num_fields;
      const PeerRule* rule = trl_rules().find_exact(field);
      ASSERT_NE(rule, nullptr) << "not in core/import/trl_rules.cpp or hf_rules.cpp";
      if (fallback == "<code>" || rule->values.empty()) continue;
      const Json ours = rule_json(rule->values);
      if (rule->action != PeerAction::kRefuse) {
        EXPECT_TRUE(same_setting(fallback, "", ours)) << "its default is " << fallback << ", the table has " << ours;
      } else {
        EXPECT_NE(std::find(ours.begin(), ours.end(), fallback), ours.end()) << "its own default is refused";
      }
    }
  }
  EXPECT_GT(num_fields, 180U);
}

TEST(ImportRules, EveryDefaultOfTheInstalledTrlImports) {
  const Json classes = installed_fields();
  if (classes.is_null()) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: TRL's defaults were not imported";
  Json all = Json::object();
  for (const auto& [field, fallback] : classes["GRPOConfig"].items()) {
    if (fallback != "<code>") all[field] = fallback;
  }
  const RunConfig explicit_ones = imported("trl", all.dump(), "all.json");
  RunConfig defaults = imported("trl", "{}", "none.json");
  EXPECT_EQ(explicit_ones.actor, defaults.actor);
  EXPECT_EQ(explicit_ones.algorithm, defaults.algorithm);
  EXPECT_EQ(explicit_ones.rollout, defaults.rollout);
  EXPECT_EQ(explicit_ones.data, defaults.data);
}

TEST(ImportRules, UnknownSettingsAndFrameworksAreRefused) {
  for (const Table& table : tables()) {
    const std::string error = import_error(table.name, "no_such_setting_at_all: 1\n");
    EXPECT_THAT(error, HasSubstr("peer.yaml:1:1: unknown setting 'no_such_setting_at_all'")) << table.name;
  }
  EXPECT_THAT(import_error("trl", "lerning_rate: 1\n"), HasSubstr("did you mean 'learning_rate'"));
  EXPECT_THAT(import_error("openrlhf", ""), HasSubstr("use one of: trl, verl, swift"));
  EXPECT_THAT(import_error("verl", "actor_rollout_ref: {actor: {nothing: 1}}"),
              HasSubstr("unknown setting 'actor_rollout_ref.actor.nothing'"));
}

TEST(ImportRules, AllProblemsComeAtOnce) {
  const std::string error = import_error("trl", "load_in_4bit: true\nbetta: 1\noptim_target_modules: all\n");
  EXPECT_THAT(error, HasSubstr("peer.yaml:1:1: 'load_in_4bit = true' is not supported"));
  EXPECT_THAT(error, HasSubstr("peer.yaml:2:1"));
  EXPECT_THAT(error, HasSubstr("peer.yaml:3:1"));
}

TEST(ImportRules, TheListNamesEverySetting) {
  for (const Table& table : tables()) {
    ASSERT_OK_AND_ASSIGN(const std::string text, describe_import(table.name));
    for (const PeerRule* rule : table.rules.all()) EXPECT_THAT(text, HasSubstr("\n  " + std::string(rule->name)));
    for (const PeerRule* rule : table.rules.all()) {
      if (rule->action != PeerAction::kTranslate) continue;
      EXPECT_THAT(text, HasSubstr("\n  " + std::string(rule->name) + " -> " + std::string(rule->target)))
          << "it is kept, and the list must not say that it is refused";
    }
  }
}

}  // namespace
}  // namespace mortise::test
