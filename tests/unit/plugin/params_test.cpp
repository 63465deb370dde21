// A plugin's parameters: defaults, ranges, secrets, and errors with their keys.
#include "plugin/host/params.h"

#include <cmath>

#include "foundation/base/secrets.h"

#include "support/environment.h"
#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::error_of;
using testing::HasSubstr;

PluginInfo info() {
  PluginInfo out;
  out.name = "tilted";
  out.params = {{"clip_ratio", ParamType::kF64, "0.2", "half width", ParamRange{0, 1}, {}},
                {"steps", ParamType::kI64, "3", "count", ParamRange{1, 9}, {}},
                {"strict", ParamType::kBool, "true", "", std::nullopt, {}},
                {"mode", ParamType::kText, "slow", "", std::nullopt, {"slow", "fast"}},
                {"clip_ratio_low", ParamType::kF64, "none", "", ParamRange{0, 1}, {}},
                {"beta", ParamType::kF64, std::nullopt, "strength, nats", std::nullopt, {}}};
  return out;
}

TEST(ParamsTest, FillsInDefaultsInDeclaredOrder) {
  ASSERT_OK_AND_ASSIGN(const ordered_json full, validate_params(info(), {{"beta", 1}, {"steps", 5}}));
  EXPECT_EQ(full.dump(),
            R"({"clip_ratio":0.2,"steps":5,"strict":true,"mode":"slow","clip_ratio_low":null,"beta":1.0})");
}

TEST(ParamsTest, FilesAndFoldersBeginAtTheHomeFolder) {
  const test::Environment home("HOME", "/home/me");
  PluginInfo plugin;
  plugin.name = "reader";
  plugin.params = {{"path", ParamType::kText, "", "", std::nullopt, {}, ParamRole::kFile},
                   {"text", ParamType::kText, "", "", std::nullopt, {}}};
  ASSERT_OK_AND_ASSIGN(const ordered_json full, validate_params(plugin, {{"path", "~/r.py"}, {"text", "~/r.py"}}));
  EXPECT_EQ(full.dump(), R"({"path":"/home/me/r.py","text":"~/r.py"})");
}

TEST(ParamsTest, ASecretIsHiddenWhereverItIsSaid) {
  PluginInfo plugin;
  plugin.name = "service";
  plugin.params = {{"api_key", ParamType::kText, "", "", std::nullopt, {}, ParamRole::kSecret}};
  const auto fault = [&](const char* value) { return error_of(validate_params(plugin, {{"api_key", value}})); };
  EXPECT_THAT(fault("short"),
              testing::AllOf(HasSubstr("fewer than 6 bytes"), HasSubstr("env:NAME"), testing::Not(HasSubstr("short"))));
  EXPECT_THAT(fault("$api_key"), HasSubstr("that a run removed when it wrote its config"));
  EXPECT_EQ(fault(""), "ok");
  EXPECT_EQ(fault("env:SERVICE_KEY"), "ok");
  const std::string secret = "pass\"word of the service";
  EXPECT_EQ(fault(secret.c_str()), "ok");
  hide_secrets(plugin, {{"api_key", secret}});
  EXPECT_EQ(redacted("it is " + secret + "."), "it is $api_key.");
  EXPECT_EQ(redacted("key = " + ordered_json(secret).dump()), "key = \"$api_key\"") << "as files spell it";
}

TEST(ParamsTest, NullSetsOnlyWhatMayBeUnset) {
  ASSERT_OK_AND_ASSIGN(const ordered_json full, validate_params(info(), {{"beta", 1}, {"clip_ratio_low", nullptr}}));
  EXPECT_TRUE(full["clip_ratio_low"].is_null());
  EXPECT_THAT(error_of(validate_params(info(), {{"beta", 1}, {"clip_ratio", nullptr}})), HasSubstr("must be a number"));
}

// As files of settings spell it, and JSON cannot.
TEST(ParamsTest, InfinityIsANumber) {
  ASSERT_OK_AND_ASSIGN(const ordered_json full, validate_params(info(), {{"beta", "inf"}}));
  EXPECT_EQ(full["beta"].get<double>(), HUGE_VAL);
  EXPECT_THAT(error_of(validate_params(info(), {{"beta", "none"}})), HasSubstr("must be a number"));
}

