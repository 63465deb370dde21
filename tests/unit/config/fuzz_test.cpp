// Whatever bytes come as a file or an override: a config or an Error, and what loads also shows and loads again.
//
// The counts are those of the fast tier; MORTISE_FUZZ_COUNT in the environment raises them.
#include <cstdlib>
#include <random>

#include "config/check.h"
#include "config/show.h"
#include "config_test_support.h"
#include "foundation/base/text.h"

namespace mortise::test {
namespace {

constexpr std::string_view kSeed = R"(preset = "gspo"
[model]
path = "m"
[data]
train_files = ["a", 'b']
apply_chat_template_kwargs = {x = 1, y = [1.5, {z = "t"}]}
[actor]
clip_ratio_low = 3e-4
policy_loss = {loss_mode = "vanilla", tau.a.b = 1}
optim.betas = [0.9, 0.999]
[actor_rollout_ref.rollout]
name = "replay"
replay.path = "x"
[[reward]]
use = "regex"
"odd key" = """multi
line"""
timeout = "10s"
[[reward]]
use = 'column'
when = 2024-01-01T00:00:00Z
)";

// The inserted pieces: TOML's own marks, extreme numbers, our names, invalid UTF-8, control characters.
const std::vector<std::string_view>& pieces() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> made = split(
        "[ ] [[ ]] { } = . , \" ' \"\"\" ''' # a.b.c [reward] 1e999 nan -inf 0x \\u \xff \xf0\x9f \xed\xa0\x80 "
        "99999999999999999999 reward rollout null base [[[[ {a={b= \r \x7f actor_rollout_ref",
        ' ');
    made.push_back("\n");
    made.push_back(std::string_view("\0", 1));
    return made;
  }();
  return all;
}

int fuzz_count(int fast) {
  const char* asked = std::getenv("MORTISE_FUZZ_COUNT");
  return asked != nullptr ? std::max(1, std::atoi(asked)) : fast;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  std::string mutate(std::string text) {
    for (size_t edits = 1 + below(1 + below(8)); edits > 0; --edits) {
      const size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.insert(at, pieces()[below(pieces().size())]);
          break;
        case 1:
          text.erase(at, 1 + below(6));
          break;
        case 2:
          if (at < text.size()) text[at] = static_cast<char>(random_());
          break;
        case 3:
          text.insert(at, text.substr(below(text.size() + 1), below(60)));
          break;
        default:
          text.insert(at, 1, static_cast<char>(random_()));
          break;
      }
    }
    return text;
  }
  std::string noise() {
    std::string text(below(64), '\0');
    for (char& byte : text) byte = static_cast<char>(random_());
    for (size_t i = below(6); i > 0; --i) text.insert(below(text.size() + 1), pieces()[below(pieces().size())]);
    return text;
  }

 private:
  std::mt19937_64 random_;
};

// Returns whether it loaded.
bool expect_safe(const std::string& text, const std::vector<std::string>& overrides) {
  Result<LoadedConfig> loaded = load(text, overrides);
  if (!loaded) {
    EXPECT_FALSE(loaded.error().to_string().empty());
    return false;
  }
  for (const ConfigUse use : {ConfigUse::kTrain, ConfigUse::kSft}) (void)check_config(*loaded, use);
  const std::string shown = config_to_toml(*loaded, {.origins = true});
  Result<LoadedConfig> again = load(shown);
  EXPECT_TRUE(again.ok()) << again.error().to_string() << "\n--- from\n" << text << "\n--- shown\n" << shown;
  if (again) {
    EXPECT_EQ(again->config, loaded->config) << shown;
  }
  return true;
}

TEST(ConfigFuzz, MutatedFiles) {
  Mutator mutator(1);
  std::string seed(kSeed);
  seed.erase(seed.find("when"));
  ASSERT_TRUE(expect_safe(seed, {}));
  int num_loaded = 0;
  const int count = fuzz_count(4000);
  for (int i = 0; i < count && !HasFailure(); ++i)
    num_loaded += expect_safe(mutator.mutate(i % 2 == 0 ? seed : std::string(kSeed)), {}) ? 1 : 0;
  EXPECT_GT(num_loaded, 0) << "no mutation loads: the test sees only syntax errors";
}

TEST(ConfigFuzz, RandomBytes) {
  Mutator mutator(2);
  const int count = fuzz_count(4000);
  for (int i = 0; i < count && !HasFailure(); ++i) expect_safe(mutator.noise(), {});
}

TEST(ConfigFuzz, Overrides) {
  Mutator mutator(3);
  const std::vector<std::string> seeds = {
      "reward.0.weight=2",        "actor.optim.betas=[0.9,.95]", "~reward.0",
      "rollout={n=3, top_p=0.5}", "trainer.logger=[console]",    "actor.policy_loss.\"a.b\"={c=[1,2]}",
      "+model.path='x y'",        "reward=[{use='a'}]"};
  int num_loaded = 0;
  const int count = fuzz_count(4000);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const std::string mutated = mutator.mutate(seeds[mutator.below(seeds.size())]);
    num_loaded += expect_safe("[[reward]]\nuse = \"regex\"\n", {mutated, "rollout.n=3"}) ? 1 : 0;
  }
  EXPECT_GT(num_loaded, 0);
}

TEST(ConfigFuzz, DeepNestingIsRefusedNotFatal) {
  for (const size_t depth : {10U, 100U, 300U, 5'000U, 200'000U}) {
    std::string lists = "a = ", tables = "a = ", dots = "a", header = "[a";
    for (size_t i = 0; i < depth; ++i) {
      lists += "[";
      tables += "{a = ";
      dots += ".a";
      header += ".a";
    }
    for (const std::string& text :
         {lists, lists + std::string(depth, ']'), tables, tables + "1" + std::string(depth, '}'), dots + " = 1",
          header + "]\nb = 1", "[actor.policy_loss]\n" + dots + " = 1",
          "[actor.policy_loss]\n" + lists + std::string(depth, ']')}) {
      expect_safe(text, {});
      expect_safe("", {text});
    }
    expect_safe("", {"rollout.name=" + std::string(depth, '[') + std::string(depth, ']')});
  }
}

}  // namespace
}  // namespace mortise::test
