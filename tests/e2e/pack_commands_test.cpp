// The commands of `mortise pack`: help, wrong use, JSON, exit codes; and none of them runs code of a pack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <vector>

#include "program.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

class PackCommands : public testing::Test {
 protected:
  // With a home of its own; what code of a pack would leave is `mark`.
  [[nodiscard]] Outcome pack(const std::string& words) const {
    const std::string home = dir_.path().string();
    return run("env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=" + home +
                   " MORTISE_TEST_MARK=" + home + "/mark " + program() + " pack " + words,
               dir_.path());
  }
  Json json(const std::string& words) const {
    const Outcome outcome = pack(words + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    auto value = parse_json(outcome.output, words);
    EXPECT_TRUE(value.ok()) << outcome.output;
    return value.ok() ? *value : Json();
  }
  static std::string library(const std::string& folder, const std::string& name) {
    return std::string(MORTISE_BINARY_DIR) + "/tests/packs/" + folder + "/" + name + ".so";
  }
  TempDir dir_;
};

TEST_F(PackCommands, EveryCommandHasHelpAndRefusesNonsense) {
  for (const std::string command : {"keygen", "build", "sign", "verify", "inspect", "install", "list", "remove",
                                    "outdated", "trust", "lock", "publish"}) {
    const Outcome help = pack(command + " --help");
    EXPECT_EQ(help.code, 0) << help.output;
    EXPECT_THAT(help.output, testing::AllOf(HasSubstr("usage: mortise pack " + command), HasSubstr("--json")));
    EXPECT_EQ(pack(command + " --nonsense").code, 2) << command;
  }
  EXPECT_EQ(pack("").code, 2);
  EXPECT_THAT(pack("instal x").output, HasSubstr("did you mean 'install'?"));
  EXPECT_EQ(pack("inspect nothing.mpack").code, 3);
  EXPECT_EQ(pack("install nothing.mpack").code, 3);
  EXPECT_EQ(pack("remove acme.nothing").code, 3);
  dir_.write("text.mpack", "this is no archive");
  EXPECT_EQ(pack("inspect text.mpack").code, 4);
}

TEST_F(PackCommands, NoCommandRunsCodeOfAPack) {
  const Json built = json("build " + library("constructor", "constructor") + " -o a.mpack");
  EXPECT_EQ(built["id"], "test.constructor");
  json("keygen --public k.pub --secret k.sec");
  EXPECT_EQ(default_env().info(dir_ / "k.sec")->size_bytes > 0, true);
  EXPECT_EQ(std::filesystem::status(dir_ / "k.sec").permissions() & std::filesystem::perms::others_read,
            std::filesystem::perms::none);
  EXPECT_EQ(pack("install a.mpack").code, 4) << "it is not signed";
  json("sign a.mpack --secret k.sec");
  EXPECT_EQ(json("verify a.mpack --public k.pub")["good"], true);
  EXPECT_EQ(pack("verify a.mpack").code, 4) << "nobody trusts the key";
  const Json seen = json("inspect a.mpack");
  EXPECT_EQ(seen["plugins"][0]["name"], "one");
  EXPECT_THAT(seen["rights"][0].get<std::string>(), HasSubstr("worker process"));
  json("trust k.pub --ids 'test.*'");
  const Json installed = json("install a.mpack");
  EXPECT_EQ(installed["signed_by"], seen["signed_by"]);
  EXPECT_EQ(json("list")["packs"].size(), 1U);
  json("publish a.mpack --to public --secret k.sec");
  EXPECT_EQ(json("outdated --index public")["packs"][0]["outdated"], false);
  EXPECT_EQ(json("install test.constructor --index public")["sha256"], built["sha256"]);
  EXPECT_EQ(json("remove test.constructor")["removed"].size(), 1U);
  EXPECT_EQ(json("trust --list")["publishers"][0]["ids"][0], "test.*");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "mark")) << "a command ran code of the pack";
}

