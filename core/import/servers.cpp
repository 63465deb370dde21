// Runs whose completions come from servers. TRL's and ms-swift's server mode names them. Their other mode and verl start
// the engine themselves; with --servers it becomes the rollout backend of its name, and what the file says of the engine
// becomes the servers' command line. Without --servers such a run samples in the trainer.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

constexpr std::string_view kServersOption = "--servers";

// A setting of an engine with its name on the command lines of vLLM and SGLang; empty: it has none there.
struct EngineFlag {
  std::string_view name, vllm, sglang;
  bool is_slots = false;  // also says how many rows a server gets at once
};

constexpr EngineFlag kVerlFlags[] = {
    {"rollout.tensor_model_parallel_size", "--tensor-parallel-size", "--tp-size"},
    {"rollout.pipeline_model_parallel_size", "--pipeline-parallel-size", "--pp-size"},
    {"rollout.data_parallel_size", "--data-parallel-size", "--dp-size"},
    {"rollout.expert_parallel_size", "--enable-expert-parallel", "--ep-size"},
    {"rollout.gpu_memory_utilization", "--gpu-memory-utilization", "--mem-fraction-static"},
    {"rollout.dtype", "--dtype", "--dtype"},
    {"rollout.max_model_len", "--max-model-len", "--context-length"},
    {"rollout.max_num_batched_tokens", "--max-num-batched-tokens", ""},
    {"rollout.max_num_seqs", "--max-num-seqs", "--max-running-requests", true},
    {"rollout.enforce_eager", "--enforce-eager", "--disable-cuda-graph"},
};
// TRL's and ms-swift's; each has some of them.
constexpr EngineFlag kHfFlags[] = {
    {"vllm_tensor_parallel_size", "--tensor-parallel-size", ""},
    {"vllm_pipeline_parallel_size", "--pipeline-parallel-size", ""},
    {"vllm_data_parallel_size", "--data-parallel-size", ""},
    {"vllm_enable_expert_parallel", "--enable-expert-parallel", ""},
    {"vllm_gpu_memory_utilization", "--gpu-memory-utilization", ""},
    {"vllm_dtype", "--dtype", ""},
    {"vllm_max_model_length", "--max-model-len", ""},
    {"vllm_max_model_len", "--max-model-len", ""},
    {"vllm_max_num_seqs", "--max-num-seqs", "", true},
    {"vllm_enforce_eager", "--enforce-eager", ""},
    {"vllm_model_impl", "--model-impl", ""},
};

bool is_switch(std::string_view flag) {
  return flag.starts_with("--enable-") || flag.starts_with("--disable-") || flag == "--enforce-eager";
}

// Part of a command that people copy, so nothing in it may mean something to a shell.
bool is_plain(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

// "--tensor-parallel-size 2"; empty: the value needs no words, or is none that an engine takes.
std::string words_of(std::string_view flag, const Json& value) {
  if (flag.empty()) return "";
  const bool is_on = value == true || (value.is_number() && value > 1);
  if (is_switch(flag)) return is_on ? std::string(flag) : "";
  const std::string text = value.is_string() ? value.get<std::string>() : value.is_number() ? dump_json(value) : "";
  return is_plain(text) ? fmt::format("{} {}", flag, text) : "";
}

// The backend that samples in place of the file's engine; empty: none does.
std::string engine_of(const Translation& t, bool is_verl) {
  if (!is_verl) return t.value("use_vllm") == true && t.value("vllm_mode") != "server" ? "vllm" : "";
  const Json name = t.value("rollout.name");
  return name == "vllm" || name == "sglang" ? name.get<std::string>() : "";
}

// The engine's settings as words for its servers' command lines; each is noted.
std::string take_flags(Translation& t, std::span<const EngineFlag> flags, const std::string& engine) {
  std::string words;
  for (const EngineFlag& flag : flags) {
    if (!t.is_given(flag.name) || !t.require(flag.name)) continue;
    const Json value = t.value(flag.name);
    const std::string word = words_of(engine == "vllm" ? flag.vllm : flag.sglang, value);
    if (word.empty()) continue;
    words += " " + word;
    if (!flag.is_slots) {
      t.note(flag.name, fmt::format("the servers' command line has {}", word));
    } else if (value.is_number_integer()) {
      t.set(fmt::format("rollout.{}.slots", engine), value, {flag.name});
    }
  }
  return words;
}

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

// Server mode without --servers.
void set_named_servers(Translation& t) {
  const std::vector<std::string> urls = server_urls(t);
  t.set("rollout.name", "vllm", {"use_vllm", "vllm_mode"}, "docs/servers.md says how the servers are started");
  if (urls.empty())
    t.problem("vllm_server_host", "vllm_mode server without vllm_server_host or vllm_server_base_url",
              "name the server");
  else
    t.set("rollout.vllm.url", join(urls, ", "), {"vllm_server_base_url", "vllm_server_host", "vllm_server_port"});
}

void set_urls(Translation& t, const std::string& backend, std::string_view name) {
  t.set("rollout.name", backend, {name}, "docs/servers.md says how the servers are started");
  t.set(fmt::format("rollout.{}.url", backend), join(t.servers(), ", "), {name}, "the addresses of --servers");
}

}  // namespace

