// Who may sign what, revocations, and policies that only become tighter.
#include "packs/trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "packs/signers.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

KeyPair key_pair() {
  auto pair = make_key_pair();
  EXPECT_TRUE(pair.ok());
  return *pair;
}

Publisher trusted(const KeyPair& pair, std::vector<std::string> ids) {
  return {one_signer(pair.public_key), std::move(ids), "", "", false};
}

std::string signature_of(const KeyPair& pair, std::string_view bytes, const std::string& comment) {
  auto text = sign_bytes(pair.secret_key, bytes, comment);
  EXPECT_TRUE(text.ok());
  return *text;
}

TEST(PackTrust, PatternsOfIds) {
  for (const char* good : {"*", "acme.*", "acme.match", "acme.math.*"}) EXPECT_TRUE(is_id_pattern(good)) << good;
  for (const char* bad : {"", "acme", "acme.", "*.match", "acme.*.x", "a*", "Acme.*", "acme*", "acme.ma*",
                          "\xD0\xB0"
                          "cme.*",
                          "acme.match\n"})
    EXPECT_FALSE(is_id_pattern(bad)) << bad;
  EXPECT_TRUE(id_matches("acme.*", "acme.match"));
  EXPECT_FALSE(id_matches("acme.*", "acmeevil.match"));
  EXPECT_TRUE(pattern_covers("acme.*", "acme.math.*"));
  EXPECT_FALSE(pattern_covers("acme.math.*", "acme.*"));
  EXPECT_FALSE(pattern_covers("acme.match", "acme.*"));
  EXPECT_FALSE(pattern_covers("acme.*", "*"));
}

TEST(PackTrust, TheMostSpecificPatternOwnsAnId) {
  const KeyPair acme = key_pair(), any = key_pair();
  Trust trust;
  trust.publishers = {trusted(any, {"*"}), trusted(acme, {"acme.*"})};
  const std::string by_any = signature_of(any, "b", "c"), by_acme = signature_of(acme, "b", "c");
  EXPECT_OK(check_signer(trust, by_acme, "b", "acme.match", "1.0.0", "x"));
  EXPECT_OK(check_signer(trust, by_any, "b", "other.match", "1.0.0", "x"));
  EXPECT_THAT(error_of(check_signer(trust, by_any, "b", "acme.match", "1.0.0", "x")), HasSubstr("rule P17"));
  EXPECT_THAT(error_of(check_signer(trust, by_acme, "b", "other.match", "1.0.0", "x")), HasSubstr("rule P17"));
  trust.publishers.clear();
  EXPECT_THAT(error_of(check_signer(trust, by_any, "b", "acme.match", "1.0.0", "x")), HasSubstr("no key is"));
}

TEST(PackTrust, SwappedSignaturesAndRevocationsAreRefused) {
  const KeyPair acme = key_pair();
  Trust trust;
  trust.publishers = {trusted(acme, {"acme.*"})};
  const std::string signature = signature_of(acme, "bytes", "pack:acme.match\tversion:1.0.0");
  EXPECT_OK(check_signer(trust, signature, "bytes", "acme.match", "1.0.0", "x"));
  EXPECT_THAT(error_of(check_signer(trust, signature, "bytez", "acme.match", "1.0.0", "x")), HasSubstr("rule P16"));
  EXPECT_THAT(error_of(check_signer(trust, signature, "bytes", "acme.other", "1.0.0", "x")), HasSubstr("rule P19"));
  EXPECT_THAT(error_of(check_signer(trust, signature, "bytes", "acme.match", "2.0.0", "x")), HasSubstr("rule P19"));
  trust.revoked = {{acme.public_key.id_text(), "", "", "stolen", false}};
  EXPECT_THAT(error_of(check_signer(trust, signature, "bytes", "acme.match", "1.0.0", "x")),
              testing::AllOf(HasSubstr("rule P18"), HasSubstr("stolen")));
  trust.revoked = {{"", std::string(64, 'a'), "acme.match", "bad", false}};
  EXPECT_THAT(error_of(check_not_revoked(trust, std::string(64, 'a'), "acme.match", "x")), HasSubstr("rule P18"));
  EXPECT_OK(check_not_revoked(trust, std::string(64, 'a'), "other.match", "x"));  // nobody revokes others' packs
  EXPECT_OK(check_not_revoked(trust, std::string(64, 'b'), "acme.match", "x"));
}