TEST_F(PackCommands, AnInterruptedUpdateOfAnIndexIsNoticed) {
  json("keygen --public k.pub --secret k.sec");
  json("trust k.pub");
  json("build " + library("versions", "v1_0_0") + " -o a.mpack");
  json("sign a.mpack --secret k.sec");
  json("publish a.mpack --to public --secret k.sec");
  EXPECT_EQ(json("outdated test.versions --index public")["packs"][0]["newest"], "1.0.0");
  json("build " + library("versions", "v2_0_0") + " -o b.mpack");
  json("sign b.mpack --secret k.sec");
  const std::string old_signature = dir_.read("public/index.json.minisig");
  json("publish b.mpack --to public --secret k.sec");
  const std::string signature = dir_.read("public/index.json.minisig");
  dir_.write("public/index.json.minisig", old_signature);
  EXPECT_THAT(pack("install test.versions --index public").output, HasSubstr("rule P16"));
  dir_.write("public/index.json.minisig", signature);
  EXPECT_EQ(json("install test.versions --index public")["version"], "2.0.0");
  EXPECT_EQ(json("install test.versions@^1.0 --index public")["version"], "1.0.0");
  EXPECT_EQ(json("list")["packs"].size(), 2U);
}

// A pack of the tests, built and signed; trusted for test.*.
class SignedPack : public PackCommands {
 protected:
  void SetUp() override {
    json("keygen --public k.pub --secret k.sec");
    id_ = json("trust k.pub --ids 'test.*'")["publishers"][0]["keys"][0]["key"];
    make("v1_0_0", "a.mpack");
  }
  void make(const std::string& name, const std::string& file) const {
    json("build " + library("versions", name) + " -o " + file);
    json("sign " + file + " --secret k.sec");
  }
  std::string id_;  // the key's id
};

TEST_F(SignedPack, TrustIsNotWidenedByTheWay) {
  json("trust k.pub --name Acme --index packs/");
  const Json key = json("trust --list")["publishers"][0];
  EXPECT_EQ(key["ids"], Json({"test.*"}));
  EXPECT_EQ(key["name"], "Acme");
  EXPECT_EQ(key["index"], (dir_ / "packs").string()) << "kept from / on";
  EXPECT_EQ(json("trust k.pub --ids 'test.*' --ids 'acme.*'")["publishers"][0]["ids"].size(), 2U);
  EXPECT_EQ(json("trust k.pub")["publishers"][0]["name"], "Acme");
}

TEST_F(SignedPack, KeysAreNamedAsMinisignPrintsThem) {
  std::string printed = id_.substr(id_.find_first_not_of('0'));
  for (char& c : printed) c = static_cast<char>(std::tolower(c));
  EXPECT_EQ(json("trust --remove " + printed)["publishers"].size(), 0U);
  EXPECT_EQ(pack("trust --remove " + printed).code, 3);
  json("trust k.pub --ids 'test.*'");
  const Json revoked = json("trust --revoke " + printed)["revoked"][0];
  EXPECT_EQ(revoked["key"], id_);
  EXPECT_THAT(dir_.read("k.pub"), HasSubstr(revoked["public"].get<std::string>())) << "the key counts whole";
  EXPECT_EQ(pack("install a.mpack").code, 4);
  EXPECT_EQ(pack("trust k.pub").code, 4);
  EXPECT_EQ(json("trust --revoke 1")["revoked"].size(), 2U) << "an id of nobody's key here";
  EXPECT_EQ(pack("trust --revoke nonsense").code, 3);
}

TEST_F(SignedPack, VerifyRefusesARevokedKeyThatIsNamed) {
  EXPECT_EQ(pack("verify a.mpack --public k.pub").code, 0);
  json("trust --revoke k.pub --reason stolen");
  const Outcome refused = pack("verify a.mpack --public k.pub");
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.output, testing::AllOf(HasSubstr("rule P18"), HasSubstr("stolen")));
}

