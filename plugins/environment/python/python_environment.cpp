// python: tools that are functions in the user's Python files, or a class of theirs with an object for each episode.
//
//   tools  ["tools.py:calculator", ...]  functions with type hints and docstrings; a turn that calls none ends the row
//   mcp    "python server.py"            the tools of an MCP server, which runs next to the Python process
//   class  "game.py:Game"                reset(**row), public methods as tools, get_reward(); or a text game with
//                                        step(text) -> observation, reward, done
//   verl_tools, verl_functions, verl_interactions   what was written for verl (verl_tools.py)
// A tool that raises answers the model with the error. A crash or a hang ends the process and costs the current episode.
// Objects of other episodes that were in it are made again by playing their turns again. docs/turns.md has the whole
// contract.
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include <mortise/cpp/mortise.hpp>

#include <mortise/cpp/environment.hpp>
#include <mortise/cpp/reads.hpp>

#include "../../shared/deadline.h"
#include "../../shared/python_imports.h"
#include "../../shared/python_process.h"
#include "parse/json.h"
#include "python_turns_driver.h"

namespace mortise {
namespace {

using Json = nlohmann::ordered_json;  // schemas of tools keep their order in the prompt, as in transformers

Json read_json(std::string_view text) {
  auto value = parse::parse_ordered_json(text);
  return value ? *std::move(value) : Json();
}

std::string write_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

struct PythonEnvironment : Environment {
  static constexpr const char* summary = "Python functions as tools, or a Python class as environment";
  static constexpr const char* doc =
      "tools: [\"FILE.py:FUNCTION\"], with type hints and docstrings. class: \"FILE.py:CLASS\" with reset(**row), public "
      "methods as tools and get_reward(), or with step(text)";
  static constexpr std::uint32_t flags =
      MORTISE_FLAG_NEEDS_PROGRAMS | MORTISE_FLAG_NEEDS_FILES | MORTISE_FLAG_TELLS_READS;
  static const void* plugin_extension(const char* id) noexcept { return reads_extension<PythonEnvironment>(id); }

  std::string tools = param("tools", "[]", "JSON list of functions, \"FILE.py:FUNCTION\" each");
  std::string mcp = param("mcp", "",
                          "command of a server of tools that speaks the Model Context Protocol on its standard input "
                          "and output, or a JSON list of such commands");
  std::string class_name = param("class", "", "class of the environment, \"FILE.py:CLASS\"; empty: tools alone");
  std::string kwargs = param("kwargs", "{}", "JSON object of arguments to make an object of the class with");
  std::string verl_tools = param("verl_tools", "[]",
                                 "JSON list of tools that were written for verl, as in its tool_config_path: "
                                 "{class_name, config, tool_schema}");
  std::string verl_functions = param(
      "verl_functions", "", "Python file with functions under verl's @function_tool, as in its function_tool_path");
  std::string verl_interactions = param("verl_interactions", "[]",
                                        "JSON list of interactions that were written for verl, as in its "
                                        "interaction_config_path: {name, class_name, config}");
  std::string interpreter = param("python", "python3", "interpreter, by path or by name in PATH; Python 3.8 or newer");
  double start_limit = param("start_limit", 45.0, "time limit in seconds to import the files").range(0.001, 1e6);

  void setup(Call call) override {
    const Json functions = read_json(tools), given = read_json(kwargs);
    if (!is_list_of_texts(functions))
      fail(MORTISE_INVALID_ARGUMENT, "tools: write a list of texts, [\"tools.py:calculator\"]");
    if (!given.is_object()) fail(MORTISE_INVALID_ARGUMENT, "kwargs: '" + kwargs + "' is not a JSON object");
    const Json servers = mcp.empty() || mcp.front() == '[' ? read_json(mcp.empty() ? "[]" : mcp) : Json::array({mcp});
    if (!is_list_of_texts(servers))
      fail(MORTISE_INVALID_ARGUMENT, "mcp: write a command, or a list of them, '[\"python server.py\"]'");
    const Json verl = read_json(verl_tools), interactions = read_json(verl_interactions);
    check_classes("verl_tools", verl, {"class_name"});
    check_classes("verl_interactions", interactions, {"class_name", "name"});
    const bool is_verl = !verl.empty() || !interactions.empty() || !verl_functions.empty();
    if (is_verl && !class_name.empty())
      fail(MORTISE_INVALID_ARGUMENT, "class and verl's tools or interactions both answer a turn: set one of them");
    has_episodes_ = is_verl || !class_name.empty();
    if (functions.empty() && servers.empty() && !has_episodes_)
      fail(
          MORTISE_INVALID_ARGUMENT,
          "there is neither a tool nor a class: set rollout.multi_turn.tools = [\"tools.py:calculator\"], or "
          "rollout.multi_turn.params.class = \"game.py:Game\", or rollout.multi_turn.params.mcp = \"python server.py\"");
    settings_ = {{"tools", functions},
                 {"mcp", servers},
                 {"class", class_name},
                 {"kwargs", given},
                 {"verl_tools", verl},
                 {"verl_functions", verl_functions},
                 {"verl_interactions", interactions}};
    get_ready(Patience{0, call});
  }

