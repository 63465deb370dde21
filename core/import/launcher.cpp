// Recognizes accelerate, torchrun, deepspeed and the like, and counts their processes.
#include "import/launcher.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/source.h"

namespace mortise {

namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_command_pair(std::string_view first, std::string_view second) {
  return (first == "trl" && second == "grpo") || ((first == "swift" || first == "megatron") && second == "rlhf");
}

enum Rank { kNone, kOptions, kScript, kTrainer };

struct Start {
  Rank rank = kNone;
  size_t arguments = 0;  // the first of them
};

bool looks_like_argument(std::string_view word, bool dotted) {
  return dotted ? word.find('=') != std::string_view::npos || word.starts_with('~') : word.starts_with("--");
}

// The first argument: what follows the trainer, or the script, or the module that is run, else the first word that
// looks like one.
Start find_start(const std::vector<ShellWord>& words, bool dotted) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    // Values of options after the script may look the same, and so may the value of a launcher's option.
    const bool is_value = i > 0 && words[i - 1].text.starts_with("--") && words[i - 1].text.size() > 2 &&
                          words[i - 1].text.find('=') == std::string::npos;
    if (i > 0 && is_command_pair(base_name(words[i - 1].text), word)) return {kTrainer, i + 1};
    const bool names_file = !word.starts_with("-") && word.find('=') == std::string::npos;
    if (names_file && word.find(".main_") != std::string::npos) return {kTrainer, i + 1};
    const bool is_module = i > 0 && (words[i - 1].text == "-m" || words[i - 1].text == "--module") &&
                           !word.starts_with("torch.distributed.") && !word.starts_with("accelerate.");
    const bool is_script = word.ends_with(".py") && !is_value;
    if (!names_file || (!is_module && !is_script)) continue;
    const bool has_any = std::any_of(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end(),
                                     [&](const ShellWord& next) { return looks_like_argument(next.text, dotted); });
    return {has_any ? kScript : kNone, i + 1};
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (looks_like_argument(words[i].text, dotted)) return {kOptions, i};
  }
  return {};
}

// The options in front of the script.
class Options {
 public:
  Options(const std::vector<ShellWord>& words, size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const ShellWord& word = words[i];
      if (!word.text.starts_with('-')) continue;
      const size_t equals = word.text.find('=');
      std::string name = word.text.substr(0, equals);
      std::replace(name.begin() + 2 * static_cast<std::ptrdiff_t>(name.starts_with("--")), name.end(), '-', '_');
      if (equals != std::string::npos) {
        ShellWord value = word;
        value.text.erase(0, equals + 1);
        options_.emplace_back(std::move(name), std::move(value));
      } else {
        options_.emplace_back(std::move(name), i + 1 < end ? words[i + 1] : ShellWord());
      }
    }
  }
  [[nodiscard]] const ShellWord* find(std::string_view name) const {
    const auto found = std::ranges::find(options_, name, &std::pair<std::string, ShellWord>::first);
    return found == options_.end() ? nullptr : &found->second;
  }

 private:
  std::vector<std::pair<std::string, ShellWord>> options_;
};

int64_t num_items(std::string_view list) {
  int64_t count = 0;
  for (const std::string_view item : split(list, ',')) count += trim(item).empty() ? 0 : 1;
  return count;
}

class Counter {
 public:
  Counter(const ShellCommand& command, Launch& launch) : command_(command), launch_(launch) {}

  // A count from the launcher's option; nothing if it has none. Keeps the reason for an unknown value.
  std::optional<int64_t> option(const Options& options, std::string_view name) {
    const ShellWord* word = options.find(name);
    if (word == nullptr) return std::nullopt;
    launch_.how += fmt::format(" {} {}", name, word->text);
    return number(*word, name);
  }
  std::optional<int64_t> variable(std::string_view name) {
    const auto found = command_.environment.find(name);
    if (found == command_.environment.end()) return std::nullopt;
    launch_.how += fmt::format("{}{}={}", launch_.how.empty() ? "" : " ", name, found->second.text);
    return number(found->second, name);
  }
  // One for each visible GPU.
  void every_gpu() {
    const auto found = command_.environment.find("CUDA_VISIBLE_DEVICES");
    if (found != command_.environment.end() && found->second.unknown.empty()) {
      launch_.how += " with CUDA_VISIBLE_DEVICES=" + found->second.text;
      set(num_items(found->second.text), 1);
    } else if (launch_.unknown.empty()) {
      launch_.unknown = launch_.how + " starts a process for every GPU, and the script does not say how many there are";
    }
  }
  void set(std::optional<int64_t> a, int64_t b) {
    if (a && *a >= 1 && b >= 1 && *a <= 1'000'000 && b <= 1'000'000) launch_.processes = *a * b;
  }

 private:
  std::optional<int64_t> number(const ShellWord& word, std::string_view name) {
    if (const auto value = parse_i64(word.text); value && word.unknown.empty()) return value;
    const bool gpus = word.text == "gpu" || word.text == "auto";
    if (launch_.unknown.empty() && !gpus) {
      launch_.unknown = fmt::format("{} of the launcher is not known: {}", name,
                                    word.unknown.empty() ? quote(word.text) + " is not a number" : word.unknown);
    }
    return std::nullopt;
  }

  const ShellCommand& command_;
  Launch& launch_;
};

void count_accelerate(const Options& options, Counter& counter, Launch& launch) {
  launch.how = "accelerate launch";
  if (options.find("--num_processes") != nullptr) return counter.set(counter.option(options, "--num_processes"), 1);
  if (const ShellWord* file = options.find("--config_file")) {
    launch.unknown =
        fmt::format("the number of processes is in {}, a file of accelerate's, which is not read", quote(file->text));
    return;
  }
  counter.every_gpu();
}