// Checking runs code of the pack. A key that was revoked is worse than no signature, whatever the policy.
TEST_F(SignedPack, CheckTakesNoArchiveOfARevokedKeyUnderAnyPolicy) {
  const auto check = [&](const std::string& words) {
    return run("env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=" + dir_.path().string() + " " +
                   program() + " plugin check a.mpack --only load.opens " + words,
               dir_.path());
  };
  EXPECT_EQ(check("").code, 0);
  json("trust --revoke k.pub --reason stolen");
  for (const std::string words : {"", "--trust any"}) {
    const Outcome refused = check(words);
    EXPECT_EQ(refused.code, 4) << words;
    EXPECT_THAT(refused.output, testing::AllOf(HasSubstr("rule P18"), HasSubstr("stolen"))) << words;
    EXPECT_THAT(pack("install a.mpack " + words).output, HasSubstr("rule P18")) << words;
  }
  // A key that nobody knows is as good as no signature. A forged signature is not.
  json("keygen --public n.pub --secret n.sec");
  json("sign a.mpack --secret n.sec");
  EXPECT_THAT(check("").output, HasSubstr("rule P17"));
  const Outcome unknown = check("--trust any");
  EXPECT_EQ(unknown.code, 0) << unknown.output;
  EXPECT_THAT(unknown.output, HasSubstr("the signature does not count"));
  json("trust n.pub --ids 'test.*'");
  const std::string signature = dir_.read("a.mpack.minisig");
  make("v2_0_0", "a.mpack");
  dir_.write("a.mpack.minisig", signature);
  EXPECT_THAT(check("--trust any").output, HasSubstr("rule P16"));
}

// Two of three keys: from the publisher's three homes to the reader, and what is refused on the way.
TEST_F(SignedPack, TwoOfThreeKeysSign) {
  for (const std::string name : {"b", "c", "n"}) json("keygen --public " + name + ".pub --secret " + name + ".sec");
  const std::string trio = "k.pub b.pub c.pub ",
                    signers = "--signer k.pub --signer b.pub --signer c.pub --threshold 2 ";
  EXPECT_EQ(pack("trust " + trio).code, 2) << "how many of them?";
  for (const std::string bad : {"0", "4"}) EXPECT_EQ(pack("trust " + trio + "--threshold " + bad).code, 2) << bad;
  EXPECT_EQ(pack("trust k.pub k.pub --threshold 2").code, 2);
  EXPECT_EQ(pack("trust --threshold 2 --list").code, 2);
  const Json trusted = json("trust " + trio + "--threshold 2 --name Acme")["publishers"];
  ASSERT_EQ(trusted.size(), 1U) << "the key alone is no longer enough";
  EXPECT_EQ(trusted[0]["threshold"], 2);
  EXPECT_EQ(trusted[0]["keys"].size(), 3U);
  EXPECT_EQ(trusted[0]["ids"], Json({"test.*"})) << "kept";
  EXPECT_EQ(json("trust " + trio + "--index public")["publishers"][0]["threshold"], 2) << "kept";
  EXPECT_THAT(pack("trust k.pub").output, HasSubstr("names only some of these keys"));
  EXPECT_THAT(pack("trust --list").output, HasSubstr("2 of "));
  // An archive by itself.
  EXPECT_THAT(pack("verify a.mpack").output, HasSubstr("rule P25"));
  EXPECT_THAT(pack("install a.mpack").output, HasSubstr("rule P25"));
  EXPECT_THAT(pack("verify a.mpack --public k.pub --public b.pub --threshold 2").output, HasSubstr("rule P25"));
  EXPECT_EQ(json("verify a.mpack --public k.pub --public b.pub")["signed_by"], Json({id_}));
  EXPECT_EQ(json("sign a.mpack --secret b.sec --add-signature")["signed_by"].size(), 2U);
  EXPECT_EQ(json("sign a.mpack --secret b.sec --add-signature")["signed_by"].size(), 2U) << "each key once";
  EXPECT_EQ(json("verify a.mpack --public k.pub --public b.pub --threshold 2")["threshold"], 2);
  EXPECT_EQ(json("inspect a.mpack")["signed_by"].size(), 2U);
  // An index.
  EXPECT_EQ(pack("publish a.mpack --to public --secret k.sec --threshold 2").code, 2) << "no --signer";
  const Outcome published = pack("publish a.mpack --to public --secret k.sec " + signers);
  EXPECT_THAT(published.output, testing::AllOf(HasSubstr("1 of 2 signatures"), HasSubstr("--add-signature")));
  EXPECT_THAT(pack("install test.versions").output, HasSubstr("rule P25"));
  EXPECT_EQ(pack("publish --to public --secret n.sec").code, 4) << "not of this index";
  EXPECT_EQ(pack("publish --to public --add-signature --secret n.sec").code, 4);
  EXPECT_EQ(pack("publish --to public --add-signature --secret b.sec --days 3").code, 2) << "it changes nothing";
  const Json added = json("publish --to public --add-signature --secret c.sec");
  EXPECT_EQ(added["complete"], true);
  EXPECT_EQ(added["signed_by"].size(), 2U);
  EXPECT_EQ(added["files"], Json({"index.json.minisig"}));
  const Json installed = json("install test.versions");
  EXPECT_EQ(installed["signed_by"].size(), 2U);
  EXPECT_THAT(pack("list").output, HasSubstr("signed by " + id_ + ", "));
  // A revoked key counts nothing; with a third signature the pack is taken again.
  json("trust --revoke b.pub --reason stolen");
  EXPECT_EQ(json("list")["packs"][0]["revoked"], "stolen");
  EXPECT_THAT(pack("install a.mpack --trust any").output, testing::AllOf(HasSubstr("rule P25"), HasSubstr("stolen")));
  json("sign a.mpack --secret c.sec --add-signature");
  EXPECT_EQ(json("install a.mpack")["signed_by"].size(), 2U);
  EXPECT_EQ(json("list")["packs"][0]["revoked"], Json());
  EXPECT_EQ(json("trust --remove c.pub")["publishers"].size(), 0U) << "with the others of its publisher";
}

