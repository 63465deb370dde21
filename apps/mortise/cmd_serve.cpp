// mortise serve: a model behind the HTTP API of OpenAI and vLLM, by the engine that training samples with.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "command_line.h"
#include "commands.h"
#include "config/check.h"
#include "config/load.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"
#include "hub/config_names.h"
#include "keys_here.h"
#include "serve/http/query.h"
#include "serve/ui/access.h"
#include "serve_ui.h"
#include "served_folder.h"
#include "train/run/run_device.h"
#include "train/run/threads.h"

namespace mortise {
namespace {

namespace po = boost::program_options;

constexpr const char* kServeUsage =
    R"(usage: mortise serve --model DIR [--host ADDRESS] [--port N] [--api-key KEY] [--served-model-name NAME]
                     [--tool-call-parser NAME] [KEY=VALUE ...]
       mortise serve RUN|DIR [RUN|DIR ...] --ui [--host ADDRESS] [--port N] [--api-key KEY] [KEY=VALUE ...]

Serves a model over HTTP: /health, /v1/models, /v1/completions, /v1/chat/completions, /tokenize, /detokenize, /metrics,
and vLLM's calls for new weights (/pause, /collective_rpc, /update_weight_version, /resume). docs/servers.md has the
fields. All clients share the engine. It computes one token of every completion at a time. SIGTERM or SIGINT ends it.

With --ui it serves pages for a browser: the report of the runs, which grows while they train, and a playground that
samples with two checkpoints or model folders next to one another and scores completions by the run's rewards. It prints
the address to open, which has a token: whoever has it may use the pages. docs/playground.md explains them.

KEY is one of these. `mortise config explain KEY` explains each.
<keys>
)";

struct ServeArguments {
  std::string model, host, api_key, name, parser;
  int port = 8000;
  bool json = false, ui = false;
  std::vector<std::string> folders;  // folders of runs and models, for the pages
  std::vector<std::string> overrides;
};

po::options_description serve_options(ServeArguments& parsed) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("model", po::value(&parsed.model), "Hugging Face folder, or a name on the hub")(
      "ui", po::bool_switch(&parsed.ui), "serve pages about the folders of runs and models that are named")(
      "host", po::value(&parsed.host)->default_value("127.0.0.1"),
      "address to listen on; 0.0.0.0 is all of them, and needs an API key")(
      "port", po::value(&parsed.port)->default_value(8000), "port to listen on; 0 takes any free one")(
      "api-key", po::value(&parsed.api_key),
      "clients must send 'Authorization: Bearer KEY'. Other users of this machine can see the command line; the "
      "environment variable MORTISE_API_KEY hides the key")("served-model-name", po::value(&parsed.name),
                                                            "the model's name for clients; default: the folder's name")(
      "tool-call-parser", po::value(&parsed.parser)->default_value("auto"),
      "form in which the model calls tools: hermes, qwen3_coder, llama3_json, llama3_pythonic, mistral or gpt-oss. auto: "
      "the one of its chat template. none: answers are text alone")(
      "json", po::bool_switch(&parsed.json), "say where it listens as one JSON object")("help,h", "this text");
  return options;
}

Error bad_serving(const std::string& what, const std::string& next = "see mortise serve --help") {
  return {ErrorKind::kConfig, what, "mortise serve", next};
}

// Nothing: the chat template decides.
Result<std::optional<ToolCallParser>> parser_of(const std::string& name) {
  if (name == "auto") return std::optional<ToolCallParser>();
  if (name == "none") return std::optional<ToolCallParser>(ToolCallParser());
  if (const auto format = parse_choice<ToolFormat>(name)) return std::optional<ToolCallParser>(ToolCallParser(*format));
  return bad_serving("there is no tool-call parser " + quote(name));
}

// A word is KEY=VALUE, or with --ui a folder.
Result<> take_word(const std::string& word, ServeArguments& parsed) {
  const std::string key = word.substr(0, word.find('='));
  if (std::ranges::count(keys_of(ConfigUse::kServe), key) > 0 && key.size() < word.size()) {
    parsed.overrides.push_back(word);
    return {};
  }
  if (default_env().info(word).ok()) {
    if (!parsed.ui)
      return bad_serving("a folder without an option needs --ui", "add --ui for the pages, or write --model " + word);
    parsed.folders.push_back(word);
    return {};
  }
  if (key.size() == word.size() && parsed.ui)
    return bad_serving("there is no folder " + quote(word), "name a run or a model");
  const std::string near = did_you_mean(key, keys_of(ConfigUse::kServe));
  return bad_serving(quote(word) + " has no effect on serve",
                     near.empty() ? "`mortise serve --help` lists the keys" : near);
}

