// `mortise pack publish --add-signature`: see index.h.
#include <algorithm>
#include <map>
#include <utility>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "packs/index.h"
#include "packs/pack_archive.h"
#include "packs/rules.h"
#include "packs/signing.h"
#include "packs/wait_lock.h"

#include <fmt/core.h>

namespace mortise {
namespace {

std::string signature_name(const std::string& file) { return file + ".minisig"; }

// One index while signatures are added to it and to its archives.
class Countersigning {
 public:
  Countersigning(Env& env, Path folder, const CountersignRequest& request)
      : env_(env), folder_(std::move(folder)), request_(request) {}

  Result<Countersigned> run() {
    TRY(read());
    if (request_.key != nullptr) {
      const SigningPublicKey key = request_.key->public_key();
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) return unknown(key.id, folder_.string());
      for (const IndexedPack& pack : done_.index.packs) TRY(sign_archive_if_few(pack));
      TRY(sign_index());
    }
    for (const Path& file : request_.signatures) TRY(take(file));
    // The index comes last: a reader that finds it complete finds its archives complete.
    for (const auto& [name, text] : changed_)
      if (name != signature_name(kPackIndexFile)) TRY(write_file_atomic(env_, folder_ / name, text));
    if (const auto it = changed_.find(signature_name(kPackIndexFile)); it != changed_.end())
      TRY(write_file_atomic(env_, folder_ / it->first, it->second));
    for (const auto& [name, text] : changed_) done_.files.push_back(name);
    const std::string all = TRY(signatures_of(kPackIndexFile));
    const auto signatures = TRY(parse_signatures(all, where()));
    Trust trust;
    trust.revoked = done_.index.revoked;
    done_.keys = keys_that_signed(done_.index.signers.keys, trust, signatures, text_);
    return std::move(done_);
  }

 private:
  [[nodiscard]] std::string where() const { return (folder_ / kPackIndexFile).string(); }

  Result<> read() {
    text_ = TRY(env_.read_file(where(), kMaxPackIndexBytes));
    done_.index = TRY(parse_index(text_, where()));
    if (done_.index.signers.keys.empty())
      return broken_rule(PackRule::kThreshold, "one key signs this index, so there is no signature to add", where(),
                         "publish it with --signer KEY.pub, once for each key, and --threshold");
    if (done_.index.expires <= env_.wall_time_ns() / 1'000'000'000)
      return broken_rule(PackRule::kFreeze, "the index has expired", where(),
                         "publish it again: run `mortise pack publish` without --add-signature");
    known_ = done_.index.signers.keys;
    known_.insert(known_.end(), request_.previous.begin(), request_.previous.end());
    return {};
  }

  [[nodiscard]] Error unknown(const KeyId& id, const std::string& from) const {
    return broken_rule(PackRule::kThreshold,
                       fmt::format("the key {} is not one of the signers of the index: it needs {}", key_id_text(id),
                                   done_.index.signers.text()),
                       from, "if it signed the index before these did, name it with --previous-key too");
  }

  // The text of the .minisig of a file of the folder, with what was added.
  Result<std::string> signatures_of(const std::string& file) {
    const std::string name = signature_name(file);
    if (const auto it = changed_.find(name); it != changed_.end()) return it->second;
    return env_.read_file(folder_ / name, kMaxSignatureFileBytes);
  }

  Result<> add(const std::string& file, const std::string& signature) {
    const std::string name = signature_name(file);
    const std::string before = TRY(signatures_of(file));
    changed_[name] = TRY(join_signatures(before, signature, (folder_ / name).string()));
    return {};
  }

  // The archive that the index names, and no other.
  Result<PackArchive> read_indexed(const IndexedPack& pack) const {
    const Path path = folder_ / pack.file;
    PackArchive archive = TRY(read_pack_archive(env_, path));
    if (archive.sha256 == pack.sha256 && archive.description.id == pack.id &&
        archive.description.version == pack.version)
      return archive;
    return broken_rule(PackRule::kTarget, "the file is not the one that the index names", path.string(),
                       "sign nothing here until you know who changed it");
  }

  Result<> sign_archive_if_few(const IndexedPack& pack) {
    const std::string where = (folder_ / signature_name(pack.file)).string();
    const std::string all = TRY(signatures_of(pack.file));
    const auto signatures = TRY(parse_signatures(all, where));
    const auto has = [&](const KeyId& id) {
      return std::any_of(signatures.begin(), signatures.end(),
                         [&](const FileSignature& one) { return one.key_id == id; });
    };
    const auto& signers = done_.index.signers;
    const auto count =
        std::count_if(signers.keys.begin(), signers.keys.end(), [&](const auto& key) { return has(key.id); });
    const bool is_signer = signers.contains(request_.key->public_key());
    if (!is_signer || has(request_.key->id) || count >= signers.threshold) return {};
    const PackArchive archive = TRY(read_indexed(pack));
    return add(pack.file, TRY(sign_archive(env_, *request_.key, archive)));
  }

  Result<> sign_index() {
    return add(kPackIndexFile, TRY(sign_bytes(*request_.key, text_, index_comment(done_.index, env_))));
  }

  // A signature that minisign wrote: its signed comment names the file.
  Result<> take(const Path& path) {
    const std::string text = TRY(env_.read_file(path, kMaxSignatureFileBytes));
    for (const FileSignature& one : TRY(parse_signatures(text, path.string()))) {
      const std::string file = comment_field(one.comment, "file");
      const auto pack = std::find_if(done_.index.packs.begin(), done_.index.packs.end(),
                                     [&](const IndexedPack& known) { return known.file == file; });
      std::string bytes = text_;
      if (pack != done_.index.packs.end()) {
        bytes = TRY(read_indexed(*pack)).bytes;
      } else if (file != kPackIndexFile) {
        return broken_rule(PackRule::kComment, "its signed comment is of the file " + quote(file), path.string(),
                           "sign index.json or an archive of it in its folder, under its own name");
      }
      TRY(verify_by_any(one, bytes, path.string()));
      TRY(add(file, signature_text(one)));
    }
    return {};
  }

  Result<> verify_by_any(const FileSignature& signature, const std::string& bytes, const std::string& from) const {
    Result<> verified = unknown(signature.key_id, from);
    const SignedHash hash = signed_hash(bytes);
    for (const SigningPublicKey& key : known_) {
      if (key.id != signature.key_id) continue;
      verified = verify_signature(signature, key, hash, from);
      if (verified.ok()) break;
    }
    return verified;
  }

  Env& env_;
  Path folder_;
  const CountersignRequest& request_;
  std::string text_;  // the index as text
  std::vector<SigningPublicKey> known_;
  std::map<std::string, std::string> changed_;  // the .minisig files, by their names
  Countersigned done_;
};

}  // namespace

Result<Countersigned> countersign_index(Env& env, const Path& folder, const CountersignRequest& request) {
  const FolderLock held = TRY(wait_for_folder(folder, "the index"));
  return Countersigning(env, folder, request).run();
}

}  // namespace mortise
