// Which packs a run may use: plugins.trust, the machine's policy, locks and revocations, over a store of its own.
#include "train/run/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "packs/pack_builder.h"
#include "packs/store.h"
#include "support/temp_dir.h"
#include "train/resume/pack_lock.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AdmissionTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("MORTISE_PACK_STORE", places_.store.c_str(), 1);
    key_ = *make_key_pair();
    trust_.publishers = {{one_signer(key_.public_key), {"test.*"}, "", "", false}};
    ASSERT_OK(write_trust(default_env(), places_, trust_));
  }
  void TearDown() override { unsetenv("MORTISE_PACK_STORE"); }

  static Path library(const std::string& folder, const std::string& name) {
    return Path(MORTISE_BINARY_DIR) / "tests" / "packs" / folder / (name + ".so");
  }

  InstalledPack install(const Path& file, bool is_signed) {
    auto archive = build_pack(default_env(), {file});
    EXPECT_TRUE(archive.ok()) << archive.error().to_string();
    InstallRequest request{&*archive, &archive->description.builds.at(0), "", {}, "https://packs.example"};
    if (is_signed) {
      request.signature = *sign_bytes(key_.secret_key, archive->bytes, "c");
      request.signed_by = one_signer(key_.public_key);
    }
    auto installed = PackStore(default_env(), places_.store).install(request);
    EXPECT_TRUE(installed.ok()) << installed.error().to_string();
    return *installed;
  }

  // The registry of a run that names the pack's plugin as its reward.
  Result<PluginRegistry> open(const std::string& trust, const std::string& reward = "aged") {
    dir_.write("run.toml", "[plugins]\ntrust = \"" + trust + "\"\n[[reward]]\nuse = \"" + reward + "\"\n");
    const LoadedConfig loaded = TRY(load_config(default_env(), dir_ / "run.toml", {}));
    RegistryOptions options;
    options.builtin_dir = Path(MORTISE_BINARY_DIR) / "lib" / "mortise" / "packs";
    return open_admitted(loaded, options, places_);
  }

  // "" where the reward is found, else why its pack is not used.
  std::string why_not(const std::string& trust, const std::string& reward = "aged") {
    const auto registry = open(trust, reward);
    if (!registry.ok()) return registry.error().to_string();
    const auto found = registry->find("reward", reward);
    return found.ok() ? "" : found.error().to_string();
  }

  void lock(const std::string& reward = "aged") {
    const auto registry = open("any", reward);
    ASSERT_TRUE(registry.ok()) << registry.error().to_string();
    const auto loaded = load_config(default_env(), dir_ / "run.toml", {});
    ASSERT_TRUE(loaded.ok());
    const auto json = run_lock_json(*registry, loaded->config);
    ASSERT_TRUE(json.ok()) << json.error().to_string();
    dir_.write("mortise.lock", dump_json(*json));
  }

  TempDir dir_;
  PackPlaces places_{dir_ / "store", dir_ / "user", dir_ / "etc"};
  KeyPair key_;
  Trust trust_;
};

TEST_F(AdmissionTest, SignedMeansSignedByATrustedKey) {
  install(library("versions", "v1_0_0"), false);
  EXPECT_EQ(why_not("any"), "");
  EXPECT_THAT(why_not("signed"), HasSubstr("rule P16"));
  install(library("versions", "v1_0_0"), true);
  EXPECT_EQ(why_not("signed"), "");
  trust_.publishers[0].ids = {"other.*"};
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  EXPECT_THAT(why_not("signed"), HasSubstr("rule P17"));
  EXPECT_EQ(why_not("any"), "");
}

TEST_F(AdmissionTest, AFileBesideTheStoreIsNotSigned) {
  std::filesystem::create_directories(dir_ / "packs");
  std::filesystem::copy_file(library("versions", "v1_0_0"), dir_ / "packs/a.so");
  setenv("MORTISE_PLUGIN_PATH", (dir_ / "packs").c_str(), 1);
  EXPECT_EQ(why_not("any"), "");
  EXPECT_THAT(why_not("signed"), AllOf(HasSubstr("rule P16"), HasSubstr("not installed from a signed archive")));
  unsetenv("MORTISE_PLUGIN_PATH");
}

