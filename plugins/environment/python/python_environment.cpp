// python: tools that are functions in the user's Python files, or a class of theirs with an object for each episode.
//
//   tools  ["tools.py:calculator", ...]  functions with type hints and docstrings; a turn that calls none ends the row
//   mcp    "python server.py"            the tools of an MCP server, which runs next to the Python process
//   class  "game.py:Game"                reset(**row), public methods as tools, get_reward(); or a text game with
//                                        step(text) -> observation, reward, done
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

using Json = nlohmann::json;

Json read_json(std::string_view text) {
  auto value = parse::parse_json(text);
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
    if (functions.empty() && servers.empty() && class_name.empty())
      fail(
          MORTISE_INVALID_ARGUMENT,
          "there is neither a tool nor a class: set rollout.multi_turn.tools = [\"tools.py:calculator\"], or "
          "rollout.multi_turn.params.class = \"game.py:Game\", or rollout.multi_turn.params.mcp = \"python server.py\"");
    settings_ = {{"tools", functions}, {"mcp", servers}, {"class", class_name}, {"kwargs", given}};
    get_ready(Patience{0, call});
  }

  void reads(Reads& out) const {
    const Json functions = read_json(tools);
    if (is_list_of_texts(functions)) {
      for (std::size_t i = 0; i < functions.size(); ++i)
        tell_file(out, "tools", "tool" + std::to_string(i), functions[i].get<std::string>());
    }
    if (!class_name.empty()) tell_file(out, "class", "class", class_name);
  }

  std::string description() override { return write_json(description_); }

  Observation reset(const EpisodeStart& start, Call call) override {
    if (class_name.empty()) return {};
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
    if (class_name.empty()) return observation_of(ask(request, patience));
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
    if (got == Transfer::kTooLate)
      fail(
          MORTISE_DEADLINE_EXCEEDED,
          "importing the Python files, with the start of MCP servers, took longer than start_limit or the call's time");
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
  std::int64_t process_number_ = 0;
  std::map<std::int64_t, Life> lives_;  // by episode
};

}  // namespace
}  // namespace mortise

MORTISE_ENVIRONMENT("python", mortise::PythonEnvironment)
