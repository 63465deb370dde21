// Server mode of TRL and ms-swift: their trainers are clients of vLLM's servers, as the rollout backend vllm is. In
// their other mode vLLM runs within the trainer, and here the trainer samples itself.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

// The addresses: base_url, else host and port; each may be a list.
std::vector<std::string> server_urls(Translation& t) {
  std::vector<std::string> urls = t.texts("vllm_server_base_url");
  if (!urls.empty()) return urls;
  const std::vector<std::string> hosts = t.texts("vllm_server_host");
  const std::vector<double> ports = t.numbers("vllm_server_port");
  for (size_t i = 0; i < hosts.size(); ++i) {
    const std::string host = hosts[i] == "0.0.0.0" ? "127.0.0.1" : hosts[i];
    const double port = ports.empty() ? 8000 : ports[std::min(i, ports.size() - 1)];
    urls.push_back(fmt::format("http://{}:{}", host, static_cast<int64_t>(port)));
  }
  return urls;
}

}  // namespace

bool translate_servers(Translation& t) {
  if (!t.flag("use_vllm") || t.text("vllm_mode") != "server") {
    t.note_given({"use_vllm", "vllm_mode"}, reasons::kEngine);
    t.note_given({"vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"},
                 "only with use_vllm and vllm_mode server");
    return false;
  }
  const std::vector<std::string> urls = server_urls(t);
  t.set("rollout.name", "vllm", {"use_vllm", "vllm_mode"}, "docs/servers.md says how the servers are started");
  if (urls.empty())
    t.problem("vllm_server_host", "vllm_mode server without vllm_server_host or vllm_server_base_url",
              "name the server");
  else
    t.set("rollout.vllm.url", join(urls, ", "), {"vllm_server_base_url", "vllm_server_host", "vllm_server_port"});
  if (t.is_given("vllm_server_timeout"))
    t.set("rollout.vllm.start_limit", t.number("vllm_server_timeout"), {"vllm_server_timeout"});
  if (t.is_set("rollout.val_kwargs.n"))  // the framework validates
    t.set("rollout.val_engine", "rollout", {"use_vllm", "vllm_mode"}, "the servers sample validations too");
  return true;
}

}  // namespace mortise