TEST_F(AdmissionTest, AnObjectThatWasChangedIsNotUsed) {
  const InstalledPack pack = install(library("versions", "v1_0_0"), true);
  EXPECT_EQ(why_not("signed"), "");
  // The library is swapped for another version of the pack.
  std::filesystem::permissions(pack.object, std::filesystem::perms::owner_all);
  std::filesystem::remove(pack.library);
  std::filesystem::copy_file(library("versions", "v2_0_0"), pack.library);
  EXPECT_THAT(why_not("signed"), HasSubstr("rule P23"));
  // Its origin.json is made to fit: the archive still does not.
  std::string origin = *default_env().read_file(pack.object / "origin.json");
  const PackArchive other = *build_pack(default_env(), {library("versions", "v2_0_0")});
  origin.replace(origin.find(pack.library_sha256), 64, other.description.builds[0].sha256);
  std::filesystem::remove(pack.object / "origin.json");
  ASSERT_OK(write_file(default_env(), pack.object / "origin.json", origin));
  EXPECT_THAT(why_not("signed"), HasSubstr("rule P"));
  EXPECT_NE(why_not("signed"), "");
}

// The store is addressed by content. A file in it that has other content is never used, whatever the policy is.
TEST_F(AdmissionTest, AChangedFileInTheStoreIsRefusedUnderAnyPolicy) {
  const InstalledPack pack = install(library("versions", "v1_0_0"), false);
  EXPECT_EQ(why_not("any"), "");
  std::filesystem::permissions(pack.object, std::filesystem::perms::owner_all);
  std::filesystem::remove(pack.library);
  std::filesystem::copy_file(library("versions", "v2_0_0"), pack.library);
  EXPECT_THAT(why_not("any"), AllOf(HasSubstr("rule P23"), HasSubstr("not the one that was installed")));
  dir_.write("store/packs/test.versions/1.0.0", pack.sha256 + "\n");
  std::filesystem::remove(pack.object / "origin.json");
  EXPECT_THAT(why_not("any"), AllOf(HasSubstr("rule P23"), HasSubstr("damaged")));
}

// A name that is not found because its pack was refused is not a misspelt name.
TEST_F(AdmissionTest, ARefusedPackIsToldWhereItsPluginIsNamed) {
  install(library("versions", "v1_0_0"), false);
  for (const char* name : {"aged", "test.versions/aged"})
    EXPECT_THAT(why_not("signed", name),
                AllOf(HasSubstr("the reward 'aged' is in test.versions@1.0.0, which may not be used: "),
                      HasSubstr("rule P16"), HasSubstr("install it signed")))
        << name;
  EXPECT_THAT(why_not("signed", "agde"), HasSubstr("no reward is named 'agde'"));
}

TEST_F(AdmissionTest, TheMachinesPolicyHoldsForEveryRun) {
  install(library("versions", "v1_0_0"), false);
  EXPECT_EQ(why_not("any"), "");
  dir_.write("etc/policy.toml", "[plugins]\ntrust = \"signed\"\n");
  EXPECT_THAT(why_not("any"), HasSubstr("rule P16"));
  dir_.write("etc/policy.toml", "[plugins]\ntrust = \"singed\"\n");
  EXPECT_THAT(why_not("any"), HasSubstr("policy.toml"));
}

TEST_F(AdmissionTest, RevokedPacksAreNeverUsed) {
  const InstalledPack pack = install(library("versions", "v1_0_0"), true);
  trust_.revoked = {{"", pack.sha256, pack.id, "wrong rewards", false}};
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  EXPECT_THAT(why_not("any"), AllOf(HasSubstr("rule P18"), HasSubstr("wrong rewards")));
  trust_.revoked = {{key_.public_key.id_text(), "", "", "stolen", false}};
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  EXPECT_THAT(why_not("any"), HasSubstr("rule P18"));
}