TEST_F(SignedPack, AnIdIsNeverAFolderThatHappensToBeHere) {
  std::filesystem::create_directory(dir_ / "test.versions");
  std::filesystem::copy_file(library("versions", "v1_0_0"), dir_ / "test.versions/a.so");
  const Outcome refused = pack("install test.versions --trust any");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, testing::AllOf(HasSubstr("no index is known"), HasSubstr("./test.versions")));
  EXPECT_EQ(json("list")["packs"].size(), 0U);
  EXPECT_EQ(json("install ./test.versions --trust any")["signed_by"], Json::array());
}

TEST_F(SignedPack, WhatIsRevokedIsListedAsSuchAndNotFound) {
  json("install a.mpack");
  EXPECT_EQ(json("list")["packs"][0]["revoked"], Json());
  const auto plugin = [&](const std::string& words) {
    return run("env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=" + dir_.path().string() + " " +
                   program() + " plugin " + words,
               dir_.path());
  };
  EXPECT_EQ(plugin("describe aged").code, 0);
  json("trust --revoke " + id_ + " --reason stolen");
  EXPECT_EQ(json("list")["packs"][0]["revoked"], "stolen");
  EXPECT_THAT(pack("list").output, HasSubstr("REVOKED: stolen"));
  EXPECT_THAT(plugin("list reward --json").output, HasSubstr("rule P18"));
  dir_.write("rows.jsonl", "{\"prompt\": \"\", \"completion\": \"\"}\n");
  for (const std::string words : {"describe aged", "eval reward aged --inputs rows.jsonl --outputs out.jsonl"}) {
    const Outcome refused = plugin(words);
    EXPECT_EQ(refused.code, 4) << refused.output;
    EXPECT_THAT(refused.output, testing::AllOf(HasSubstr("is in test.versions@1.0.0"), HasSubstr("rule P18")));
  }
}

