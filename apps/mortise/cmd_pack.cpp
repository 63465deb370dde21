// `mortise pack`: packs that can be handed over. docs/packs.md tells the whole way.
#include <sys/stat.h>

#include <array>

#include "pack_command.h"
#include "unknown_word.h"

namespace mortise {
namespace {

struct PackCommand {
  const char* name;
  const char* summary;
  Result<> (*run)(Arguments);
};

constexpr std::array kPackCommands{
    PackCommand{"keygen", "makes a pair of keys to sign with", pack_keygen},
    PackCommand{"build", "makes an archive (.mpack) from a folder or from shared objects", pack_build},
    PackCommand{"sign", "signs an archive; minisign can check the signature", pack_sign},
    PackCommand{"verify", "checks an archive and its signature", pack_verify},
    PackCommand{"inspect", "shows what is in an archive, and runs none of it", pack_inspect},
    PackCommand{"install", "installs an archive", pack_install},
    PackCommand{"list", "lists the installed packs", pack_list},
    PackCommand{"remove", "removes an installed pack", pack_remove},
    PackCommand{"outdated", "shows which installed packs have newer versions in their index", pack_outdated},
    PackCommand{"trust", "says whose packs you accept: adds, lists, removes and revokes keys", pack_trust},
    PackCommand{"lock", "pins the packs of a run by their hashes, for train --locked", pack_lock},
    PackCommand{"publish", "adds archives to an index: a folder for any web server", pack_publish},
};

void print_pack_usage(std::ostream& out) {
  out << "usage: mortise pack COMMAND [options]\n\n";
  for (const PackCommand& command : kPackCommands)
    out << "  " << command.name << std::string(10 - std::string(command.name).size(), ' ') << command.summary << "\n";
  out << "\n`mortise pack COMMAND --help` tells more. Every command takes --json.\n";
}

}  // namespace

int cmd_pack(Arguments args) {
  if (args.empty()) {
    print_pack_usage(std::cerr);
    return static_cast<int>(ErrorKind::kConfig);
  }
  ::umask(::umask(0) | S_IWGRP | S_IWOTH);  // keys, trust and packs are for this user to change, whatever the umask is
  const std::string& name = args.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_pack_usage(std::cout);
    return 0;
  }
  std::vector<std::string> names;
  for (const PackCommand& command : kPackCommands) {
    names.emplace_back(command.name);
    if (name != command.name) continue;
    const Result<> done = command.run(args.subspan(1));
    return done.ok() ? 0 : fail(done.error());
  }
  return fail(unknown_word("command", name, names, "mortise pack"));
}

}  // namespace mortise
