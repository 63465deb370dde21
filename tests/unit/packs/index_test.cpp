// The attacks on an index, one by one, on a folder that somebody else can write to; and downloads that never end.
#include "packs/index.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "archive_maker.h"
#include "foundation/formats/json.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// A publisher's folder, and a reader who trusts its key for test.*.
class PackIndexAttacks : public testing::Test {
 protected:
  void SetUp() override {
    key_ = *make_key_pair();
    trust(key_, {"test.*"});
    for (const char* name : {"v1_0_0", "v1_2_0", "v2_0_0"}) archives_.push_back(archive(name));
    publish({archives_[0]});
  }

  void trust(const KeyPair& pair, std::vector<std::string> ids) {
    trust_.publishers.push_back({one_signer(pair.public_key), std::move(ids), "", "", false});
    ASSERT_OK(write_trust(default_env(), places_, trust_));
  }

  Path archive(const std::string& name) {
    const PackArchive pack = versioned_pack(name);
    const Path path = dir_.write(archive_file_name(pack.description), pack.bytes);
    const std::string comment = "pack:" + pack.description.id + "\tversion:" + pack.description.version;
    dir_.write(archive_file_name(pack.description) + ".minisig", *sign_bytes(key_.secret_key, pack.bytes, comment));
    return path;
  }

  void publish(PublishRequest request, const KeyPair* pair = nullptr) {
    if (request.lifetime_s == 0) request.lifetime_s = 1000;
    const KeyPair& signer = pair == nullptr ? key_ : *pair;
    if (request.previous.empty() && last_signer_) request.previous = {*last_signer_};
    const auto done = publish_index(default_env(), folder(), signer.secret_key, request);
    ASSERT_TRUE(done.ok()) << done.error().to_string();
    last_signer_ = signer.public_key;
  }
  void publish(std::vector<Path> archives) { publish(PublishRequest{std::move(archives), {}, {}, "", 0}); }

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
  std::string fetch(const std::string& version) {
    const IndexedPack* pack = *index_.newest("test.versions", "=" + version);
    if (pack == nullptr) return "not there";
    auto source = open_source(default_env(), folder().string(), {});
    return error_of(fetch_indexed(**source, *pack, "here"));
  }

  // What lies in the folder, to serve it again later.
  std::map<std::string, std::string> keep() {
    std::map<std::string, std::string> files;
    const std::vector<std::string> names = *default_env().list_dir(folder());
    for (const std::string& name : names) files[name] = dir_.read("public/" + name);
    return files;
  }
  void serve(const std::map<std::string, std::string>& files) {
    for (const auto& [name, bytes] : files) dir_.write("public/" + name, bytes);
  }
  Path folder() { return dir_ / "public"; }

  TempDir dir_;
  PackPlaces places_{dir_ / "store", dir_ / "user", dir_ / "etc"};
  KeyPair key_;
  std::optional<SigningPublicKey> last_signer_;  // who signed the folder's index
  Trust trust_;
  PackIndex index_;
  std::vector<std::string> news_;
  std::vector<Path> archives_;
};

TEST_F(PackIndexAttacks, AGoodIndexIsRead) {
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(index_.version, 1U);
  EXPECT_EQ(fetch("1.0.0"), "ok");
  publish({archives_[1], archives_[2]});
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(index_.packs.size(), 3U);
  EXPECT_EQ((*index_.newest("test.versions", ""))->version, "2.0.0");
  EXPECT_EQ((*index_.newest("test.versions", "^1.0"))->version, "1.2.0");
  EXPECT_EQ(*index_.newest("test.other", ""), nullptr);
}

TEST_F(PackIndexAttacks, Rollback) {
  const auto old = keep();
  publish({archives_[1]});
  EXPECT_EQ(read(), "ok");
  serve(old);
  EXPECT_THAT(read(), HasSubstr("rule P21"));
}

TEST_F(PackIndexAttacks, TwoIndexesOfOneVersion) {
  const auto first = keep();
  EXPECT_EQ(read(), "ok");
  std::filesystem::remove(folder() / "index.json");
  std::filesystem::remove(folder() / "index.json.minisig");
  publish({archives_[1]});  // version 1 again, with other packs
  EXPECT_THAT(read(), HasSubstr("two different indexes"));
  serve(first);
  EXPECT_EQ(read(), "ok");
}

