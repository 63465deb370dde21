// See serve_ui.h.
#include "serve_ui.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <iostream>
#include <span>
#include <thread>

#include "config/check.h"
#include "config/load.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"
#include "foundation/formats/sha256.h"
#include "hub/config_names.h"
#include "serve/http/query.h"
#include "train/run/run_device.h"
#include "train/run/threads.h"
#include "ui_runs.h"

namespace mortise {
namespace {

std::string fresh_token(Env& env) {
  std::array<unsigned char, 24> bytes{};
  env.random_bytes(std::as_writable_bytes(std::span(bytes)));
  return to_hex(bytes);
}

// The settings are checked, and folders of models may be names on the hub.
Result<LoadedConfig> load_settings(Env& env, const ServeUiArguments& args, std::vector<std::string>& folders) {
  LoadedConfig first = TRY(load_config(env, "", args.overrides));
  first.config.model.path = args.folders.front();
  for (const Error& warning : TRY(check_config(first, ConfigUse::kServe))) log_warn(warning.to_string());
  for (const std::string& folder : args.folders) {
    LoadedConfig loaded = first;
    loaded.config.model.path = folder;
    TRY(resolve_hub_names(env, loaded, {}));
    folders.push_back(loaded.config.model.path);
  }
  return first;
}

// The only place where the token is told.
void tell_page(const ServeUiArguments& args, const std::string& url, const std::string& token) {
  const std::string page = fmt::format("{}/?token={}", url, args.tells_token ? encode_url(token) : "YOUR_API_KEY");
  if (args.json)
    std::cout << dump_json(Json{{"url", url}, {"page", page}}) << std::endl;
  else
    std::cout << fmt::format("open {}\n", page) << std::flush;
}

}  // namespace

Result<> serve_ui(const ServeUiArguments& args) {
  Env& env = default_env();
  std::vector<std::string> folders;
  const LoadedConfig loaded = TRY(load_settings(env, args, folders));
  const ComputeDevice device = TRY(open_sampling_device(loaded, ConfigUse::kServe));
  use_threads(loaded.config.trainer);
  const auto runs = TRY(UiRuns::create(env, folders, args.overrides, device));
  const std::string token = args.token.empty() ? fresh_token(env) : args.token;
  UiService service(*runs, {token, is_loopback_host(args.host)});
  const auto handle = [&](HttpRequest request, auto reply) { service.handle(std::move(request), reply); };
  const auto gate = [&](const HttpRequest& head) { return service.gate(head); };
  const auto server = TRY(HttpServer::listen(args.host, static_cast<uint16_t>(args.port), {}, handle, gate));
  take_stop_requests();
  server->start();
  tell_page(args, http_url(args.host, server->port()), token);
  while (!stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  service.stop();
  server->stop();
  return {};
}

}  // namespace mortise