// Whoever makes a key chooses its id, and can choose that of another key.
TEST(PackTrust, AKeyCountsWholeNotByItsId) {
  const KeyPair acme = key_pair();
  KeyPair twin = key_pair();
  twin.public_key.id = twin.secret_key.id = acme.public_key.id;
  Trust trust;
  trust.publishers = {trusted(twin, {"twin.*"}), trusted(acme, {"acme.*"})};
  const std::string by_acme = signature_of(acme, "b", "c"), by_twin = signature_of(twin, "b", "c");
  const auto finds = [&](const std::string& text) {
    const auto signatures = parse_signatures(text, "x");
    const auto signers = find_signers(trust, *signatures, "b", "x");
    return signers.ok() ? signers->at(0)->ids.at(0) : signers.error().to_string();
  };
  EXPECT_EQ(finds(by_twin), "twin.*");
  EXPECT_EQ(finds(by_acme), "acme.*");
  EXPECT_OK(check_signer(trust, by_acme, "b", "acme.match", "1.0.0", "x"));
  EXPECT_THAT(error_of(check_signer(trust, by_twin, "b", "acme.match", "1.0.0", "x")), HasSubstr("rule P16"));
  // The twin is revoked; the key of the same id is not.
  trust.revoked = {{twin.public_key.text(), "", "", "stolen", false}};
  EXPECT_OK(check_signer(trust, by_acme, "b", "acme.match", "1.0.0", "x"));
  EXPECT_THAT(finds(by_twin), testing::AllOf(HasSubstr("rule P18"), HasSubstr("stolen")));
  EXPECT_EQ(trust.revocation_of_key(acme.public_key.text()), nullptr);
  EXPECT_NE(trust.revocation_of_key(twin.public_key.text()), nullptr);
  EXPECT_NE(trust.revocation_of_key(acme.public_key.id_text()), nullptr) << "no more than the id is known";
  // A revoked key that nobody trusts is told as such, too.
  trust.publishers = {trusted(acme, {"acme.*"})};
  EXPECT_THAT(finds(by_twin), HasSubstr("rule P18"));
  // An id that the user wrote counts for every key of it.
  trust.revoked = {{acme.public_key.id_text(), "", "", "", false}};
  EXPECT_THAT(finds(by_acme), HasSubstr("rule P18"));
  EXPECT_THAT(finds(by_twin), HasSubstr("rule P18"));
}

TEST(PackTrust, KeysAreNamedByFileTextOrId) {
  const TempDir dir;
  KeyPair first = key_pair(), twin = key_pair();
  first.public_key.id = {1, 2, 3, 4, 5, 6, 7, 0};  // minisign prints no leading zeros
  const std::vector<SigningPublicKey> known = {first.public_key, first.public_key};
  const Path file = dir.write("k.pub", public_key_file(first.public_key));
  for (const std::string& word :
       {std::string("0007060504030201"), std::string("7060504030201"), file.string(), first.public_key.text()}) {
    ASSERT_OK_AND_ASSIGN(const SigningPublicKey key, find_key(default_env(), word, known));
    EXPECT_EQ(key, first.public_key) << word;
  }
  twin.public_key.id = first.public_key.id;
  EXPECT_THAT(error_of(find_key(default_env(), "7060504030201", {first.public_key, twin.public_key})),
              HasSubstr("several keys"));
  EXPECT_THAT(error_of(find_key(default_env(), "1", known)), HasSubstr("no known key"));
  EXPECT_THAT(error_of(find_key(default_env(), "nothing.pub", known)), HasSubstr("nothing.pub"));
}

TEST(PackTrust, ARevocationInAFileMayHaveEitherSpelling) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  const KeyPair key = key_pair();
  for (const char* id : {"23456789abcdef", "0023456789ABCDEF", "23456789ABCDEF"}) {
    dir.write("user/trust.toml", "[[revoked]]\nkey = \"" + std::string(id) + "\"\n");
    ASSERT_OK_AND_ASSIGN(const Trust trust, read_trust(default_env(), places));
    EXPECT_NE(trust.revocation_of_key("0023456789ABCDEF"), nullptr) << id;
  }
  dir.write("user/trust.toml", "[[revoked]]\nkey = \"" + key.public_key.text() + "\"\n");
  ASSERT_OK_AND_ASSIGN(const Trust trust, read_trust(default_env(), places));
  EXPECT_NE(trust.revocation_of_key(key.public_key.text()), nullptr);
  dir.write("user/trust.toml", "[[revoked]]\nkey = \"acme\"\n");  // it would revoke nothing
  EXPECT_THAT(error_of(read_trust(default_env(), places)), HasSubstr("neither a public key nor the id of one"));
}

TEST(PackTrust, ManyProcessesChangeTheFileAndLoseNothing) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  constexpr int kWriters = 8;
  std::vector<pid_t> writers;
  for (int i = 0; i < kWriters; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto done = change_trust(default_env(), places, [&](Trust& trust) -> Result<> {
        ::usleep(20'000);  // long enough for all to be here at once
        trust.revoked.push_back({key_id_text({static_cast<unsigned char>(i)}), "", "", "", false});
        return {};
      });
      ::_exit(done.ok() ? 0 : 1);
    }
    writers.push_back(child);
  }
  for (const pid_t child : writers) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ASSERT_OK_AND_ASSIGN(const Trust trust, read_trust(default_env(), places));
  EXPECT_EQ(trust.revoked.size(), static_cast<size_t>(kWriters));
}

TEST(PackTrust, AFileThatEverybodyCanWriteIsNotTrusted) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  for (const char* name : {"user/trust.toml", "etc/policy.toml"}) {
    const Path path = dir.write(name, "");
    std::filesystem::permissions(path, std::filesystem::perms::others_write, std::filesystem::perm_options::add);
    EXPECT_THAT(error_of(read_trust(default_env(), places)) + error_of(machine_policy(default_env(), places)),
                HasSubstr("every user of this machine can write"))
        << name;
    std::filesystem::remove(path);
  }
}

