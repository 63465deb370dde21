// Types, ranges and choices: what each key takes, and what the error says.
#include "config_test_support.h"

namespace mortise::test {
namespace {

TEST(Assign, TypesAsWritten) {
  const RunConfig config = config_of(R"(
[model]
path = "folder"
custom_chat_template = "t.jinja"
[data]
train_files = ["a.jsonl", "b.jsonl"]
val_files = "v.jsonl"
shuffle = false
seed = 7
apply_chat_template_kwargs = {enable_thinking = false, n = 3, deep = {x = [1, 2.5, "t"]}}
[actor]
grad_clip = 1
clip_ratio_low = 3e-4
[actor.optim]
lr = 0.1
betas = [0, 0.95]
[[reward]]
use = "length"
timeout = "250ms"
)");
  EXPECT_EQ(config.model.path, "folder");
  EXPECT_EQ(config.model.custom_chat_template, "t.jinja");
  EXPECT_THAT(config.data.train_files, ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(config.data.val_files, ElementsAre("v.jsonl"));
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.data.seed, 7);
  EXPECT_EQ(dump_json(config.data.apply_chat_template_kwargs),
            R"({"enable_thinking":false,"n":3,"deep":{"x":[1,2.5,"t"]}})");
  EXPECT_EQ(config.actor.grad_clip, 1.0);
  EXPECT_EQ(config.actor.clip_ratio_low, 3e-4);
  EXPECT_EQ(config.actor.clip_ratio_high, std::nullopt);
  EXPECT_THAT(config.actor.optim.betas, ElementsAre(0.0, 0.95));
  ASSERT_EQ(config.reward.size(), 1U);
  EXPECT_EQ(config.reward[0].timeout, std::chrono::milliseconds(250));
}

TEST(Assign, NullUnsetsANullableKey) {
  EXPECT_EQ(config_of("[actor]\nclip_ratio_low = \"null\"").actor.clip_ratio_low, std::nullopt);
  EXPECT_EQ(config_of("[data]\nseed = 3", {"data.seed=null"}).data.seed, std::nullopt);
  EXPECT_EQ(config_of("[model]\ncustom_chat_template = \"x\"", {"model.custom_chat_template=None"})
                .model.custom_chat_template,
            std::nullopt);
  EXPECT_THAT(load_error("", {"rollout.n=null"}),
              HasSubstr("'rollout.n' must be of type integer, but is null; leave it out for its default"));
  EXPECT_THAT(load_error("", {"data.val_files=null"}), HasSubstr("but is null; write [] for an empty list"));
}

struct BadCase {
  const char* text;
  const char* message;
};

class AssignRefuses : public ::testing::TestWithParam<BadCase> {};

TEST_P(AssignRefuses, WithPlaceAndReason) {
  const std::string error = load_error(GetParam().text);
  EXPECT_THAT(error, HasSubstr(GetParam().message));
  EXPECT_THAT(error, ::testing::StartsWith("run.toml:2:")) << error;
}

INSTANTIATE_TEST_SUITE_P(
    All, AssignRefuses,
    ::testing::Values(
        BadCase{"[rollout]\nn = \"16\"",
                "'rollout.n' must be of type integer, but is the text '16'; write a whole number"},
        BadCase{"[rollout]\nn = 16.0", "must be of type integer, but is the number 16.0"},
        BadCase{"[rollout]\nn = true", "must be of type integer, but is true"},
        BadCase{"[rollout]\nn = 0", "must be at least 1 and at most 65536, but is the integer 0"},
        BadCase{"[rollout]\nn = []", "must be of type integer, but is a list"},
        BadCase{"[rollout]\nn = {}", "must be of type integer, but is a table"},
        BadCase{"[rollout]\nn = [{}]", "must be of type integer, but is a list of tables"},
        BadCase{"[rollout]\nn = 2024-01-01", "must be of type integer, but is a date or time"},
        BadCase{"[rollout]\ntop_p = 0", "must be above 0 and at most 1"},
        BadCase{"[rollout]\ntop_p = 1.01", "must be above 0 and at most 1"},
        BadCase{"[rollout]\ntemperature = nan", "must be a finite number"},
        BadCase{"[rollout]\ntemperature = inf", "must be a finite number"},
        BadCase{"[rollout]\ntemperature = 1e60", "'rollout.temperature' must be at least 0 and at most 1000000"},
        BadCase{"[rollout]\ntemperature = -1.0", "'rollout.temperature' must be at least 0"},
        BadCase{"[rollout]\nrepetition_penalty = 0", "'rollout.repetition_penalty' must be at least"},
        BadCase{"[rollout]\nrepetition_penalty = 1e60", "'rollout.repetition_penalty' must be at least"},
        BadCase{"[rollout]\npresence_penalty = -1e300", "'rollout.presence_penalty' must be at least -1000000"},
        BadCase{"[rollout]\nfrequency_penalty = 1e39", "'rollout.frequency_penalty' must be at least -1000000"},
        BadCase{"[rollout]\nmin_p = 1.5", "'rollout.min_p' must be at least 0 and at most 1"},
        BadCase{"[rollout]\ntypical_p = 0.0", "'rollout.typical_p' must be above 0 and at most 1"},
        BadCase{"[rollout]\ntop_k = -2", "'rollout.top_k' must be at least -1"},
        BadCase{"[rollout.val_kwargs]\ntemperature = 1e60", "'rollout.val_kwargs.temperature' must be at least 0"},
        BadCase{"[rollout]\nignore_eos = 1",
                "must be of type true or false, but is the integer 1; write true or false"},
        BadCase{"[actor]\nclip_ratio_c = -1", "must be at least 0"},
        BadCase{"[actor]\nloss_agg_mode = \"token_mean\"", "did you mean 'token-mean'"},
        BadCase{"[actor]\nloss_scale_factor = 0", "must be above 0"},
        BadCase{"[actor.optim]\nbetas = [0.9]", "must have 2 items, but has 1"},
        BadCase{"[actor.optim]\nbetas = [0.9, 1.0]", "below 1"},
        BadCase{"[actor.optim]\nbetas = 0.9", "must be of type list of numbers"},
        BadCase{"[rollout]\nstop_token_ids = [1, 2.5]", "must be of type list of integers"},
        BadCase{"[rollout]\nstop_token_ids = 7", "must be of type list of integers"},
        BadCase{"[rollout]\nstop_token_ids = [3, -1]", "at least 0"},
        BadCase{"[actor.optim]\nlr_scheduler_type = 3", "put it in quotes"},
        BadCase{"[data]\ntrain_files = [1]", "must be of type list of texts"},
        BadCase{"[data]\ntrain_files = [2024-01-01]", "is a date or time"},
        BadCase{"[data]\napply_chat_template_kwargs = 3", "must be of type table of parameters, but is the integer 3"},
        BadCase{"[data]\napply_chat_template_kwargs = {d = 2024-01-01}", "a parameter cannot be a date or time"},
        BadCase{"[algorithm]\nadv_params = {epsilon = nan}", "a parameter must be a number, but is nan"},
        BadCase{"[trainer]\nlogger = [\"swanlab\"]",
                "must be one of console, tensorboard, wandb, mlflow, prometheus, but is 'swanlab'"},
        BadCase{"[[reward]]\nuse = 3", "'reward.0.use' must be of type text"},
        BadCase{"[[reward]]\ntimeout = \"10\"\nuse = \"a\"", "'reward.0.timeout' must be a duration"},
        BadCase{"[[reward]]\nuse = \"https://user:password@host\"",
                "'reward.0.use' must be the name of a plugin, but is a URL"},
        BadCase{"[[reward]]\ntimeout = \"0s\"\nuse = \"a\"", "'reward.0.timeout' must be at least 1 ms"}));

}  // namespace
}  // namespace mortise::test
