// Publishers whose packs several keys sign: k of n. One stolen key is of no use, and keys rotate if k of the old agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "archive_maker.h"
#include "packs/index.h"
#include "packs/origin.h"
#include "packs/signers.h"
#include "packs/signing.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kOneVersion = "pack:test.versions\tversion:1.0.0";

SignerSet set_of(const std::vector<KeyPair>& pairs, uint32_t threshold) {
  SignerSet set;
  for (const KeyPair& pair : pairs) set.keys.push_back(pair.public_key);
  set.threshold = threshold;
  return set;
}

std::vector<KeyPair> key_pairs(size_t count) {
  std::vector<KeyPair> pairs;
  for (size_t i = 0; i < count; ++i) pairs.push_back(*make_key_pair());
  return pairs;
}

std::string signed_by(const std::vector<KeyPair>& pairs, std::string_view bytes,
                      const std::string& comment = kOneVersion) {
  std::string text;
  for (const KeyPair& pair : pairs) text += *sign_bytes(pair.secret_key, bytes, comment);
  return text;
}

// Two of a, b and c sign what is in test.*.
class PackThreshold : public testing::Test {
 protected:
  void SetUp() override {
    trust_.publishers = {{set_of({a_, b_, c_}, 2), {"test.*"}, "Acme", "", false}};
    ASSERT_OK(write_trust(default_env(), places_, trust_));
  }

  [[nodiscard]] std::string checked(const std::string& signatures) const {
    return error_of(check_signer(trust_, signatures, "bytes", "test.versions", "1.0.0", "x"));
  }

  // The archive of a version, signed by these keys.
  Path archive(const std::vector<KeyPair>& pairs, const std::string& name = "v1_0_0") {
    const PackArchive pack = versioned_pack(name);
    const std::string file = archive_file_name(pack.description);
    dir_.write(file + ".minisig",
               signed_by(pairs, pack.bytes, "pack:test.versions\tversion:" + pack.description.version));
    return dir_.write(file, pack.bytes);
  }
  [[nodiscard]] PublishRequest request(std::vector<Path> archives = {}) const {
    PublishRequest out;
    out.archives = std::move(archives);
    out.lifetime_s = 1000;
    return out;
  }
  void publish(const KeyPair& pair, const PublishRequest& what) {
    const auto done = publish_index(default_env(), folder(), pair.secret_key, what);
    ASSERT_TRUE(done.ok()) << done.error().to_string();
  }
  Result<Countersigned> countersign(const KeyPair& pair, std::vector<SigningPublicKey> previous = {}) {
    return countersign_index(default_env(), folder(), {&pair.secret_key, {}, std::move(previous)});
  }
  // Version 1 of the index, of the three, with one archive.
  void publish_first() {
    PublishRequest first = request({archive({a_})});
    first.signers = set_of({a_, b_, c_}, 2);
    publish(a_, first);
  }

  // The error of reading the index, or "ok".
  std::string read() {
    auto source = open_source(default_env(), folder().string(), {});
    EXPECT_TRUE(source.ok());
    auto index = read_index(default_env(), places_, folder().string(), **source, trust_);
    if (!index.ok()) return index.error().to_string();
    index_ = index->index;
    news_ = index->news;
    return "ok";
  }
  // Reads the index and then checks its archive of this version, as `install` does.
  std::string fetch(const std::string& version) {
    const IndexedPack* pack = *index_.newest("test.versions", "=" + version);
    if (pack == nullptr) return "not there";
    auto source = open_source(default_env(), folder().string(), {});
    auto fetched = fetch_indexed(**source, *pack, "here");
    if (!fetched.ok()) return fetched.error().to_string();
    return error_of(check_signer(trust_, fetched->signature, fetched->bytes, pack->id, pack->version, "x"));
  }
  // Signs the index as it lies there.
  void sign(const std::vector<KeyPair>& pairs) {
    dir_.write("public/index.json.minisig", signed_by(pairs, dir_.read("public/index.json"), "c"));
  }
  // An index that a thief wrote, whose keys are `pairs`.
  void forge(PackIndex index, const std::vector<KeyPair>& pairs) {
    index.created = 1;
    index.expires = int64_t{1} << 40;
    dir_.write("public/index.json", index_text(index));
    sign(pairs);
  }
  Path folder() { return dir_ / "public"; }

