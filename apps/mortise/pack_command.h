// What the commands of `mortise pack` share. One function for each command; cmd_pack.cpp calls them.
#pragma once

#include <boost/program_options.hpp>
#include <iosfwd>
#include <string>

#include "commands.h"
#include "foundation/formats/json.h"
#include "packs/index.h"
#include "packs/pack_archive.h"
#include "packs/places.h"
#include "packs/store.h"
#include "packs/trust.h"

namespace mortise {

// Makers (cmd_pack_make.cpp).
Result<> pack_keygen(Arguments args);
Result<> pack_build(Arguments args);
Result<> pack_sign(Arguments args);
Result<> pack_verify(Arguments args);
Result<> pack_inspect(Arguments args);
// Users (cmd_pack_use.cpp).
Result<> pack_install(Arguments args);
Result<> pack_list(Arguments args);
Result<> pack_remove(Arguments args);
// Indexes and trust (cmd_pack_publish.cpp, cmd_pack_index.cpp, cmd_pack_trust.cpp, cmd_pack_lock.cpp).
Result<> pack_publish(Arguments args);
Result<> pack_outdated(Arguments args);
Result<> pack_trust(Arguments args);
Result<> pack_lock(Arguments args);

using PackWords = std::vector<std::string>;

[[nodiscard]] Error pack_usage_error(std::string what);

// Parses the words; nothing where --help was given and printed.
Result<std::optional<boost::program_options::variables_map>> pack_words(
    Arguments args, const char* usage, const boost::program_options::options_description& options);
[[nodiscard]] std::string option_text(const boost::program_options::variables_map& given, const char* name);

// --store, or where the store is.
Result<PackPlaces> places_of(const boost::program_options::variables_map& given);

// The text of the signature next to an archive; "" without one.
Result<std::string> signature_beside(const Path& archive);

// --index, or the index of the trusted key that owns the id.
Result<std::string> index_of(const boost::program_options::variables_map& given, const Trust& trust,
                             const std::string& id);
struct IndexedSource {
  std::unique_ptr<FileSource> source;
  CheckedIndex checked;
};
// Reads and checks the index of a place, and says what it changed in `trust`.
Result<IndexedSource> open_index(const PackPlaces& places, const std::string& place, Trust& trust);

// The values of an option that may be repeated.
[[nodiscard]] PackWords list_of(const boost::program_options::variables_map& given, const char* name);
// The keys in .pub files.
Result<std::vector<SigningPublicKey>> public_keys(const PackWords& files);
// --threshold (1 without it) of the keys in these files.
Result<SignerSet> signer_set(const boost::program_options::variables_map& given, const PackWords& files);
[[nodiscard]] Json key_ids_json(const std::vector<SigningPublicKey>& keys);  // ["A", "B"]

// The text of --password-file; "" without it.
Result<SecretText> password_of(const boost::program_options::variables_map& given);
// The secret key of --secret, with the password of --password-file.
Result<SigningSecretKey> secret_key_of(const boost::program_options::variables_map& given);

[[nodiscard]] Json description_json(const PackDescription& pack);
[[nodiscard]] Json installed_json(const InstalledPack& pack);
// Id, version, licence, platforms and what the plugins may do: what is shown before anything runs.
void print_archive(const PackArchive& archive, std::ostream& out);

// One error that lists all; its exit code is that of the first. Nothing without errors.
Result<> all_of(const std::vector<Error>& errors);

}  // namespace mortise