void count_torchrun(const Options& options, Counter& counter, Launch& launch) {
  launch.how = "torchrun";
  const ShellWord* per_node = options.find("--nproc_per_node");
  const bool every = per_node != nullptr && (per_node->text == "gpu" || per_node->text == "auto");
  const bool counts_nodes = options.find("--nnodes") != nullptr;
  const std::optional<int64_t> nodes = counts_nodes ? counter.option(options, "--nnodes") : std::optional<int64_t>(1);
  if (every) {
    counter.every_gpu();
    if (launch.processes) counter.set(launch.processes, nodes.value_or(0));
  } else {
    counter.set(per_node == nullptr ? std::optional<int64_t>(1) : counter.option(options, "--nproc_per_node"),
                nodes.value_or(0));
  }
  if (!launch.unknown.empty()) launch.processes.reset();
}

void count_deepspeed(const Options& options, Counter& counter, Launch& launch) {
  launch.how = "deepspeed";
  int64_t nodes = 1;
  if (options.find("--num_nodes") != nullptr) nodes = counter.option(options, "--num_nodes").value_or(0);
  if (options.find("--num_gpus") != nullptr) return counter.set(counter.option(options, "--num_gpus"), nodes);
  if (const ShellWord* include = options.find("--include"); include != nullptr && include->unknown.empty()) {
    int64_t gpus = 0;
    bool all_counted = true;
    for (const std::string_view node : split(include->text, '@')) {
      const size_t colon = node.find(':');
      all_counted = all_counted && colon != std::string_view::npos;
      if (colon != std::string_view::npos) gpus += num_items(node.substr(colon + 1));
    }
    launch.how += " --include " + include->text;
    if (all_counted) return counter.set(gpus, 1);
  }
  counter.every_gpu();
}

Launch launch_of(const ShellCommand& command, size_t arguments) {
  Launch launch;
  Counter counter(command, launch);
  const std::vector<ShellWord>& words = command.words;
  for (size_t i = 0; i < arguments; ++i) {
    const std::string_view word = base_name(words[i].text);
    const Options options(words, i + 1, arguments);
    if (word == "accelerate" && i + 1 < arguments && words[i + 1].text == "launch") {
      count_accelerate(options, counter, launch);
    } else if (word == "torchrun" || word.starts_with("torch.distributed.")) {
      count_torchrun(options, counter, launch);
    } else if (word == "deepspeed") {
      count_deepspeed(options, counter, launch);
    } else if (word == "swift") {
      const auto nodes = counter.variable("NNODES");
      const auto processes = counter.variable("NPROC_PER_NODE");
      if (nodes || processes) counter.set(processes.value_or(1), nodes.value_or(1));
    } else {
      continue;
    }
    if (!launch.unknown.empty()) launch.processes.reset();
    return launch;
  }
  return launch;
}

}  // namespace

TrainingCommand find_training(const ShellScript& script, bool dotted) {
  const ShellCommand* best = nullptr;
  Start start;
  TrainingCommand found;
  for (const ShellCommand& command : script.commands) {
    const Start here = find_start(command.words, dotted);
    const bool longer = here.rank == start.rank && here.rank == kOptions && best != nullptr &&
                        command.words.size() > best->words.size();
    if (here.rank != kNone && here.rank == start.rank && !longer) ++found.num_others;
    if (here.rank <= start.rank && !longer) continue;
    found.num_others = longer ? found.num_others + 1 : 0;
    best = &command;
    start = here;
  }
  if (best == nullptr) {  // the reader of the words reports those that are not arguments
    for (const ShellCommand& command : script.commands)
      found.arguments.insert(found.arguments.end(), command.words.begin(), command.words.end());
    return found;
  }
  if (start.rank == kOptions) found.num_others = 0;
  found.arguments.assign(best->words.begin() + static_cast<std::ptrdiff_t>(start.arguments), best->words.end());
  if (start.rank != kOptions) found.program = best->words[start.arguments - 1].text;
  found.launch = launch_of(*best, start.arguments);
  return found;
}

void take_launch_settings(std::vector<PeerSetting>& settings, Launch& launch) {
  constexpr std::string_view kNames[] = {"num_processes",   "num_machines",      "machine_rank",
                                         "main_process_ip", "main_process_port", "multi_gpu",
                                         "gpu_ids",         "mixed_precision",   "dynamo_backend",
                                         "use_deepspeed",   "zero_stage",        "deepspeed_config_file",
                                         "use_fsdp",        "accelerate_config", "num_cpu_threads_per_process"};
  std::vector<PeerSetting> kept;
  for (PeerSetting& setting : settings) {
    if (std::ranges::find(kNames, setting.name) == std::end(kNames)) {
      kept.push_back(std::move(setting));
      continue;
    }
    if (setting.name == "num_processes" && setting.unknown.empty() && setting.value.is_number_integer()) {
      launch.processes = setting.value.get<int64_t>();
      launch.unknown.clear();
    } else if (setting.name == "accelerate_config" && !launch.processes) {
      launch.unknown =
          fmt::format("the number of processes is in accelerate's settings {}, which are not read", quote(setting.raw));
    }
    launch.how += fmt::format("{}{} {}", launch.how.empty() ? "--" : " --", setting.name, setting.raw);
  }
  if (launch.processes) launch.unknown.clear();
  settings = std::move(kept);
}

}  // namespace mortise