  TempDir dir_;
  PackPlaces places_{dir_ / "store", dir_ / "user", dir_ / "etc"};
  std::vector<KeyPair> keys_ = key_pairs(6);
  KeyPair a_ = keys_[0], b_ = keys_[1], c_ = keys_[2], d_ = keys_[3], e_ = keys_[4], thief_ = keys_[5];
  Trust trust_;
  PackIndex index_;
  std::vector<std::string> news_;
};

TEST_F(PackThreshold, EnoughKeysInAnyOrder) {
  for (const auto& pairs : std::vector<std::vector<KeyPair>>{
           {a_, b_}, {b_, a_}, {c_, a_}, {a_, b_, c_}, {thief_, c_, d_, b_}, {a_, a_, b_}})
    EXPECT_EQ(checked(signed_by(pairs, "bytes")), "ok");
  const auto by =
      check_signer(trust_, signed_by({thief_, c_, a_, c_}, "bytes"), "bytes", "test.versions", "1.0.0", "x");
  ASSERT_OK(by);
  EXPECT_EQ(by->keys, (std::vector{c_.public_key, a_.public_key})) << "those that count";
}

TEST_F(PackThreshold, TooFewKeysAreRefused) {
  for (const KeyPair& one : {a_, b_, c_}) {
    EXPECT_THAT(checked(signed_by({one}, "bytes")),
                testing::AllOf(HasSubstr("rule P25"), HasSubstr("1 of the 2 signatures that Acme needs"),
                               HasSubstr(one.public_key.id_text())));
    EXPECT_THAT(checked(signed_by({one, thief_, d_}, "bytes")), HasSubstr("rule P25"));
  }
  EXPECT_THAT(checked(signed_by({thief_, d_}, "bytes")), HasSubstr("rule P17"));
  EXPECT_THAT(checked(signed_by({a_}, "bytes") + signed_by({b_}, "other")), HasSubstr("rule P25"));
  EXPECT_THAT(checked(signed_by({a_}, "bytes") + signed_by({b_}, "bytes", "pack:test.other")), HasSubstr("rule P19"));
  // Without a policy too few signatures are as good as none; a forged one is worse.
  PackArchive pack = versioned_pack();
  const auto any = [&](const std::string& text) { return check_origin(trust_, TrustPolicy{}, pack, text); };
  ASSERT_OK_AND_ASSIGN(const ArchiveOrigin doubtful, any(signed_by({a_}, pack.bytes)));
  EXPECT_FALSE(doubtful.signer);
  EXPECT_THAT(doubtful.doubt, HasSubstr("rule P25"));
  EXPECT_THAT(error_of(any(signed_by({a_}, pack.bytes) + signed_by({b_}, "other"))), HasSubstr("one is forged"));
  EXPECT_THAT(error_of(check_origin(trust_, {false, true}, pack, signed_by({a_}, pack.bytes))), HasSubstr("rule P25"));
  ASSERT_OK_AND_ASSIGN(const ArchiveOrigin good, any(signed_by({a_, c_}, pack.bytes)));
  EXPECT_TRUE(good.signer);
}

TEST_F(PackThreshold, AKeyCountsOnce) {
  EXPECT_THAT(checked(signed_by({a_, a_, a_}, "bytes")), HasSubstr("rule P25"));
  EXPECT_THAT(checked(signed_by({a_}, "bytes", "one") + signed_by({a_}, "bytes", "two")), HasSubstr("rule P25"));
  // The same key under another id.
  KeyPair twin = a_;
  twin.public_key.id = twin.secret_key.id = d_.public_key.id;
  trust_.publishers[0].signers = set_of({a_, twin, b_}, 2);
  EXPECT_THAT(checked(signed_by({a_, twin}, "bytes")), HasSubstr("rule P25"));
  EXPECT_THAT(signer_set_fault(set_of({a_, twin, b_}, 2)), HasSubstr("are the same key"));
  EXPECT_THAT(signer_set_fault(set_of({a_, b_, a_}, 2)), HasSubstr("twice"));
  // Another key under the same id.
  twin = d_;
  twin.public_key.id = twin.secret_key.id = a_.public_key.id;
  EXPECT_THAT(signer_set_fault(set_of({a_, twin}, 2)), HasSubstr("twice"));
  for (const uint32_t threshold : {0U, 3U}) EXPECT_NE(signer_set_fault(set_of({a_, b_}, threshold)), "");
  EXPECT_NE(signer_set_fault(SignerSet{}), "");
  EXPECT_NE(signer_set_fault(set_of(key_pairs(kMaxSigners + 1), 2)), "");
}