TEST_F(PackIndexAttacks, Freeze) {
  publish(PublishRequest{{}, {}, {}, "", -1});
  EXPECT_THAT(read(), HasSubstr("rule P22"));
}

TEST_F(PackIndexAttacks, MixAndMatch) {
  const auto old = keep();
  publish({archives_[1]});
  EXPECT_EQ(read(), "ok");
  // The new index with an older file under the newer name, signature and all.
  serve({{"test.versions-1.2.0.mpack", old.at("test.versions-1.0.0.mpack")},
         {"test.versions-1.2.0.mpack.minisig", old.at("test.versions-1.0.0.mpack.minisig")}});
  EXPECT_THAT(fetch("1.2.0"), testing::AnyOf(HasSubstr("rule P23"), HasSubstr("rule P24")));
  EXPECT_EQ(fetch("1.0.0"), "ok");
  // The old index's signature under the new index.
  serve({{"index.json.minisig", old.at("index.json.minisig")}});
  EXPECT_THAT(read(), HasSubstr("rule P16"));
}

TEST_F(PackIndexAttacks, WrongTarget) {
  EXPECT_EQ(read(), "ok");
  std::string other = dir_.read("public/test.versions-1.0.0.mpack");
  other[other.size() / 2] = static_cast<char>(other[other.size() / 2] ^ 1);  // same size, another byte
  serve({{"test.versions-1.0.0.mpack", other}});
  EXPECT_THAT(fetch("1.0.0"), HasSubstr("rule P23"));
}

TEST_F(PackIndexAttacks, EndlessData) {
  EXPECT_EQ(read(), "ok");
  std::filesystem::resize_file(folder() / "test.versions-1.0.0.mpack", uint64_t{1} << 30);
  EXPECT_THAT(fetch("1.0.0"), HasSubstr("rule P24"));
  std::filesystem::resize_file(folder() / "index.json", uint64_t{1} << 30);
  EXPECT_THAT(read(), HasSubstr("rule P24"));
}

TEST_F(PackIndexAttacks, AnotherKey) {
  const KeyPair thief = *make_key_pair();
  const std::string text = dir_.read("public/index.json");
  serve({{"index.json.minisig", *sign_bytes(thief.secret_key, text, "c")}});
  EXPECT_THAT(read(), HasSubstr("rule P17"));
  SigningSecretKey disguised = thief.secret_key;  // the id of the good key, the key of the thief
  disguised.id = key_.secret_key.id;
  serve({{"index.json.minisig", *sign_bytes(disguised, text, "c")}});
  EXPECT_THAT(read(), HasSubstr("rule P16"));
}

TEST_F(PackIndexAttacks, APublisherSpeaksForItsOwnIdsAlone) {
  const KeyPair other = *make_key_pair();
  trust(other, {"other.*"});
  const auto signed_by_other = [&](const PublishRequest& request) {
    std::filesystem::remove_all(folder());
    publish(request, &other);
    return read();
  };
  EXPECT_THAT(signed_by_other({{archives_[0]}, {}, {}, "", 0}), HasSubstr("rule P20"));
  EXPECT_THAT(signed_by_other({{}, {{other.public_key, {"test.*"}}}, {}, "", 0}), HasSubstr("rule P20"));
  EXPECT_THAT(signed_by_other({{}, {{other.public_key, {"*"}}}, {}, "", 0}), HasSubstr("rule P20"));
  EXPECT_THAT(signed_by_other({{}, {}, {{key_.public_key.text(), "", "", "", false}}, "", 0}), HasSubstr("rule P20"));
  EXPECT_THAT(signed_by_other({{}, {}, {{"", std::string(64, 'a'), "test.versions", "", false}}, "", 0}),
              HasSubstr("rule P20"));
  EXPECT_EQ(signed_by_other({{}, {}, {}, "", 0}), "ok");
  EXPECT_EQ(trust_.publishers.size(), 2U);
  EXPECT_TRUE(trust_.revoked.empty());
}

