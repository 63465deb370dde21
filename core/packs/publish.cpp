// `mortise pack publish`: see index.h.
#include <algorithm>
#include <optional>
#include <utility>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "packs/index.h"
#include "packs/pack_archive.h"
#include "packs/pack_builder.h"
#include "packs/rules.h"
#include "packs/wait_lock.h"

#include <fmt/core.h>

namespace mortise {
namespace {

// The index that is in the folder; a new one where there is none. `key` signed it, or all of `previous` did, which are
// as many as the index asks for: what it says is signed again with `key`, so other signatures would let whoever can
// write into the folder speak in the publisher's name.
Result<PackIndex> current_index(Env& env, const Path& folder, const SigningPublicKey& key,
                                const std::vector<SigningPublicKey>& previous) {
  const Path path = folder / kPackIndexFile;
  if (!env.exists(path)) return PackIndex{};
  const std::string text = TRY(env.read_file(path, kMaxPackIndexBytes));
  const std::string signature_text = TRY(env.read_file(path.string() + ".minisig", kMaxSignatureFileBytes));
  const auto signatures = TRY(parse_signatures(signature_text, path.string()));
  const SignedHash hash = signed_hash(text);
  const auto signed_by = [&](const SigningPublicKey& one) -> Result<> {
    std::vector<std::string> names;
    for (const FileSignature& signature : signatures) {
      if (signature.key_id == one.id) return verify_signature(signature, one, hash, path.string());
      names.push_back(key_id_text(signature.key_id));
    }
    return broken_rule(
        PackRule::kSignature,
        fmt::format("the index in the folder is signed by the key {}, not by {}", join(names, ", "), one.id_text()),
        path.string(), "sign with a key that signed it; if you replace it, name its keys with --previous-key OLD.pub");
  };
  const Result<> own = signed_by(key);
  if (own.ok()) return parse_index(text, path.string());
  if (previous.empty()) return own.error();
  for (const SigningPublicKey& one : previous) TRY(signed_by(one));
  PackIndex index = TRY(parse_index(text, path.string()));
  SignerSet given;
  given.keys = previous;
  given.threshold = std::max<uint32_t>(1, index.signers.threshold);
  const std::string fault = signer_set_fault(given);
  if (fault.empty()) return index;
  return broken_rule(PackRule::kThreshold, fault, path.string(),
                     "name so many keys that signed this index with --previous-key OLD.pub, each once");
}

// Who signs the index from now on. A key that is none of them may sign the index that names them, and no later one.
Result<> set_signers(const SigningPublicKey& key, const PublishRequest& request, const Path& folder, PackIndex& index) {
  if (!request.signers.keys.empty()) {
    const std::string fault = signer_set_fault(request.signers);
    if (!fault.empty())
      return Error{ErrorKind::kConfig, fault, folder.string(), "name other keys with --signer, or another --threshold"};
    index.signers = request.signers;
  } else if (!index.signers.keys.empty() && !index.signers.contains(key)) {
    return broken_rule(PackRule::kThreshold,
                       fmt::format("{} sign this index, not {}", index.signers.text(), key.id_text()), folder.string(),
                       "sign with one of these keys, or name new ones with --signer");
  }
  return {};
}

// Whose archives the index takes: those of its signers (of any: the others may follow), of the keys before, and of those
// that it names for the id.
Trust publishers(const SigningPublicKey& key, const PublishRequest& request, const PackIndex& index,
                 const std::string& pack_id) {
  Trust trust;
  const auto add = [&](const SigningPublicKey& one) {
    trust.publishers.push_back({one_signer(one), {pack_id}, "", "", false});
  };
  add(key);
  for (const auto* keys : {&request.previous, &index.signers.keys})
    for (const SigningPublicKey& one : *keys) add(one);
  for (const auto* keys : {&index.keys, &request.keys}) {
    for (const IndexedKey& one : *keys) {
      if (std::any_of(one.ids.begin(), one.ids.end(), [&](const auto& ids) { return id_matches(ids, pack_id); }))
        add(one.key);
    }
  }
  trust.revoked = index.revoked;  // with those of the request
  return trust;
}

Result<> add_archive(Env& env, const Path& folder, const Path& file, const SigningPublicKey& key,
                     const PublishRequest& request, PackIndex& index) {
  const PackArchive archive = TRY(read_pack_archive(env, file));
  const PackDescription& pack = archive.description;
  const Path signature_path = file.string() + ".minisig";
  if (!env.exists(signature_path))
    return broken_rule(PackRule::kSignature, "the archive is not signed", file.string(),
                       fmt::format("run `mortise pack sign {} --secret KEY` first", file.string()));
  const std::string signature = TRY(env.read_file(signature_path, kMaxSignatureFileBytes));
  const Trust trust = publishers(key, request, index, pack.id);
  TRY(check_not_revoked(trust, archive.sha256, pack.id, file.string()));
  TRY(check_signer(trust, signature, archive.bytes, pack.id, pack.version, signature_path.string()));
  const std::string name = archive_file_name(pack);
  for (const IndexedPack& known : index.packs) {
    if (known.id != pack.id || known.version != pack.version || known.sha256 == archive.sha256) continue;
    return broken_rule(PackRule::kTarget, pack.label() + " was published with other bytes", file.string(),
                       "a version never changes: publish it under a new one");
  }
  TRY(write_file_atomic(env, folder / name, archive.bytes));
  TRY(write_file_atomic(env, folder / (name + ".minisig"), signature));
  std::erase_if(index.packs, [&](const IndexedPack& known) { return known.file == name; });
  index.packs.push_back({pack.id, pack.version, name, archive.sha256, archive.bytes.size()});
  return {};
}

// A key is revoked as a whole: an id is that of a key that the index or the request names.
Result<> add_revocation(Env& env, Revocation one, const SigningPublicKey& key, const PublishRequest& request,
                        PackIndex& index) {
  if (!one.key.empty()) {
    std::vector<SigningPublicKey> known = {key};
    for (const auto* keys : {&request.previous, &std::as_const(index).signers.keys})
      known.insert(known.end(), keys->begin(), keys->end());
    for (const auto* keys : {&std::as_const(index).keys, &request.keys})
      for (const IndexedKey& named : *keys) known.push_back(named.key);
    one.key = TRY(find_key(env, one.key, known)).text();
  }
  std::erase_if(index.packs, [&](const IndexedPack& pack) { return pack.sha256 == one.sha256; });
  index.revoked.push_back(std::move(one));
  return {};
}

}  // namespace

Result<PackIndex> publish_index(Env& env, const Path& folder, const SigningSecretKey& key,
                                const PublishRequest& given) {
  TRY(create_dirs_synced(env, folder));
  const FolderLock held = TRY(wait_for_folder(folder, "the index"));
  const SigningPublicKey public_key = key.public_key();
  PackIndex index = TRY(current_index(env, folder, public_key, given.previous));
  PublishRequest request = given;
  request.previous.insert(request.previous.end(), index.signers.keys.begin(), index.signers.keys.end());
  TRY(set_signers(public_key, request, folder, index));
  for (const Revocation& one : request.revoked) TRY(add_revocation(env, one, public_key, request, index));
  for (const Path& file : request.archives) TRY(add_archive(env, folder, file, public_key, request, index));
  std::sort(index.packs.begin(), index.packs.end(),
            [](const IndexedPack& a, const IndexedPack& b) { return a.file < b.file; });
  for (const IndexedKey& one : request.keys) index.keys.push_back(one);
  if (!request.name.empty()) index.name = request.name;
  ++index.version;
  index.created = env.wall_time_ns() / 1'000'000'000;
  index.expires = index.created + request.lifetime_s;
  const std::string text = index_text(index);
  TRY(parse_index(text, (folder / kPackIndexFile).string()));
  const std::string signature = TRY(sign_bytes(key, text, index_comment(index, env)));
  // A reader between these two sees a signature that does not fit, and refuses the index (P16) until it reads again.
  TRY(write_file_atomic(env, folder / kPackIndexFile, text));
  TRY(write_file_atomic(env, folder / (std::string(kPackIndexFile) + ".minisig"), signature));
  return index;
}

}  // namespace mortise