TEST_F(PackThreshold, ARevokedKeyDoesNotCount) {
  trust_.revoked = {{b_.public_key.text(), "", "", "stolen", false}};
  EXPECT_THAT(checked(signed_by({a_, b_}, "bytes")),
              testing::AllOf(HasSubstr("rule P25"), HasSubstr(b_.public_key.id_text()), HasSubstr("stolen")));
  EXPECT_THAT(checked(signed_by({b_}, "bytes")), HasSubstr("rule P18"));
  EXPECT_EQ(checked(signed_by({a_, b_, c_}, "bytes")), "ok") << "two others are enough";
  PackArchive pack = versioned_pack();
  EXPECT_THAT(error_of(check_origin(trust_, TrustPolicy{}, pack, signed_by({a_, b_}, pack.bytes))),
              HasSubstr("rule P25"))
      << "no policy takes a revoked key";
  // What was installed with two keys is no longer used, what was installed with three is.
  EXPECT_EQ(revocation_of_signers(trust_, set_of({a_, b_}, 2)), &trust_.revoked[0]);
  EXPECT_EQ(revocation_of_signers(trust_, set_of({a_, b_, c_}, 2)), nullptr);
  EXPECT_EQ(revocation_of_signers(trust_, SignerSet{}), nullptr) << "unsigned";
  trust_.revoked.push_back({a_.public_key.id_text(), "", "", "", false});
  EXPECT_THAT(checked(signed_by({a_, b_, c_}, "bytes")), HasSubstr("rule P25"));
}

TEST_F(PackThreshold, AnIndexIsSignedByOneAfterTheOther) {
  publish_first();
  const std::string text = dir_.read("public/index.json");
  EXPECT_THAT(read(), testing::AllOf(HasSubstr("rule P25"), HasSubstr("1 of the 2")));
  EXPECT_FALSE(default_env().exists(places_.user_config / "index")) << "a refused index is not remembered";
  ASSERT_OK_AND_ASSIGN(const Countersigned done, countersign(b_));
  EXPECT_EQ(done.keys, (std::vector{a_.public_key, b_.public_key}));
  EXPECT_EQ(done.files.size(), 2U) << "the index and its archive";
  EXPECT_EQ(dir_.read("public/index.json"), text) << "it is not changed";
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(fetch("1.0.0"), "ok");
  EXPECT_TRUE(news_.empty());
  // The same key again changes nothing that counts, and a third one may join.
  ASSERT_OK(countersign(b_));
  EXPECT_EQ(read(), "ok");
  ASSERT_OK_AND_ASSIGN(const Countersigned all, countersign(c_));
  EXPECT_EQ(all.keys.size(), 3U);
  EXPECT_EQ(all.files, std::vector<std::string>{"index.json.minisig"}) << "its archive had two signatures";
  EXPECT_EQ(read(), "ok");
}

TEST_F(PackThreshold, OnlyWhatTheIndexNamesIsCountersigned) {
  publish_first();
  EXPECT_THAT(error_of(countersign(thief_)),
              testing::AllOf(HasSubstr("rule P25"), HasSubstr("not one of the signers")));
  KeyPair disguised = thief_;
  disguised.secret_key.id = b_.public_key.id;
  EXPECT_THAT(error_of(countersign(disguised)), HasSubstr("not one of the signers"));
  // Whoever can write into the folder exchanged the archive.
  const std::string good = dir_.read("public/test.versions-1.0.0.mpack");
  dir_.write("public/test.versions-1.0.0.mpack", versioned_pack("v1_2_0").bytes);
  EXPECT_THAT(error_of(countersign(b_)), HasSubstr("rule P23"));
  EXPECT_THAT(read(), HasSubstr("1 of the 2")) << "nothing was signed";
  dir_.write("public/test.versions-1.0.0.mpack", good);
  ASSERT_OK(countersign(b_));
  // An index of one key has nothing to add to; an expired one is published again.
  std::filesystem::remove_all(folder());
  publish(a_, request());
  EXPECT_THAT(error_of(countersign(b_)), HasSubstr("one key signs this index"));
  PublishRequest old = request();
  old.signers = set_of({a_, b_}, 2);
  old.lifetime_s = -1;
  publish(a_, old);
  EXPECT_THAT(error_of(countersign(b_)), HasSubstr("rule P22"));
}