// A key for every id does not reach ids that another key owns: not through a key that it names, nor by a revocation.
TEST_F(PackIndexAttacks, AKeyForEverythingLeavesOthersTheirIds) {
  const KeyPair any = *make_key_pair(), next = *make_key_pair();
  trust(any, {"*"});
  const auto signed_by_any = [&](const PublishRequest& request) {
    std::filesystem::remove_all(folder());
    publish(request, &any);
    return read();
  };
  for (const char* ids : {"test.*", "test.versions", "test.math.*"})
    EXPECT_THAT(signed_by_any({{}, {{next.public_key, {ids}}}, {}, "", 0}), HasSubstr("rule P20")) << ids;
  EXPECT_THAT(signed_by_any({{}, {}, {{key_.public_key.text(), "", "", "", false}}, "", 0}), HasSubstr("rule P20"));
  EXPECT_THAT(signed_by_any({{}, {}, {{"", std::string(64, 'a'), "test.versions", "", false}}, "", 0}),
              HasSubstr("rule P20"));
  // It rotates and withdraws what is its own.
  EXPECT_EQ(signed_by_any({{},
                           {{next.public_key, {"*", "other.*"}}},
                           {{"", std::string(64, 'a'), "other.versions", "", false}},
                           "",
                           0}),
            "ok");
  EXPECT_EQ(trust_.owners("test.versions").size(), 1U);
  EXPECT_EQ(trust_.owners("test.versions")[0]->signers.keys, std::vector{key_.public_key});
}

TEST_F(PackIndexAttacks, KeysRotateAndStolenOnesAreRevoked) {
  const KeyPair next = *make_key_pair();
  publish(PublishRequest{{}, {{next.public_key, {"test.*"}}}, {}, "Acme", 0});
  EXPECT_EQ(read(), "ok");
  EXPECT_THAT(news_, testing::ElementsAre(HasSubstr("is now trusted for test.*")));
  // From now on the new key speaks, and withdraws the old one.
  publish(PublishRequest{{}, {}, {{key_.public_key.id_text(), "", "", "stolen", false}}, "", 0}, &next);
  EXPECT_EQ(read(), "ok");
  EXPECT_THAT(news_, testing::ElementsAre(HasSubstr("is revoked: stolen")));
  ASSERT_OK_AND_ASSIGN(const Trust stored, read_trust(default_env(), places_));
  EXPECT_NE(stored.revocation_of_key(key_.public_key.id_text()), nullptr);
  EXPECT_EQ(stored.publishers.size(), 2U);
  // The thief publishes with the old key. `publish` takes no archive of it.
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), next.secret_key, {{archives_[1]}, {}, {}, "", 10})),
              HasSubstr("rule P18"));
  publish(PublishRequest{{}, {}, {}, "", 0});
  EXPECT_THAT(read(), HasSubstr("rule P18"));
}

// Whoever can write into the folder puts an index of his own there, and waits for the publisher to sign it.
TEST_F(PackIndexAttacks, AnIndexOfAnotherKeyIsNotSignedAgain) {
  const KeyPair thief = *make_key_pair();
  std::filesystem::remove_all(folder());
  publish(PublishRequest{{}, {{thief.public_key, {"test.*"}}}, {}, "", 0}, &thief);
  PublishRequest request{{archives_[1]}, {}, {}, "", 10};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), key_.secret_key, request)),
              HasSubstr("signed by the key " + thief.public_key.id_text()));
  request.previous = {key_.public_key};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), key_.secret_key, request)), HasSubstr("rule P1"));
}

// A publisher chooses the id of its key: it may take that of another publisher.
TEST_F(PackIndexAttacks, ASecondKeyOfAnIdIsAKeyOfItsOwn) {
  KeyPair twin = *make_key_pair();
  twin.public_key.id = twin.secret_key.id = key_.public_key.id;
  const KeyPair evil = *make_key_pair();
  trust(evil, {"evil.*"});
  // It is trusted for what its publisher owns, and no more.
  const Path mine = folder();
  std::filesystem::rename(mine, dir_ / "acme");
  publish(PublishRequest{{}, {{twin.public_key, {"evil.*"}}}, {}, "", 0}, &evil);
  EXPECT_EQ(read(), "ok");
  std::filesystem::remove_all(mine);
  last_signer_ = twin.public_key;
  publish(PublishRequest{{}, {{key_.public_key, {"test.*"}}}, {}, "", 0}, &twin);
  EXPECT_THAT(read(), HasSubstr("rule P20"));
  // It revokes itself by its id: the key of the same id stays.
  std::filesystem::remove_all(mine);
  publish(PublishRequest{{}, {}, {}, "", 0}, &evil);
  publish(PublishRequest{{}, {}, {{twin.public_key.text(), "", "", "gone", false}}, "", 0}, &evil);
  publish(PublishRequest{{}, {}, {}, "", 0}, &evil);
  EXPECT_EQ(read(), "ok");
  ASSERT_EQ(trust_.revoked.size(), 1U);
  EXPECT_EQ(trust_.revoked[0].key, twin.public_key.text());
  EXPECT_EQ(trust_.revocation_of_key(key_.public_key.text()), nullptr);
}