  void reads(Reads& out) const {
    const Json functions = read_json(tools);
    if (is_list_of_texts(functions)) {
      for (std::size_t i = 0; i < functions.size(); ++i)
        tell_file(out, "tools", "tool" + std::to_string(i), functions[i].get<std::string>());
    }
    if (!class_name.empty()) tell_file(out, "class", "class", class_name);
    if (!verl_functions.empty()) tell_file(out, "verl_functions", "verl_functions", verl_functions + ":");
    for (const auto& [param, text] :
         {std::pair("verl_tools", &verl_tools), std::pair("verl_interactions", &verl_interactions)}) {
      const Json entries = read_json(*text);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].is_object() && entries[i].contains("class_name") && entries[i]["class_name"].is_string())
          tell_file(out, param, param + std::to_string(i), module_file(entries[i]["class_name"].get<std::string>()));
      }
    }
  }

  std::string description() override { return write_json(description_); }

  Observation reset(const EpisodeStart& start, Call call) override {
    if (!has_episodes_) return {};
    const Patience patience{waiting_deadline_ns(call), call};
    get_ready(patience);
    Life& life = lives_[start.episode];
    life = {process_number_, {}};
    const std::string request = write_json({{"do", "reset"},
                                            {"episode", start.episode},
                                            {"seed", start.seed >> 1U},  // that a signed number holds
                                            {"columns", read_json(start.columns)},
                                            {"messages", read_json(start.messages)}});
    life.played.emplace_back(request, ask(request, patience));
    return observation_of(life.played.back().second);
  }

  Observation step(const EpisodeAction& action, Call call) override {
    const Patience patience{waiting_deadline_ns(call), call};
    get_ready(patience);
    const std::string request = write_json({{"do", "step"},
                                            {"episode", action.episode},
                                            {"text", action.text},
                                            {"calls", read_json(action.calls)},
                                            {"last", action.is_last}});
    if (!has_episodes_) return observation_of(ask(request, patience));
    Life& life = lives_.at(action.episode);
    if (life.process != process_number_) play_again(life, patience);
    life.played.emplace_back(request, ask(request, patience));
    return observation_of(life.played.back().second);
  }

  void close(std::int64_t episode, Call call) override {
    const auto life = lives_.find(episode);
    if (life == lives_.end()) return;
    const Patience patience{monotonic_ns() + 1'000'000'000, call};
    const bool is_there = is_ready_ && life->second.process == process_number_;
    const std::string request = write_json({{"do", "close"}, {"episodes", Json::array({episode})}});
    if (is_there && process_.send(request, patience) != Transfer::kDone) give_up();
    lives_.erase(life);
  }

 private:
  static bool is_list_of_texts(const Json& value) {
    if (!value.is_array()) return false;
    for (const Json& one : value)
      if (!one.is_string()) return false;
    return true;
  }

  static void check_classes(const std::string& param, const Json& entries, std::initializer_list<const char*> texts) {
    bool is_good = entries.is_array();
    for (std::size_t i = 0; is_good && i < entries.size(); ++i) {
      is_good = entries[i].is_object() && entries[i].contains("config") && entries[i]["config"].is_object();
      for (const char* name : texts) is_good = is_good && entries[i].contains(name) && entries[i][name].is_string();
    }
    if (is_good) return;
    fail(MORTISE_INVALID_ARGUMENT, param + ": write a JSON list of objects with class_name and config" +
                                       (texts.size() > 1 ? ", and a name for each" : "") +
                                       "; `mortise config import --from verl` writes it");
  }

  // Where Python looks first for the module of "a.b.CLASS": "a/b.py:CLASS".
  static std::string module_file(std::string dotted) {
    const std::size_t dot = dotted.rfind('.');
    if (dot == std::string::npos) return dotted;
    std::string path = dotted.substr(0, dot);
    for (char& c : path) c = c == '.' ? '/' : c;
    return path + ".py:" + dotted.substr(dot + 1);
  }

  static void tell_file(Reads& out, const char* param, const std::string& name, const std::string& entry) {
    const std::string path = entry.substr(0, entry.rfind(':'));
    char resolved[PATH_MAX];
    if (realpath(path.c_str(), resolved) == nullptr) return;  // setup() says so
    PythonImports imports = find_python_imports(resolved);
    const std::string file = resolved;
    imports.files.push_back(file.substr(file.rfind('/') + 1));
    out.files(param, name, path + " and the modules that it imports from its folder", imports.folder.string(),
              imports.files);
  }

  // An episode with an object: the process that holds it, and all requests and answers so far.
  struct Life {
    std::int64_t process = 0;
    std::vector<std::pair<std::string, std::string>> played;
  };

  // The object was lost with a process that another episode ended. If the same turns have the same answers, the new
  // object is as the old one was.
  void play_again(Life& life, const Patience& patience) {
    for (const auto& [request, answer] : life.played) {
      if (ask(request, patience) != answer)
        fail(MORTISE_ABORTED,
             "its object was lost when another episode ended the Python process, and playing its turns "
             "again gave other answers");
    }
    life.process = process_number_;
  }

  // Starts the process if there is none, and waits until it has imported the files.
  void get_ready(Patience patience) {
    if (is_ready_) return;
    process_.start(interpreter, kPythonTurnsDriver);
    ++process_number_;
    const std::int64_t own = monotonic_ns() + std::int64_t(start_limit * 1e9);
    patience.deadline_ns = patience.deadline_ns == 0 ? own : std::min(own, patience.deadline_ns);
    std::string body;
    Transfer got = process_.send(write_json(settings_), patience);
    if (got == Transfer::kDone) got = process_.receive(body, patience);
    const Json answer = got == Transfer::kDone ? read_json(body) : Json();
    if (answer.is_object() && answer.contains("ready")) {
      description_ = {{"tools", answer["tools"]}, {"rewards", answer["rewards"]}};
      is_ready_ = true;
      return;
    }
    const std::string exit = process_.end();
    if (got == Transfer::kStopped) fail(MORTISE_CANCELLED, "cancelled");
    if (got == Transfer::kForeign) fail(MORTISE_FAILED_PRECONDITION, process_.stray());
    if (got == Transfer::kTooLate)
      fail(MORTISE_DEADLINE_EXCEEDED,
           std::string("importing the Python files, with the start of MCP servers, took longer than ") +
               (patience.deadline_ns == own ? "start_limit"
                                            : "rollout.multi_turn.timeout, in which a new Python process starts too"));
    if (answer.is_object() && answer.contains("error"))
      fail(MORTISE_FAILED_PRECONDITION, answer["error"].get<std::string>());
    fail(MORTISE_FAILED_PRECONDITION, "'" + interpreter + "' ended with " + exit +
                                          " before its files were imported; its output is on the standard error of "
                                          "the run. It must be Python 3.8 or newer");
  }

  std::string give_up() {
    is_ready_ = false;
    return process_.end();
  }

  // The answer as it came.
  std::string ask(const std::string& request, const Patience& patience) {
    std::string body;
    Transfer got = process_.send(request, patience);
    if (got == Transfer::kDone) got = process_.receive(body, patience);
    if (got == Transfer::kDone) return body;
    const std::string exit = give_up();
    if (got == Transfer::kStopped) fail(MORTISE_CANCELLED, "cancelled");
    if (got == Transfer::kForeign) fail(MORTISE_ABORTED, process_.stray());
    if (got == Transfer::kTooLate)
      fail(MORTISE_DEADLINE_EXCEEDED,
           "its Python code took longer than rollout.multi_turn.timeout; the process was ended");
    fail(MORTISE_ABORTED, "the Python process ended with " + exit + " while the episode ran");
  }

  static Observation observation_of(const std::string& body) {
    const Json answer = read_json(body);
    if (!answer.is_object()) fail(MORTISE_INTERNAL, "the Python process sent an answer that cannot be read");
    if (answer.contains("error")) fail(MORTISE_INTERNAL, answer["error"].get<std::string>());
    Observation out;
    out.done = answer.value("done", false);
    out.num_calls = answer.value("calls", std::int64_t(0));
    out.num_failed_calls = answer.value("failed", std::int64_t(0));
    if (const auto reward = answer.find("reward"); reward != answer.end() && reward->is_number())
      out.reward = reward->get<double>();
    if (const auto messages = answer.find("messages"); messages != answer.end()) out.messages = write_json(*messages);
    return out;
  }

  Json settings_, description_;
  PythonProcess process_;
  bool is_ready_ = false;
  bool has_episodes_ = false;  // an object, or what verl's tools keep of a row
  std::int64_t process_number_ = 0;
  std::map<std::int64_t, Life> lives_;  // by episode
};

}  // namespace
}  // namespace mortise

MORTISE_ENVIRONMENT("python", mortise::PythonEnvironment)