Result<void> check_servers(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) {
    const bool is_http = url.starts_with("http://") || url.starts_with("https://");
    const bool is_clean = std::ranges::all_of(url, [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != ','; });
    if (!is_http || !is_clean || url.ends_with("//"))
      return Error{ErrorKind::kConfig, quote(url) + " is not the address of a server", std::string(kServersOption),
                   "write it like http://127.0.0.1:8000, with commas between several"};
    if (std::ranges::count(urls, url) > 1)
      return Error{ErrorKind::kConfig, url + " is named twice", std::string(kServersOption), "name each server once"};
  }
  return {};
}

void prepare_servers(Translation& t, std::string_view framework) {
  if (t.servers().empty()) return;
  t.say_instead(reasons::kEngine, reasons::kServersEngine);
  const bool is_verl = framework == "verl";
  const std::string engine = engine_of(t, is_verl);
  if (engine.empty()) return;                        // another one, or servers that have their command lines already
  if (is_verl) set_urls(t, engine, "rollout.name");  // the rule's note would say that no server samples
  const std::string words = take_flags(t, is_verl ? std::span<const EngineFlag>(kVerlFlags) : kHfFlags, engine);
  const std::string_view start = engine == "vllm" ? "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --port PORT"
                                                  : "python -m sglang.launch_server --model-path MODEL --port PORT";
  t.say_first("Start each server before the run (docs/servers.md):");
  t.say_first(fmt::format("  {}{}", start, words));
}

bool translate_servers(Translation& t) {
  const bool uses = t.flag("use_vllm"), is_server = uses && t.text("vllm_mode") == "server";
  if (!t.servers().empty() && !uses) {
    t.problem("use_vllm", "--servers names servers, but use_vllm is not true: the file samples without vLLM",
              "leave --servers out, or set use_vllm");
    return false;
  }
  if (!is_server && t.servers().empty()) {
    t.note_given({"use_vllm", "vllm_mode"}, uses ? reasons::kOwnEngine : reasons::kEngine);
    t.note_given({"vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"},
                 "only with use_vllm and vllm_mode server");
    return false;
  }
  if (!t.servers().empty()) {
    set_urls(t, "vllm", "use_vllm");
    t.note_given({"vllm_mode"}, "--servers names the servers");
    t.note_given({"vllm_server_base_url", "vllm_server_host", "vllm_server_port"}, "the addresses of --servers win");
  } else {
    set_named_servers(t);
  }
  if (t.is_given("vllm_server_timeout"))
    t.set("rollout.vllm.start_limit", t.number("vllm_server_timeout"), {"vllm_server_timeout"});
  if (t.is_set("rollout.val_kwargs.n"))  // the framework validates
    t.set("rollout.val_engine", "rollout", {"use_vllm", "vllm_mode"}, "the servers sample validations too");
  return true;
}

void set_sleep(Translation& t, std::string_view name) {
  if (!t.is_given(name)) return;
  if (t.is_set("rollout.name")) return t.note(name, reasons::kServersEngine);
  const Json value = t.value(name);
  if (value != true && !(value.is_number() && value > 0))
    return t.note(name, "keys and values stay in memory while the run trains");
  if (t.is_set("trainer.mode")) return t.note(name, "sampling ahead needs its keys and values while the run trains");
  t.set("rollout.sleep_while_training", true, {name}, reasons::kSpeed);
}

void set_hf_sleep(Translation& t, std::string_view name) {
  if (!t.flag("use_vllm")) return t.note_given({name}, "only with use_vllm");
  set_sleep(t, name);
}

void translate_hf_groups(Translation& t, const Processes& processes) {
  constexpr std::string_view kName = "vllm_tensor_parallel_size", kMode = "trainer.mode";
  if (!t.is_given(kName)) return;
  if (t.is_set("rollout.name")) {
    // With --servers and an engine of the trainer's own, prepare_servers has put it on their command lines.
    if (t.servers().empty() || t.text("vllm_mode") == "server") t.note(kName, reasons::kServersEngine);
    return;
  }
  if (!t.flag("use_vllm")) return t.note(kName, "only with use_vllm and vllm_mode colocate");
  const int64_t size = t.is_null(kName) ? 1 : t.integer(kName);
  if (size <= 1) return t.note(kName, "1: every rank samples rows of its own");
  if (t.is_set(kMode)) return t.note(kName, fmt::format("ranks sample together only with {} = \"sync\"", kMode));
  if (processes.is_said && processes.count % size != 0) {
    return t.problem(kName, fmt::format("{} cannot form groups of {}", processes.text(), size),
                     "choose a divisor of the number of processes; the framework refuses it too");
  }
  t.set("rollout.tensor_model_parallel_size", size, {kName, "vllm_mode"},
        processes.is_said ? std::string(reasons::kSpeed)
                          : fmt::format("{}; start a multiple of {} ranks", reasons::kSpeed, size));
}

void translate_verl_servers(Translation& t) {
  constexpr std::string_view kName = "rollout.name";
  if (t.servers().empty() || !t.require(kName)) return;
  if (!t.is_set(kName)) {
    const std::string said = t.is_null(kName) ? "does not say which" : "is " + quote(t.text(kName));
    return t.problem(kName, fmt::format("--servers needs servers of vLLM or SGLang, but rollout.name {}", said),
                     "leave --servers out, or set rollout.name to vllm or sglang");
  }
  if (!t.texts("data.val_files").empty())
    t.set("rollout.val_engine", "rollout", {kName}, "the servers sample validations too");
}

}  // namespace mortise