TEST(PackTrust, AnIndexInTheFileIsNamedFromTheRoot) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  const auto with_index = [&](const std::string& index) {
    dir.write("user/trust.toml", "[[publisher]]\nkeys = [\"" + key_pair().public_key.text() +
                                     "\"]\nids = [\"*\"]\nindex = \"" + index + "\"\n");
    const auto trust = read_trust(default_env(), places);
    return trust.ok() ? trust->publishers.at(0).index : trust.error().to_string();
  };
  EXPECT_EQ(with_index("HTTPS://Packs.Acme.dev:443/"), "https://packs.acme.dev");
  EXPECT_EQ(with_index("/srv/packs/"), "/srv/packs");
  EXPECT_THAT(with_index("packs"), HasSubstr("from / on"));
  EXPECT_THAT(with_index("http://packs.acme.dev"), HasSubstr("https"));
}

TEST(PackTrust, FilesOfTheUserAndOfTheMachineBothCount) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  const KeyPair user = key_pair(), machine = key_pair();
  Trust trust;
  trust.publishers = {trusted(user, {"acme.*"})};
  trust.publishers[0].name = "A \"quoted\"\nname";
  trust.revoked = {{"0123456789ABCDEF", "", "", "lost", false}};
  ASSERT_OK(write_trust(default_env(), places, trust));
  dir.write("etc/trust.toml", "[[publisher]]\nkeys = [\"" + machine.public_key.text() + "\"]\nids = [\"corp.*\"]\n");
  ASSERT_OK_AND_ASSIGN(const Trust read, read_trust(default_env(), places));
  ASSERT_EQ(read.publishers.size(), 2U);
  EXPECT_TRUE(read.publishers[0].of_machine);
  EXPECT_EQ(read.publishers[1].signers.keys, std::vector{user.public_key});
  EXPECT_EQ(read.publishers[1].name, trust.publishers[0].name);
  ASSERT_NE(read.revocation_of_key("0123456789ABCDEF"), nullptr);
  // Writing again keeps the machine's entries out of the user's file.
  ASSERT_OK(write_trust(default_env(), places, read));
  EXPECT_EQ(dir.read("user/trust.toml").find(machine.public_key.text()), std::string::npos);
  const std::string one = '"' + user.public_key.text() + '"', two = one + ", \"" + machine.public_key.text() + '"';
  for (const std::string& bad :
       std::vector<std::string>{"[[publisher]]\nkeys = [\"RWQ\"]\n", "[[publisher]]\nids = []\n", "[[publishers]]\n",
                                "publisher = 3\n", "[[revoked]]\nreason = \"x\"\n", "[[publisher]]\nkeys = 7\n", "x\n",
                                "[[publisher]]\nkeys = [" + one + ", " + one + "]\nthreshold = 2\n",
                                "[[publisher]]\nkeys = [" + two + "]\nthreshold = 3\n",
                                "[[publisher]]\nkeys = [" + two + "]\nthreshold = 0\n",
                                "[[publisher]]\nkeys = [" + two + "]\nthreshold = 4294967297\n",
                                "[[publisher]]\nkeys = [" + one + "]\nformer = [\"x\"]\n"}) {
    dir.write("etc/trust.toml", bad);
    const auto refused = read_trust(default_env(), places);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.error().kind, ErrorKind::kConfig) << bad;
    EXPECT_THAT(refused.error().to_string(), HasSubstr("trust.toml")) << bad;
  }
}

TEST(PackTrust, PoliciesOnlyBecomeTighter) {
  const TempDir dir;
  const PackPlaces places{dir / "store", dir / "user", dir / "etc"};
  ASSERT_OK_AND_ASSIGN(const TrustPolicy none, machine_policy(default_env(), places));
  EXPECT_EQ(none.text(), "any");
  dir.write("etc/policy.toml", "[plugins]\ntrust = \"signed\"\n");
  ASSERT_OK_AND_ASSIGN(const TrustPolicy machine, machine_policy(default_env(), places));
  ASSERT_OK_AND_ASSIGN(const TrustPolicy any, parse_trust_policy("any", "x"));
  ASSERT_OK_AND_ASSIGN(const TrustPolicy locked, parse_trust_policy("locked", "x"));
  EXPECT_EQ(tighter(machine, any).text(), "signed");
  EXPECT_EQ(tighter(any, machine).text(), "signed");
  EXPECT_EQ(tighter(machine, locked).text(), "locked and signed");
  EXPECT_THAT(error_of(parse_trust_policy("sined", "--trust")), HasSubstr("--trust: the trust 'sined'"));
  // A policy that cannot be read is no policy at all: it ends the run.
  for (const char* bad : {"[plugins]\ntrust = 3\n", "[plugins]\ntrust = \"x\"\n", "[plugin]\n", "plugins = 1\n", "]"}) {
    dir.write("etc/policy.toml", bad);
    EXPECT_FALSE(machine_policy(default_env(), places).ok()) << bad;
  }
}

}  // namespace
}  // namespace mortise::test