TEST_F(PackThreshold, ASignerBuildsOnWhatItSignedOrIsTold) {
  publish_first();
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), b_.secret_key, request())), HasSubstr("rule P16"));
  PublishRequest told = request();
  told.previous = {a_.public_key};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), b_.secret_key, told)), HasSubstr("rule P25"))
      << "one key is too few: it may be stolen";
  told.previous = {a_.public_key, a_.public_key};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), b_.secret_key, told)), HasSubstr("twice"));
  told.previous = {a_.public_key, c_.public_key};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), b_.secret_key, told)), HasSubstr("rule P16"))
      << "c did not sign it";
  ASSERT_OK(countersign(c_));
  publish(b_, told);
  ASSERT_OK(countersign(a_));
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(index_.version, 2U);
  EXPECT_EQ(index_.packs.size(), 1U);
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), thief_.secret_key,
                                     {{}, {}, {}, "", 9, {a_.public_key, b_.public_key}})),
              testing::AllOf(HasSubstr("rule P25"), HasSubstr("sign this index")));
}

// What a thief of one key can do: nothing that a reader takes.
TEST_F(PackThreshold, OneStolenKeyNeitherPublishesNorRotatesNorRevokes) {
  publish_first();
  ASSERT_OK(countersign(b_));
  ASSERT_EQ(read(), "ok");
  const Trust before = trust_;
  PackIndex forged = index_;
  forged.version = 9;
  forge(forged, {a_, thief_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "another index";
  forged.signers = set_of({thief_, d_}, 1);
  forge(forged, {a_, thief_, d_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "other signers";
  forged.signers = {};
  forge(forged, {a_, thief_, d_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "no signers any more";
  forged.keys = {{thief_.public_key, {"test.*"}}};
  forge(forged, {a_, thief_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "a further key";
  forged = index_;
  forged.version = 9;
  forged.revoked = {{b_.public_key.text(), "", "", "", false}};
  forge(forged, {a_, thief_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "a revocation of the others";
  // An archive that is handed over without an index.
  const PackArchive pack = versioned_pack("v2_0_0");
  EXPECT_THAT(error_of(check_signer(trust_, signed_by({a_, thief_}, pack.bytes, "c"), pack.bytes, "test.versions",
                                    "2.0.0", "x")),
              HasSubstr("rule P25"));
  EXPECT_TRUE(trust_.revoked.empty());
  ASSERT_EQ(trust_.publishers.size(), 1U);
  EXPECT_TRUE(trust_.publishers[0].signers.same_as(before.publishers[0].signers));
  // The two others go on, and put the key out.
  forged = index_;
  forged.version = 10;
  forged.signers = set_of({b_, c_, d_}, 2);
  forged.revoked = {{a_.public_key.text(), "", "", "stolen", false}};
  forge(forged, {b_, c_});
  EXPECT_EQ(read(), "ok");
  EXPECT_THAT(news_,
              testing::ElementsAre(HasSubstr("are now signed by 2 of the keys"), HasSubstr("is revoked: stolen")));
  EXPECT_THAT(checked(signed_by({a_, b_}, "bytes")), HasSubstr("rule P25"));
  EXPECT_EQ(checked(signed_by({d_, b_}, "bytes")), "ok");
}

// Other keys take over only if `threshold` of the old ones say so, and enough of the new ones, too.
TEST_F(PackThreshold, ARotationNeedsOldAndNewKeys) {
  publish_first();
  ASSERT_OK(countersign(b_));
  ASSERT_EQ(read(), "ok");
  PublishRequest rotate = request();
  rotate.signers = set_of({c_, d_, e_}, 2);
  publish(a_, rotate);
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "one old key";
  EXPECT_THAT(error_of(countersign(b_)), HasSubstr("--previous-key")) << "it is not one of the new signers";
  ASSERT_OK(countersign(b_, {b_.public_key}));
  EXPECT_THAT(read(), HasSubstr("but only 0 of them did")) << "no new key";
  ASSERT_OK(countersign(d_));
  EXPECT_THAT(read(), HasSubstr("but only 1 of them did"));
  sign({d_, e_, a_});
  EXPECT_THAT(read(), HasSubstr("rule P25")) << "two new keys and one old one";
  const std::string both = signed_by({e_, a_, d_, b_}, dir_.read("public/index.json"), "c");
  dir_.write("public/index.json.minisig", both);
  EXPECT_EQ(read(), "ok");
  EXPECT_THAT(news_, testing::ElementsAre(HasSubstr("are now signed by 2 of the keys " + c_.public_key.id_text())));
  ASSERT_OK_AND_ASSIGN(const Trust stored, read_trust(default_env(), places_));
  ASSERT_EQ(stored.publishers.size(), 1U);
  EXPECT_TRUE(stored.publishers[0].signers.same_as(rotate.signers));
  EXPECT_EQ(stored.publishers[0].former, (std::vector{a_.public_key, b_.public_key}));
  EXPECT_EQ(stored.publishers[0].name, "Acme");
  // The archive has the old signatures still: the new signers add theirs.
  EXPECT_EQ(read(), "ok");
  EXPECT_TRUE(news_.empty());
  EXPECT_THAT(fetch("1.0.0"), HasSubstr("rule P25")) << "d signed it when it signed the index";
  ASSERT_OK(countersign(e_));
  EXPECT_EQ(fetch("1.0.0"), "ok");
  EXPECT_THAT(checked(signed_by({a_, b_}, "bytes")), HasSubstr("rule P17")) << "the old keys count no more";
}

TEST_F(PackThreshold, RotationsInTheWrongOrderAreRefused) {
  publish_first();
  ASSERT_OK(countersign(b_));
  const std::string first = dir_.read("public/index.json"), first_signatures = dir_.read("public/index.json.minisig");
  PublishRequest rotate = request();
  rotate.signers = set_of({d_, e_}, 2);
  publish(a_, rotate);
  const std::string second = dir_.read("public/index.json");
  sign({d_, e_});
  publish(d_, request());
  ASSERT_OK(countersign(e_));
  // The third index, of the new keys alone, before the second, which names them.
  EXPECT_THAT(read(), HasSubstr("rule P17"));
  const std::string third = dir_.read("public/index.json"), third_signatures = dir_.read("public/index.json.minisig");
  dir_.write("public/index.json", second);
  sign({a_, b_, d_, e_});
  EXPECT_EQ(read(), "ok");
  dir_.write("public/index.json", third);
  dir_.write("public/index.json.minisig", third_signatures);
  EXPECT_EQ(read(), "ok");
  // Back to the old keys.
  dir_.write("public/index.json", first);
  dir_.write("public/index.json.minisig", first_signatures);
  EXPECT_THAT(read(), HasSubstr("rule P17"));
  dir_.write("public/index.json", second);
  sign({a_, b_, d_, e_});
  EXPECT_THAT(read(), HasSubstr("rule P21"));
}

// A pack that was installed long ago is known by the key that signed it, also after that key was rotated out.
TEST_F(PackThreshold, AFormerKeyCanStillBeRevoked) {
  publish_first();
  PublishRequest rotate = request();
  rotate.signers = set_of({c_, d_}, 2);
  publish(a_, rotate);
  sign({a_, b_, c_, d_});
  ASSERT_EQ(read(), "ok");
  PublishRequest revoke = request();
  revoke.revoked = {{a_.public_key.text(), "", "", "found later", false}};
  publish(c_, revoke);
  ASSERT_OK(countersign(d_));
  EXPECT_EQ(read(), "ok");
  EXPECT_THAT(news_, testing::ElementsAre(HasSubstr("is revoked: found later")));
  EXPECT_NE(revocation_of_signers(trust_, set_of({a_, b_}, 2)), nullptr);
  // A key in `former` counts nothing, and only its own publisher revokes it.
  EXPECT_THAT(checked(signed_by({b_, c_}, "bytes")), HasSubstr("rule P25"));
  trust_.publishers.push_back({one_signer(e_.public_key), {"other.*"}, "", "", false});
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  PackIndex other;
  other.version = 7;
  other.revoked = {{b_.public_key.text(), "", "", "", false}};
  forge(other, {e_});
  EXPECT_THAT(read(), HasSubstr("rule P20"));
}

// From one key to several, and the signers that an index names must be able to sign the next one.
TEST_F(PackThreshold, OneKeyBecomesSeveral) {
  trust_.publishers = {{one_signer(a_.public_key), {"test.*"}, "", "", false}};
  ASSERT_OK(write_trust(default_env(), places_, trust_));
  publish_first();
  EXPECT_THAT(read(), testing::AllOf(HasSubstr("rule P25"), HasSubstr("but only 1 of them did")));
  ASSERT_OK(countersign(b_));
  EXPECT_EQ(read(), "ok");
  EXPECT_TRUE(trust_.publishers[0].signers.same_as(set_of({a_, b_, c_}, 2)));
  // Two keys sign, but one of them is revoked by the same index: nobody could sign the next one.
  PublishRequest locked_out = request();
  locked_out.signers = set_of({a_, b_}, 2);
  locked_out.revoked = {{b_.public_key.text(), "", "", "", false}};
  publish(a_, locked_out);
  sign({a_, b_, c_});
  EXPECT_THAT(read(), HasSubstr("but only 1 of them did"));
}

// The administrator's file is not ours to change: the new signers come into the user's.
TEST_F(PackThreshold, APublisherOfTheMachineRotatesInTheFileOfTheUser) {
  std::filesystem::create_directories(dir_ / "etc");
  std::filesystem::rename(dir_ / "user/trust.toml", dir_ / "etc/trust.toml");
  const std::string machine = dir_.read("etc/trust.toml");
  PublishRequest rotate = request();
  rotate.signers = set_of({d_, e_}, 2);
  publish(a_, rotate);
  sign({a_, b_, d_, e_});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(read(), "ok");
    ASSERT_EQ(trust_.publishers.size(), 2U);
    EXPECT_TRUE(trust_.publishers[1].signers.same_as(rotate.signers));
    EXPECT_EQ(trust_.publishers[1].ids, std::vector<std::string>{"test.*"});
  }
  EXPECT_EQ(dir_.read("etc/trust.toml"), machine);
}

TEST_F(PackThreshold, SignaturesOfMinisignAreTaken) {
  if (std::system("command -v minisign >/dev/null 2>&1") != 0) GTEST_SKIP() << "minisign is not installed";
  publish_first();
  const auto minisign = [&](const KeyPair& pair, const std::string& file, const std::string& to) {
    dir_.write("k.sec", std::string(secret_key_file(pair.secret_key, "")->view()));
    const std::string command = "cd " + folder().string() + " && minisign -S -W -s ../k.sec -m " + file + " -x ../" +
                                to + " </dev/null >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return dir_ / to;
  };
  const std::string archive = "test.versions-1.0.0.mpack";
  const auto add = [&](const Path& file) { return countersign_index(default_env(), folder(), {nullptr, {file}}); };
  ASSERT_OK_AND_ASSIGN(const Countersigned first, add(minisign(b_, archive, "b1.minisig")));
  EXPECT_EQ(first.files, std::vector<std::string>{archive + ".minisig"});
  EXPECT_THAT(read(), HasSubstr("1 of the 2"));
  ASSERT_OK_AND_ASSIGN(const Countersigned second, add(minisign(b_, "index.json", "b2.minisig")));
  EXPECT_EQ(second.keys.size(), 2U);
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(fetch("1.0.0"), "ok");
  // A signature by a stranger is refused, and so is one of another file.
  EXPECT_THAT(error_of(add(minisign(thief_, "index.json", "t.minisig"))), HasSubstr("not one of the signers"));
  dir_.write("public/notes.txt", "x");
  EXPECT_THAT(error_of(add(minisign(c_, "notes.txt", "n.minisig"))), HasSubstr("rule P19"));
  const Path stale = minisign(c_, "index.json", "stale.minisig");
  publish(a_, request());
  EXPECT_THAT(error_of(add(stale)), HasSubstr("rule P16"));
}

}  // namespace
}  // namespace mortise::test