TEST_F(SignedPack, OneFaultDoesNotHideTheRest) {
  make("v2_0_0", "b.mpack");
  json("publish a.mpack b.mpack --to public --secret k.sec");
  json("install test.versions@^1.0 --index public");
  json("install test.versions@^2.0 --index public");
  dir_.write(".local/share/mortise/store/packs/test.versions/2.0.0", "nonsense\n");
  dir_.write(".local/share/mortise/store/packs/test.broken/1.0.0", "nonsense\n");
  for (const std::string command : {"list", "outdated --index public"}) {
    const Outcome outcome = pack(command);
    EXPECT_EQ(outcome.code, 4) << outcome.output;
    EXPECT_THAT(outcome.output, testing::AllOf(HasSubstr("test.versions  "), HasSubstr("test.broken/1.0.0"),
                                               HasSubstr("test.versions/2.0.0")));
  }
  EXPECT_EQ(pack("outdated test.other --index public").code, 0) << "of other packs nothing was asked";
  EXPECT_EQ(pack("remove test.versions@1.0.0").code, 4);
  EXPECT_EQ(pack("remove test.versions").code, 4) << "test.broken is still damaged";
  EXPECT_EQ(pack("remove test.broken").code, 0);
  EXPECT_EQ(json("list")["packs"].size(), 0U);
}

TEST_F(SignedPack, WithJsonNothingIsAskedOnStandardOutput) {
  // A terminal of its own, which answers yes.
  const std::string words = program() + " pack install a.mpack --json >out.json 2>asked";
  const Outcome outcome =
      run("echo y | env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=" + dir_.path().string() +
              " script -qec '" + words + "' /dev/null",
          dir_.path());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(dir_.read("asked"), testing::AllOf(HasSubstr("what it may do"), HasSubstr("Install it? [y/N]")));
  const auto value = parse_json(dir_.read("out.json"), "out.json");
  ASSERT_TRUE(value.ok()) << dir_.read("out.json");
  EXPECT_EQ((*value)["version"], "1.0.0");
}

TEST_F(SignedPack, TextsOfStrangersMoveNoCursor) {
  std::filesystem::create_directory(dir_ / "evil");
  std::filesystem::copy_file(library("versions", "v1_0_0"), dir_ / "evil/a.so");
  const std::string escape = "\\u001B[2J\\u009B2J\\u202E";
  dir_.write("evil/pack.toml", "summary = \"" + escape + "\"\nlicense = \"" + escape + "\"\nauthors = [\"" + escape +
                                   "\"]\nhomepage = \"" + escape + "\"\n");
  const auto is_plain = [](const std::string& text) {
    return text.find('\x1b') == std::string::npos && text.find("\xC2\x9B") == std::string::npos &&
           text.find("\xE2\x80\xAE") == std::string::npos;
  };
  json("build evil -o evil.mpack");
  EXPECT_TRUE(is_plain(pack("inspect evil.mpack").output));
  EXPECT_TRUE(is_plain(pack("install evil.mpack --trust any").output));
  // The publisher's name and reasons come with an index.
  json("sign evil.mpack --secret k.sec");
  const std::string raw = "$(printf '\\033[2J\\302\\2332J\\342\\200\\256')";
  EXPECT_EQ(pack("keygen --public n.pub --secret n.sec").code, 0);
  EXPECT_EQ(pack("publish evil.mpack --to public --secret k.sec --next-key n.pub='test.*' --name \"" + raw +
                 "\" --reason \"" + raw + "\" --revoke k.pub")
                .code,
            4)
      << "an archive of a key that is revoked";
  EXPECT_EQ(pack("publish evil.mpack --to public --secret k.sec --next-key n.pub='test.*' --name \"" + raw + "\"").code,
            0);
  // A reason that comes with an index is told in the log.
  json("keygen --public o.pub --secret o.sec");
  json("trust o.pub --ids 'other.*'");
  EXPECT_EQ(pack("publish --to others --secret o.sec --next-key n.pub='other.*'").code, 0);
  EXPECT_EQ(pack("publish --to others --secret o.sec --revoke n.pub --reason \"" + raw + "\"").code, 0);
  const Outcome news = pack("outdated other.pack --index others");
  EXPECT_THAT(news.output, HasSubstr("is revoked"));
  EXPECT_TRUE(is_plain(news.output)) << news.output;
  for (const std::string& command : std::vector<std::string>{"install test.versions --index public", "trust --list",
                                                             "list", "trust --revoke k.pub --reason \"" + raw + "\"",
                                                             "trust --list", "list", "install evil.mpack"}) {
    EXPECT_TRUE(is_plain(pack(command).output)) << command;
  }
}