TEST_F(PackIndexAttacks, ARevokedKeyIsWrittenWhole) {
  publish(PublishRequest{{}, {}, {{key_.public_key.id_text(), "", "", "stolen", false}}, "", 0});
  EXPECT_THAT(dir_.read("public/index.json"), HasSubstr(key_.public_key.text()));
  // Nobody knows whose id it is.
  PublishRequest unknown{{}, {}, {{"0123456789ABCDEF", "", "", "", false}}, "", 10};
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), key_.secret_key, unknown)),
              HasSubstr("no known key has the id"));
  const std::string by_id = R"({"format":1,"name":"a","version":1,"created":1,"expires":2,"packs":[],"keys":[],)"
                            R"("revoked":[{"key":"0123456789ABCDEF","reason":""}]})";
  EXPECT_THAT(error_of(parse_index(by_id, "i")), HasSubstr("rule P20"));
}

// The spelling of an address is no way to a fresh memory of the index.
TEST_F(PackIndexAttacks, RollbackUnderAnotherSpelling) {
  const auto old = keep();
  publish({archives_[1]});
  EXPECT_EQ(read(), "ok");
  serve(old);
  const std::string place = folder().string();
  for (const std::string& spelling :
       {place + "/", place + "//", place + "/.", place + "/../public", std::filesystem::relative(folder()).string()}) {
    auto source = open_source(default_env(), spelling, {});
    ASSERT_TRUE(source.ok());
    EXPECT_THAT(error_of(read_index(default_env(), places_, spelling, **source, trust_)), HasSubstr("rule P21"))
        << spelling;
  }
  // Nor is another store.
  places_.store = dir_ / "other_store";
  EXPECT_THAT(read(), HasSubstr("rule P21"));
}

TEST_F(PackIndexAttacks, OnlyArchivesOfKnownKeysArePublished) {
  const KeyPair stranger = *make_key_pair();
  const Path archive = archives_[1];
  const Path signature = archive.string() + ".minisig";
  const std::string bytes = dir_.read(archive.filename().string());
  const auto published = [&](const std::string& text, std::vector<IndexedKey> keys = {}) {
    dir_.write(signature.filename().string(), text);
    return error_of(publish_index(default_env(), folder(), key_.secret_key, {{archive}, std::move(keys), {}, "", 10}));
  };
  const std::string comment = "pack:test.versions\tversion:1.2.0";
  EXPECT_THAT(published(*sign_bytes(stranger.secret_key, bytes, comment)), HasSubstr("rule P17"));
  EXPECT_THAT(published(*sign_bytes(key_.secret_key, bytes + "x", comment)), HasSubstr("rule P16"));
  EXPECT_THAT(published(*sign_bytes(key_.secret_key, bytes, "pack:test.other\tversion:1.2.0")), HasSubstr("rule P19"));
  EXPECT_EQ(dir_.read("public/index.json").find("1.2.0"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder() / "test.versions-1.2.0.mpack"));
  const std::string by_stranger = *sign_bytes(stranger.secret_key, bytes, comment);
  EXPECT_THAT(published(by_stranger, {{stranger.public_key, {"other.*"}}}), HasSubstr("rule P17"));
  EXPECT_EQ(published(by_stranger, {{stranger.public_key, {"test.*"}}}), "ok");
}

TEST_F(PackIndexAttacks, AnArchiveIsWithdrawn) {
  publish({archives_[1]});
  const PackArchive pack = versioned_pack("v1_2_0");
  publish(PublishRequest{{}, {}, {{"", pack.sha256, pack.description.id, "wrong rewards", false}}, "", 0});
  EXPECT_EQ(read(), "ok");
  EXPECT_EQ(fetch("1.2.0"), "not there");
  EXPECT_THAT(error_of(check_not_revoked(trust_, pack.sha256, "test.versions", "x")), HasSubstr("wrong rewards"));
}

