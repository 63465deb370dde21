// Where the hub and its cache are, by the environment variables of huggingface_hub.
//
//   HF_ENDPOINT      the hub's address (default https://huggingface.co)
//   HF_TOKEN         the user's token; else the file HF_TOKEN_PATH, else $HF_HOME/token
//   HF_HUB_OFFLINE   1: only the cache is used
//   HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT  seconds; see HubOptions
//   HF_HUB_CACHE     the cache; else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub
// Thread rule: plain values.
#pragma once

#include <chrono>
#include <string>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct HubOptions {
  std::string endpoint;  // without a slash at its end
  std::string token;     // may be empty. It is sent to the endpoint's host only
  bool offline = false;
  Path cache;
  Path program;  // mortise-fetch
  // A request ends if it gets less than 1 KiB a second for so long, or no connection: one for a list of files or for the
  // facts of a file, and a download.
  std::chrono::milliseconds facts_slow_after{10'000}, download_slow_after{30'000};
  std::chrono::milliseconds first_wait{1000};  // before the second try; doubled for each further one
};

// kind kConfig: an address that is neither https nor a server of this machine, no place for the cache, or a time-out that is
// no number of seconds.
Result<HubOptions> hub_options(Env& env);

}  // namespace mortise
