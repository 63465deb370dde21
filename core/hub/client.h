// HubClient: the calls of a hub's HTTP interface, which are tried again where that can help.
//
// The interface is that of huggingface.co as huggingface_hub uses it. Mirrors that lack the sizes and hashes in the list of
// files are asked for them file by file. Threading: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hub/hub_name.h"
#include "hub/options.h"
#include "hub/transfer.h"

namespace mortise {

struct HubFile {
  std::string path;   // relative, with "/"; checked: it stays below its folder
  std::string etag;   // SHA-256 of a large file, Git's id of a small one; empty: not known yet
  uint64_t size = 0;  // with etag
};

struct HubRevision {
  std::string commit;
  std::vector<HubFile> files;  // sorted by path
};

class HubClient {
 public:
  HubClient(Env& env, HubOptions options) : env_(env), options_(std::move(options)) {}

  // What the name's revision is today.
  Result<HubRevision> revision(const HubName& name);
  // Fills in the file's etag and size.
  Result<> look_up(const HubName& name, const std::string& commit, HubFile& file);
  // Appends to `out`, which may hold the beginning of the file. `bytes_so_far` is called while it runs.
  Result<> download(const HubName& name, const std::string& commit, const HubFile& file, const Path& out,
                    const std::function<void(uint64_t)>& bytes_so_far);

  [[nodiscard]] const HubOptions& options() const { return options_; }
  // True if a call failed because the hub has no such repository, revision or file, or gives no access to it. False if it
  // failed because the hub was not reached or was busy; the cache may then answer in its place.
  [[nodiscard]] bool was_refused() const { return was_refused_; }

 private:
  // `most_tries`: of a download more than of a question, to which the cache has an answer too.
  Result<HubAnswer> send(HubRequest request, const HubName& name, int most_tries);
  Result<HubAnswer> send_once(HubRequest request);
  [[nodiscard]] std::string file_url(const HubName& name, const std::string& commit, const std::string& path) const;

  Env& env_;
  HubOptions options_;
  bool was_refused_ = false;
};

}  // namespace mortise