TEST_F(PackIndexAttacks, AVersionIsPublishedOnce) {
  const PackArchive pack = versioned_pack();
  auto files = *pack.extract([](std::string_view) { return true; });
  files.push_back({"README.md", "other bytes"});
  const Path other = dir_.write("other.mpack", *write_archive(files, "x"));
  dir_.write("other.mpack.minisig", *sign_bytes(key_.secret_key, dir_.read("other.mpack"), "c"));
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), key_.secret_key, {{other}, {}, {}, "", 10})),
              HasSubstr("rule P23"));
  std::filesystem::remove(dir_ / "other.mpack.minisig");
  EXPECT_THAT(error_of(publish_index(default_env(), folder(), key_.secret_key, {{other}, {}, {}, "", 10})),
              HasSubstr("rule P16"));
}

TEST(PackIndexFormat, MalformedIndexesAreRefused) {
  const std::string good =
      R"({"format":1,"name":"a","version":1,"created":1,"expires":2,"packs":[],"keys":[],"revoked":[]})";
  EXPECT_OK(parse_index(good, "i"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"format\":1", "\"format\":2"},
           {"\"version\":1", "\"version\":-1"},
           {"\"version\":1", "\"version\":1.5"},
           {"\"version\":1", "\"version\":18446744073709551615"},
           {"\"version\":1", "\"versionen\":1"},
           {"\"packs\":[]", "\"packs\":{}"},
           {"\"packs\":[]", "\"packs\":[3]"},
           {"\"packs\":[]", R"("packs":[{"id":"acme.a","version":"1.0.0","file":"../a.mpack","size":1,"sha256":""}])"},
           {"\"keys\":[]", R"("keys":[{"public":"x","ids":[]}])"},
           {"\"revoked\":[]", R"("revoked":[{"reason":"x"}])"},
           {"\"name\":\"a\"", "\"name\":\"a\",\"name\":\"b\""},
           {"}", "}x"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_THAT(error_of(parse_index(bad, "i")), HasSubstr("rule P20")) << bad;
  }
}

TEST(PackSource, OnlyHttpsAndThisMachine) {
  const auto opened = [](const std::string& place) { return error_of(open_source(default_env(), place, {})); };
  for (const char* good : {"https://packs.acme.dev", "https://packs.acme.dev/a/b/", "http://127.0.0.1:8000",
                           "http://localhost:1/x", "http://[::1]:80"})
    EXPECT_EQ(opened(good), "ok") << good;
  for (const char* bad : {"http://packs.acme.dev", "http://127.0.0.1.evil.dev", "http://localhost@evil.dev", "ftp://a",
                          "file:///etc", "https://", "https://user:pw@a.dev", "https://a.dev/x?y=1", "https://a.dev/#x",
                          "https://a .dev", "https://\xD0\xB0.dev", "javascript://a"})
    EXPECT_NE(opened(bad), "ok") << bad;
}

TEST(PackSource, OneAddressHasOneSpelling) {
  const auto normal = [](const std::string& place) {
    const auto out = normal_place(place);
    return out.ok() ? *out : out.error().to_string();
  };
  for (const char* same : {"https://packs.acme.dev/m", "https://packs.acme.dev/m/", "HTTPS://Packs.Acme.DEV/m",
                           "https://packs.acme.dev:443/m", "https://packs.acme.dev:0443/m", "https://packs.acme.dev:/m",
                           "https://packs.acme.dev./m", "https://packs.acme.dev//m//", "https://packs.acme.dev/./m/.",
                           "https://packs.acme.dev/%6d", "https://packs.acme.dev/%6D"})
    EXPECT_EQ(normal(same), "https://packs.acme.dev/m") << same;
  EXPECT_EQ(normal("http://LOCALHOST:80/"), "http://localhost");
  EXPECT_EQ(normal("http://[::1]:080/x"), "http://[::1]/x");
  EXPECT_EQ(normal("https://a.dev:8443/A%2fb"), "https://a.dev:8443/A%2Fb") << "the path keeps its letters";
  for (const char* bad : {"https://a.dev/../b", "https://a.dev/%2e%2e/b", "https://a.dev:80x/", "https://a.dev:123456/",
                          "https://a.dev/%4", "https://a.dev/%zz", "https://.", "https://:443/", "https://[::1"})
    EXPECT_FALSE(normal_place(bad).ok()) << bad;
  EXPECT_EQ(normal("/a/b/../c//"), "/a/c");
  EXPECT_EQ(normal("x"), (std::filesystem::current_path() / "x").string());
}

// A server on this machine that answers every request by `answer`.
class LoopbackServer {
 public:
  explicit LoopbackServer(std::function<void(int)> answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~LoopbackServer() {
    stopping = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  // `slow_ms`: how long too few bytes may come; `at_most_ms`: how long the whole may take. Only a server that never ends
  // its answer meets a limit.
  [[nodiscard]] std::string get(uint64_t max_bytes, bool* missing = nullptr, int slow_ms = 300'000,
                                int at_most_ms = 300'000) const {
    FetchOptions options;
    options.program = Path(MORTISE_BINARY_DIR) / "bin" / "mortise-fetch";
    options.slow_after = std::chrono::milliseconds(slow_ms);
    options.at_most = std::chrono::milliseconds(at_most_ms);
    auto source = open_source(default_env(), "http://127.0.0.1:" + std::to_string(port_) + "/packs/", options);
    EXPECT_TRUE(source.ok());
    auto bytes = (*source)->get("index.json", max_bytes, missing);
    return bytes.ok() ? *bytes : bytes.error().to_string();
  }
  static bool send_text(int client, std::string_view text) {
    return ::send(client, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  std::atomic<bool> stopping = false;

 private:
  void serve() {
    while (!stopping) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      std::array<char, 4096> request{};
      if (::recv(client, request.data(), request.size(), 0) > 0) answer_(client);
      ::close(client);
    }
  }
  std::function<void(int)> answer_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

const std::string kOk = "HTTP/1.1 200 OK\r\n";

TEST(PackDownload, FilesArriveWholeOrAreRefused) {
  {
    const LoopbackServer server(
        [](int client) { LoopbackServer::send_text(client, kOk + "Content-Length: 5\r\n\r\nhello"); });
    EXPECT_EQ(server.get(5), "hello");
    EXPECT_THAT(server.get(4), HasSubstr("rule P24"));
  }
  {
    const LoopbackServer server(
        [](int client) { LoopbackServer::send_text(client, kOk + "Content-Length: 9\r\n\r\nhello"); });
    EXPECT_THAT(server.get(100), HasSubstr("rule P24")) << "cut short";
  }
  {
    const LoopbackServer server(
        [](int client) { LoopbackServer::send_text(client, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"); });
    bool missing = false;
    EXPECT_EQ(server.get(100, &missing), "");
    EXPECT_TRUE(missing);
    EXPECT_THAT(server.get(100), HasSubstr("rule P24"));
  }
  {
    const LoopbackServer server([](int client) {
      LoopbackServer::send_text(client,
                                "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    });
    EXPECT_THAT(server.get(100), HasSubstr("HTTP status 302"));
  }
}

TEST(PackDownload, EndlessDataIsCut) {
  const LoopbackServer server([](int client) {
    LoopbackServer::send_text(client, kOk + "\r\n");
    const std::string block(65536, 'x');
    while (LoopbackServer::send_text(client, block)) {
    }
  });
  EXPECT_THAT(server.get(1'000'000), testing::AllOf(HasSubstr("rule P24"), HasSubstr("larger than 1000000")));
}

TEST(PackDownload, SlowDataIsGivenUp) {
  {  // a byte now and then
    const LoopbackServer* self = nullptr;
    LoopbackServer server([&self](int client) {
      LoopbackServer::send_text(client, kOk + "\r\n");
      while (!self->stopping && LoopbackServer::send_text(client, "x")) ::usleep(50'000);
    });
    self = &server;
    EXPECT_THAT(server.get(1'000'000, nullptr, 1'000), testing::AllOf(HasSubstr("rule P24"), HasSubstr("too slow")));
  }
  {  // fast enough, but without end: the whole has a limit
    const LoopbackServer* self = nullptr;
    LoopbackServer server([&self](int client) {
      LoopbackServer::send_text(client, kOk + "\r\n");
      const std::string block(2000, 'x');
      while (!self->stopping && LoopbackServer::send_text(client, block)) ::usleep(50'000);
    });
    self = &server;
    EXPECT_THAT(server.get(1'000'000'000, nullptr, 300'000, 2'000),
                testing::AllOf(HasSubstr("rule P24"), HasSubstr("longer than 2 s")));
  }
}

}  // namespace
}  // namespace mortise::test