// To install it again would be the wrong advice.
TEST_F(AdmissionTest, ALockedRunSaysThatItsPackWasRevoked) {
  const InstalledPack pack = install(library("versions", "v1_0_0"), true);
  lock();
  EXPECT_EQ(why_not("locked"), "");
  trust_.revoked = {{"", pack.sha256, pack.id, "wrong rewards", false}};
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  EXPECT_THAT(why_not("locked"), AllOf(HasSubstr("a pack of the lock may not be used: test.versions 1.0.0"),
                                       HasSubstr("rule P18"), HasSubstr("wrong rewards")));
}

TEST_F(AdmissionTest, ALockedRunUsesWhatIsInTheLockAndNothingElse) {
  EXPECT_THAT(why_not("locked"), HasSubstr("mortise pack lock"));
  install(library("versions", "v1_0_0"), true);
  lock();
  EXPECT_EQ(why_not("locked"), "");
  EXPECT_EQ(why_not("locked and signed"), "");
  // A newer version does not take its place.
  install(library("versions", "v2_0_0"), true);
  const auto registry = open("locked");
  ASSERT_TRUE(registry.ok()) << registry.error().to_string();
  EXPECT_EQ(registry->find("reward", "aged")->pack->version, "1.0.0");
  // Another plugin, built-in or not, is not in the lock.
  EXPECT_THAT(why_not("locked", "regex"), HasSubstr("not in " + (dir_ / "mortise.lock").string()));
  // What is missing is named, with where it came from.
  ASSERT_OK(PackStore(default_env(), places_.store).remove("test.versions", "1.0.0"));
  EXPECT_THAT(why_not("locked"),
              AllOf(HasSubstr("test.versions 1.0.0"), HasSubstr("installed from https://packs.example"),
                    HasSubstr("mortise pack install test.versions@=1.0.0")));
  dir_.write("mortise.lock", "{}");
  EXPECT_THAT(why_not("locked"), HasSubstr("not a mortise.lock"));
}

std::vector<std::string> uses_of(const RunConfig& config) {
  std::vector<std::string> lines;
  for (const PluginUse& use : plugin_uses(config))
    lines.push_back(use.kind + " " + use.name + " " + use.name_key + " " + use.key + " " + use.params.dump());
  return lines;
}

TEST(PluginUses, AreThoseThatTheTableOfKindsNames) {
  RunConfig config;
  config.reward.resize(2);
  config.reward[0].use = "match";
  config.reward[1].use = "acme.x/length";
  config.reward[1].params["max"] = 7;
  config.actor.policy_loss.loss_mode = "gspo";
  config.actor.policy_loss.params["band"] = 0.5;
  config.algorithm.adv_estimator = "rloo";
  config.rollout.name = "replay";
  config.rollout.params["path"] = "r.jsonl";
  const std::vector<std::string> always = {
      R"(reward match reward.0.use reward.0 {})", R"(reward acme.x/length reward.1.use reward.1 {"max":7})",
      R"(policy_loss gspo actor.policy_loss.loss_mode actor.policy_loss {"band":0.5})",
      R"(advantage_estimator rloo algorithm.adv_estimator algorithm.adv_params {})",
      R"(rollout_backend replay rollout.name rollout.replay {"path":"r.jsonl"})"};
  config.actor.use_kl_loss = config.algorithm.use_kl_in_reward = false;
  EXPECT_EQ(uses_of(config), always);
  config.actor.use_kl_loss = true;
  config.actor.kl_loss_type = "k3+";  // the straight-through form of k3
  config.algorithm.use_kl_in_reward = true;
  config.algorithm.kl_penalty = "abs";
  config.algorithm.kl_params["max_kl"] = 3;
  EXPECT_THAT(uses_of(config), testing::IsSupersetOf({"kl_estimator k3 actor.kl_loss_type actor.kl_params {}",
                                                      "kl_estimator abs algorithm.kl_penalty algorithm.kl_params "
                                                      "{\"max_kl\":3}"}));
  EXPECT_EQ(uses_of(config).size(), always.size() + 2);
  config.actor.kl_loss_type = "full";  // the engine's own
  EXPECT_EQ(uses_of(config).size(), always.size() + 1);
}

}  // namespace
}  // namespace mortise::test