Result<ServeArguments> parse_serve(Arguments args) {
  ServeArguments parsed;
  const po::options_description options = serve_options(parsed);
  const auto given = TRY(parse_words(args, options, "mortise serve"));
  for (const std::string& word : words_of(given)) TRY(take_word(word, parsed));
  if (parsed.ui && !parsed.model.empty()) parsed.folders.push_back(parsed.model);
  if (parsed.ui && parsed.folders.empty()) return bad_serving("--ui needs the folder of a run or a model");
  if (parsed.ui && !parsed.name.empty())
    return bad_serving("--served-model-name has no effect with --ui", "leave it out");
  if (parsed.ui && parsed.parser != "auto")
    return bad_serving("--tool-call-parser has no effect with --ui", "leave it out");
  TRY(parser_of(parsed.parser));
  if (!parsed.ui && parsed.model.empty()) return bad_serving("option --model is missing");
  if (parsed.port < 0 || parsed.port > 65535) return bad_serving("--port must be from 0 to 65535");
  if (const char* key = std::getenv("MORTISE_API_KEY"); key != nullptr && parsed.api_key.empty()) parsed.api_key = key;
  if (parsed.api_key.empty() && !is_loopback_host(parsed.host))
    return bad_serving("the server would answer anyone who reaches " + parsed.host, "set --api-key");
  return parsed;
}

// The folder's last name, or the hub's.
std::string name_of(const std::string& model) {
  std::string path = model;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string name = std::filesystem::path(path).filename().string();
  return name.empty() || name == "." || name == ".." ? path : name;
}

void tell_address(const ServeArguments& args, const HttpServer& server, const std::string& name) {
  const std::string url = http_url(args.host, server.port());
  if (args.json)
    std::cout << dump_json(Json{{"url", url}, {"port", server.port()}, {"model", name}}) << std::endl;
  else
    std::cout << fmt::format("serving {} at {}", name, url) << std::endl;
}

// Until a signal comes.
void serve_until_stopped(ServeLoop& loop, ServeService& service, HttpServer& server) {
  std::atomic<bool> is_over = false;
  std::thread watch([&] {
    while (!stop_requested() && !is_over) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    loop.stop();
  });
  loop.run();
  is_over = true;
  watch.join();
  service.stop();
  server.stop();
}

Result<> serve(const ServeArguments& args) {
  if (args.ui)
    return serve_ui(
        {args.folders, args.overrides, args.host, args.port, args.api_key, args.api_key.empty(), args.json});
  Env& env = default_env();
  LoadedConfig loaded = TRY(load_config(env, "", args.overrides));
  RunConfig& config = loaded.config;
  config.model.path = args.model;
  loaded.positions["model.path"] = "--model";
  for (const Error& warning : TRY(check_config(loaded, ConfigUse::kServe))) log_warn(warning.to_string());
  TRY(resolve_hub_names(env, loaded, {}));
  const ComputeDevice device = TRY(open_sampling_device(loaded, ConfigUse::kServe));
  use_threads(config.trainer);
  const std::string name = args.name.empty() ? name_of(args.model) : args.name;
  const auto parser = TRY(parser_of(args.parser));
  const auto served = TRY(ServedFolder::load(env, config, device, name, args.api_key, parser));
  ServeService& service = served->service();
  const auto handle = [&](HttpRequest request, auto reply) { service.handle(std::move(request), reply); };
  const auto gate = [&](const HttpRequest& head) { return service.gate(head); };
  const auto server = TRY(HttpServer::listen(args.host, static_cast<uint16_t>(args.port), {}, handle, gate));
  take_stop_requests();
  server->start();
  tell_address(args, *server, name);
  serve_until_stopped(served->loop(), service, *server);
  return {};
}

}  // namespace

int cmd_serve(Arguments args) {
  const std::string usage = usage_with_keys(kServeUsage, ConfigUse::kServe);
  return run_parsed<ServeArguments>(args, usage.c_str(), serve_options, parse_serve, serve);
}

}  // namespace mortise