// An exclusive end is declared as the next number behind it.
TEST(ParamsTest, RangesReadAsTheirAuthorsWroteThem) {
  const auto text = [](ParamType type, double min, double max) {
    return range_text({"x", type, "1", "", ParamRange{min, max}, {}});
  };
  EXPECT_EQ(text(ParamType::kF64, 0, 1), "from 0 to 1");
  EXPECT_EQ(text(ParamType::kF64, 5e-324, HUGE_VAL), "above 0");
  EXPECT_EQ(text(ParamType::kF64, std::nextafter(0.2, 1), 1), "above 0.2 and at most 1");
  EXPECT_EQ(text(ParamType::kF64, -HUGE_VAL, std::nextafter(1, 0)), "below 1");
  EXPECT_EQ(text(ParamType::kF64, 1e-9, HUGE_VAL), "at least 1e-09");
  EXPECT_EQ(text(ParamType::kF64, 0.1234567890123456, 3), "from 0.1234567890123456 to 3");
  EXPECT_EQ(text(ParamType::kI64, 1, HUGE_VAL), "at least 1");
  EXPECT_EQ(range_text({"x", ParamType::kText, "a", "", std::nullopt, {"a", "b"}}), "a | b");
  EXPECT_EQ(range_text({"x", ParamType::kF64, "1", "", std::nullopt, {}}), "");
}

struct BadParams {
  const char* params;
  const char* where;
  const char* says;
};
class BadParamsTest : public testing::TestWithParam<BadParams> {};

TEST_P(BadParamsTest, IsAnErrorWithItsKey) {
  const auto result = validate_params(info(), ordered_json::parse(GetParam().params), "actor.policy_loss");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kConfig);
  EXPECT_EQ(result.error().where, GetParam().where);
  EXPECT_THAT(result.error().to_string(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadParamsTest,
    testing::Values(
        BadParams{R"({"beta":1,"clip_ration":0.1})", "actor.policy_loss.clip_ration", "did you mean 'clip_ratio'"},
        BadParams{R"({"beta":1,"clip_ratio":2})", "actor.policy_loss.clip_ratio", "give a number from 0 to 1"},
        BadParams{R"({"beta":1,"clip_ratio":"0.1"})", "actor.policy_loss.clip_ratio", "must be a number, is '\"0.1\"'"},
        BadParams{R"({"beta":1,"steps":2.5})", "actor.policy_loss.steps", "must be an integer"},
        BadParams{R"({"beta":1,"steps":18446744073709551615})", "actor.policy_loss.steps", "must be an integer"},
        BadParams{R"({"beta":1,"steps":0})", "actor.policy_loss.steps", "give a number from 1 to 9"},
        BadParams{R"({"beta":1,"strict":1})", "actor.policy_loss.strict", "must be true or false"},
        BadParams{R"({"beta":1,"mode":"fats"})", "actor.policy_loss.mode", "did you mean 'fast'"},
        BadParams{R"({})", "actor.policy_loss.beta", "needs the parameter 'beta' (strength, nats); give a number"},
        BadParams{R"([1])", "actor.policy_loss", "must be a table"}));

TEST(ParamsTest, TellsEveryFaultAtOnce) {
  const auto faults = check_params(info(), ordered_json::parse(R"({"clip_ratio":7,"mod":"x","strict":"no"})"));
  ASSERT_EQ(faults.size(), 4U);
  EXPECT_EQ(faults[0].key, "clip_ratio");
  EXPECT_EQ(faults[1].key, "mod");
  EXPECT_EQ(faults[2].key, "strict");
  EXPECT_EQ(faults[3].key, "beta");
  const auto result = validate_params(info(), ordered_json::parse(R"({"clip_ratio":7,"mod":"x"})"));
  EXPECT_THAT(result.error().to_string(),
              testing::AllOf(HasSubstr("clip_ratio"), HasSubstr("'mod'"), HasSubstr("'beta'")));
}

TEST(ParamsTest, TextOfTheCommandLine) {
  const PluginInfo plugin = info();
  EXPECT_EQ(parse_param_text(plugin.params[0], "3e-1")->get<double>(), 0.3);
  EXPECT_EQ(parse_param_text(plugin.params[1], "4")->get<int64_t>(), 4);
  EXPECT_EQ(parse_param_text(plugin.params[2], "false")->get<bool>(), false);
  EXPECT_TRUE(parse_param_text(plugin.params[4], "none")->is_null());
  EXPECT_FALSE(parse_param_text(plugin.params[0], "none").ok());
  EXPECT_FALSE(parse_param_text(plugin.params[0], "nan").ok());
  EXPECT_FALSE(parse_param_text(plugin.params[1], "4.0").ok());
  EXPECT_FALSE(parse_param_text(plugin.params[2], "yes").ok());
}

}  // namespace
}  // namespace mortise