TEST_F(SignedPack, NoFileIsForOthersToWrite) {
  const Outcome outcome =
      run("umask 000; env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=" + dir_.path().string() +
              "/home " + program() + " pack trust k.pub && env HOME=" + dir_.path().string() + "/home " + program() +
              " pack install a.mpack",
          dir_.path());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "home")) {
    EXPECT_EQ(
        entry.status().permissions() & (std::filesystem::perms::others_write | std::filesystem::perms::group_write),
        std::filesystem::perms::none)
        << entry.path();
    ++num_files;
  }
  EXPECT_GT(num_files, 6U);
}

TEST_F(SignedPack, HomesThatAreMissingOrReadOnlyAreTold) {
  const std::string without = "env -u HOME -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE " + program();
  for (const std::string words : {"install a.mpack", "list", "trust --list", "outdated"}) {
    const Outcome outcome = run(without + " pack " + words, dir_.path());
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_THAT(outcome.output, HasSubstr("set HOME"));
  }
  EXPECT_EQ(run(without + " pack verify a.mpack --public k.pub", dir_.path()).code, 0);
  EXPECT_EQ(run(without + " pack inspect a.mpack", dir_.path()).code, 0);
  // A store in the current folder is not found by the way.
  dir_.write("packs/test.versions/1.0.0", std::string(64, 'a') + "\n");
  EXPECT_EQ(run(without + " plugin list", dir_.path()).output.find("test.versions"), std::string::npos);
  // /proc is a folder in which nobody can make a file.
  const Outcome outcome = run("env -u XDG_DATA_HOME -u XDG_CONFIG_HOME -u MORTISE_PACK_STORE HOME=/proc " + program() +
                                  " pack install a.mpack --trust any",
                              dir_.path());
  EXPECT_EQ(outcome.code, 6) << outcome.output;
}

TEST_F(SignedPack, LocksAreOfRunsThatCanRun) {
  json("install a.mpack");
  const auto lock = [&](const std::string& lines, const std::string& words = "") {
    dir_.write("run.toml",
               "[model]\npath = \"model\"\n[data]\ntrain_files = [\"d.jsonl\"]\ntrain_batch_size = 8\n"
               "[actor]\nppo_mini_batch_size = 8\n[trainer]\ntotal_training_steps = 1\n" +
                   lines);
    return pack("lock run.toml " + words);
  };
  const Outcome good = lock("[[reward]]\nuse = \"aged\"\n");
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(dir_.read("mortise.lock"), HasSubstr("test.versions"));
  EXPECT_EQ(lock("[[reward]]\nuse = \"aged\"\n", "actor.ppo_mini_batch_size=7").code, 2) << "sizes that do not divide";
  EXPECT_EQ(lock("[[reward]]\nuse = \"aged\"\nnonsense = 1\n").code, 2);
  const Outcome removed = lock("[[reward]]\nuse = \"aged\"\n", "'~trainer.total_training_steps'");
  EXPECT_EQ(removed.code, 0) << "train takes such a setting too: " << removed.output;
  EXPECT_EQ(lock("[[reward]]\nuse = \"agde\"\n").code, 4);
  json("trust --revoke k.pub");
  EXPECT_EQ(lock("[[reward]]\nuse = \"aged\"\n").code, 4);
  // Without a lock there is nothing to hold to: a missing file.
  std::filesystem::remove(dir_ / "mortise.lock");
  EXPECT_EQ(run(program() + " train run.toml --locked --dry-run", dir_.path()).code, 3);
}

}  // namespace
}  // namespace mortise::test
