// python: a reward function in the user's own Python, with the user's interpreter, in its own process.
//
// Two styles, which differ by the names of the function's parameters:
//   TRL   reward(prompts, completions, **columns) -> list[float | None], all rows of the step in one call
//   verl  compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict, row by row
// An exception fails its rows with the last line of the traceback. A crash or a hang ends the process and costs the
// current row (TRL: the batch); another process continues. docs/plugins/python_rewards.md has the whole contract.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/deadline.h"
#include "../../shared/python_imports.h"
#include "../../shared/python_process.h"
#include "../shared/row_json.h"
#include "parse/json.h"
#include "python_answer.h"
#include "python_driver.h"
#include "python_request.h"
#include "python_signature.h"

namespace mortise {
namespace {

using Json = nlohmann::json;

// Null if the text is not JSON, or nested too deeply.
Json parsed(std::string_view text) {
  auto value = parse::parse_json(text);
  return value ? *std::move(value) : Json();
}

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", s);
  return text;
}

std::string absolute(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? std::string() : resolved;
}

bool is_folder(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_directory(path, failed);
}

std::string working_folder() {
  char folder[PATH_MAX];
  return getcwd(folder, sizeof folder) == nullptr ? "." : folder;
}

struct Python : BatchReward {
  static constexpr const char* summary = "a Python function from your file: TRL or verl style, unchanged";
  static constexpr const char* doc =
      "TRL: reward(prompts, completions, completion_ids, **columns) -> list[float | None]. verl: "
      "compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict with 'score'";
  static constexpr std::uint32_t flags =
      MORTISE_FLAG_NEEDS_PROGRAMS | MORTISE_FLAG_NEEDS_FILES | MORTISE_FLAG_TELLS_READS;
  static const void* plugin_extension(const char* id) noexcept { return reads_extension<Python>(id); }

  std::string path = param<std::string>("path", required, "Python file with the function").file();
  std::string function = param(
      "function", "",
      "function, method (Class.method) or callable object of the file; empty: compute_score, reward, or the only public "
      "function");
  std::string style =
      param("style", "auto", "calling style; auto: by the names of its parameters").choices({"auto", "trl", "verl"});
  std::string interpreter = param(
      "python", "python3",
      "interpreter, by path or by name in PATH; Python 3.8 or newer, for example that of your virtual environment");
  std::string kwargs = param("kwargs", "{}", "JSON object of further keyword arguments of the function");
  std::string truth = param("ground_truth", "",
                            "verl style: column of ground_truth, or a dotted path into a JSON column; empty: "
                            "reward_model.ground_truth, else ground_truth, else answer");
  double row_limit =
      param("row_limit", none, "verl style: time limit of one row in seconds; none: a fifth of `timeout`")
          .range(0.001, 1e6);
  double start_limit = param("start_limit", 45.0, "time limit in seconds to import the file").range(0.001, 1e6);
  std::int64_t max_steps =
      param("max_steps", 0, "TRL style: trainer_state.max_steps; a run passes its own number of steps; 0: not known")
          .at_least(0);

  void setup(Call call) override {
    file_ = absolute(path);
    if (file_.empty()) {
      fail(MORTISE_NOT_FOUND, "path: there is no file '" + path + "' (relative paths start at " + working_folder() +
                                  ", the folder that the run was started in)");
    }
    if (is_folder(file_)) fail(MORTISE_NOT_FOUND, "path: '" + path + "' is a folder; name a Python file in it");
    const Json given = parsed(kwargs);
    if (!given.is_object()) {
      fail(MORTISE_INVALID_ARGUMENT,
           "kwargs: '" + kwargs + "' is not a JSON object; write it as kwargs = '{\"tolerance\": 0.1}'");
    }
    settings_ = {{"path", file_}, {"function", function}, {"style", style}, {"kwargs", given}};
    start();
    wait_until_ready(call, 0);
    call.log(MORTISE_LOG_DEBUG,
             file_ + ": " + name_ + "(), " + (is_verl_ ? "verl" : "TRL") + " style, Python " + version_);
  }

  void reads(Reads& out) const {
    if (absolute(path).empty() || is_folder(path)) return;  // setup() says so
    const PythonImports imports = find_python_imports(path);
    out.files("path", "imports", "modules that " + path + " imports from its folder", imports.folder.string(),
              imports.files);
    tell_columns(out);
  }

  void score(const std::vector<Row>& rows, Span<double> rewards, Call call) override {
    Work work{rows, rewards, call, {}, {}, 0, 0};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string fault = unreadable(rows[i]);
      if (fault.empty()) {
        work.left.push_back(i);
      } else {
        call.fail_row(std::int64_t(i), MORTISE_INVALID_ARGUMENT, fault);
      }
    }
    set_limits(work);
    while (!work.left.empty()) {
      const std::string fault = get_ready(work);
      work.asked = work.left;
      if (!fault.empty()) {
        fail_left(work, MORTISE_FAILED_PRECONDITION, fault);
      } else if (is_verl_) {
        score_rows(work);
      } else {
        score_batch(work);
      }
    }
  }

 private:
  // A function in TRL's style takes data columns by the names of its parameters.
  void tell_columns(Reads& out) const {
    constexpr std::string_view kGiven[] = {"prompts",       "completions", "completion_ids",
                                           "trainer_state", "log_extra",   "log_metric"};
    constexpr std::string_view kVerl[] = {"data_source", "solution_str", "ground_truth", "extra_info"};
    const auto signature = find_python_signature(read_python_file(path), function);
    if (!signature || style == "verl") return;
    const auto has = [](const auto& names, std::string_view name) {
      return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    const auto num_verl = std::count_if(std::begin(kVerl), std::end(kVerl),
                                        [&](std::string_view name) { return has(signature->names, name); });
    if (style != "trl" && (num_verl >= 2 || has(signature->names, "solution_str"))) return;
    const Json given = parsed(kwargs);
    for (const std::string& name : signature->required) {
      if (has(kGiven, name) || (given.is_object() && given.contains(name))) continue;
      out.column("path", name, "'" + signature->name + "' in " + path, "kwargs = '{...}' gives further arguments");
    }
  }

  struct Work {
    const std::vector<Row>& rows;
    Span<double> rewards;
    Call call;
    std::vector<std::size_t> left;   // not scored yet, in order
    std::vector<std::size_t> asked;  // rows of the last request
    std::int64_t deadline_ns;        // when the call must be done; 0: no limit
    std::int64_t row_ns;             // for one row; 0: no limit
  };

  // Starts the process, and reads the signature of the function.

  void start() {
    is_ready_ = false;
    process_.start(interpreter, kPythonDriver);
  }

  // Throws Failure if the file or the function cannot be used.
  void wait_until_ready(Call call, std::int64_t deadline_ns) {
    const std::int64_t own = monotonic_ns() + std::int64_t(start_limit * 1e9);
    const Patience patience{deadline_ns == 0 ? own : std::min(own, deadline_ns), call};
    std::string body;
    Transfer got = process_.send(settings_.dump(), patience);
    if (got == Transfer::kDone) got = process_.receive(body, patience);
    const Json answer = got == Transfer::kDone ? parsed(body) : Json();
    if (got == Transfer::kDone && answer.is_object() && answer.contains("ready")) return take_ready(answer);
    const std::string exit = process_.end();
    if (got == Transfer::kStopped) fail(MORTISE_CANCELLED, "cancelled");
    if (got == Transfer::kForeign) fail(MORTISE_FAILED_PRECONDITION, process_.stray());
    if (got == Transfer::kTooLate) {
      fail(MORTISE_DEADLINE_EXCEEDED, "importing " + file_ + " took longer than " +
                                          (patience.deadline_ns == own ? "start_limit = " + seconds(start_limit)
                                                                       : std::string("the time for the batch")));
    }
    if (got == Transfer::kEnded) {
      fail(MORTISE_FAILED_PRECONDITION,
           "'" + interpreter + "' ended with " + exit + " before " + file_ +
               " was imported; its output is on the standard error of the run. It must be Python 3.8 or newer");
    }
    const bool told = answer.is_object() && answer.contains("error");
    fail(MORTISE_FAILED_PRECONDITION,
         told ? answer["error"].get<std::string>() : "the Python process sent an answer that cannot be read");
  }

  void take_ready(const Json& ready) {
    name_ = ready.value("function", "");
    version_ = ready.value("version", "");
    is_verl_ = ready.value("style", "") == "verl";
    at_once_ = ready.value("at_once", false);
    wanted_ = ready["wants"].is_array() ? Wanted(ready["wants"].get<std::vector<std::string>>()) : Wanted();
    is_ready_ = true;
  }

  // A process that waits for rows; else why there is none.
  std::string get_ready(const Work& work) {
    if (is_ready_) return "";
    try {
      if (!process_.running()) start();
      wait_until_ready(work.call, work.deadline_ns);
      return "";
    } catch (const Failure& e) {
      if (e.code == MORTISE_CANCELLED) throw;
      return e.what();
    }
  }

  // Another process, started now so that it has imported the file when it is next needed.
  void replace() {
    try {
      start();
    } catch (const Failure&) {  // the next call tries again, and reports
    }
  }

  // Scoring.

  void set_limits(Work& work) const {
    work.deadline_ns = waiting_deadline_ns(work.call);
    if (work.deadline_ns != 0) work.row_ns = std::max<std::int64_t>((work.deadline_ns - monotonic_ns()) / 5, 1);
    if (is_set(row_limit)) work.row_ns = std::int64_t(row_limit * 1e9);
    if (at_once_) work.row_ns = 0;
  }

  void score_batch(Work& work) {
    const Patience patience{work.deadline_ns, work.call};
    std::string body;
    Transfer got = process_.send(trl_request(work.rows, work.left, wanted_, max_steps), patience);
    if (got == Transfer::kDone) got = process_.receive(body, patience);
    if (got != Transfer::kDone) return give_up(work, got, /*row_late=*/false);
    const Json answer = parsed(body);
    if (!is_batch_answer(answer, work.left.size())) return give_up(work, process_.refuse(kUnreadable), false);
    take_log(work, answer);
    if (answer.contains("error")) return fail_left(work, MORTISE_INTERNAL, answer["error"].get<std::string>());
    const Json& rewards = answer["rewards"];
    for (std::size_t k = 0; k < work.left.size(); ++k)
      if (!rewards[k].is_null()) work.rewards[std::int64_t(work.left[k])] = rewards[k].get<double>();
    for (const auto& [k, text] : answer["errors"].items())
      work.call.fail_row(std::int64_t(work.left[std::stoul(k)]), MORTISE_INVALID_ARGUMENT, text.get<std::string>());
    for (const auto& [name, values] : answer["values"].items()) {
      for (std::size_t k = 0; k < work.left.size(); ++k) note(work.rows[work.left[k]], name, values[k]);
    }
    for (const auto& [name, metric] : answer["metrics"].items())
      work.call.metric(name, metric[0].get<double>(), metric[1].get<double>());
    work.left.clear();
  }

  // Rows answer one by one. A row that ends the process fails; the loop in score() continues with the rows after it.
  void score_rows(Work& work) {
    warn_about_truth(work);
    const Transfer sent =
        process_.send(verl_request(work.rows, work.left, wanted_, truth), Patience{work.deadline_ns, work.call});
    if (sent != Transfer::kDone) return give_up(work, sent, false);
    while (true) {
      Patience patience{work.deadline_ns, work.call};
      const std::int64_t row_end = work.row_ns == 0 ? 0 : monotonic_ns() + work.row_ns;
      const bool row_first = row_end != 0 && (patience.deadline_ns == 0 || row_end < patience.deadline_ns);
      if (row_first) patience.deadline_ns = row_end;
      std::string body;
      const Transfer got = process_.receive(body, patience);
      if (got != Transfer::kDone) return give_up(work, got, row_first);
      const Json answer = parsed(body);
      if (!is_row_answer(answer, work.asked.size())) return give_up(work, process_.refuse(kUnreadable), false);
      if (answer.contains("done")) {
        take_log(work, answer);
        const std::string why = answer.value("error", "'" + name_ + "' gave no answer for the row");
        return fail_left(work, MORTISE_INTERNAL, why);
      }
      const std::size_t i = work.asked[answer["row"].get<std::size_t>()];
      const auto open = std::find(work.left.begin(), work.left.end(), i);
      if (open == work.left.end()) return give_up(work, process_.refuse("a second answer for a row"), false);
      take_row(work, i, answer);
      work.left.erase(open);
    }
  }

  static void take_row(const Work& work, std::size_t i, const Json& answer) {
    if (answer.contains("error")) {
      work.call.fail_row(std::int64_t(i), MORTISE_INTERNAL, answer["error"].get<std::string>());
      return;
    }
    if (!answer["reward"].is_null()) work.rewards[std::int64_t(i)] = answer["reward"].get<double>();
    for (const auto& [name, value] : answer["values"].items()) note(work.rows[i], name, value);
  }

  static void note(const Row& row, const std::string& name, const Json& value) {
    if (value.is_string())
      row.note(name, value.get_ref<const std::string&>());
    else if (value.is_number())
      row.note(name, value.get<double>());
  }

  static constexpr const char* kUnreadable = "an answer that cannot be read";

  // The process has ended, or ends here. Says what was at fault.
  void give_up(Work& work, Transfer got, bool row_late) {
    const std::string exit = process_.end();
    is_ready_ = false;
    if (got == Transfer::kStopped) fail(MORTISE_CANCELLED, "cancelled");
    replace();
    if (got == Transfer::kForeign) {  // rows that were scored before may be another request's too
      for (const std::size_t i : work.asked) work.rewards[std::int64_t(i)] = not_applicable;
      work.left = work.asked;
      return fail_left(work, MORTISE_ABORTED, process_.stray());
    }
    if (work.left.empty()) return;
    const bool late = got == Transfer::kTooLate;
    const std::int32_t code = late ? MORTISE_DEADLINE_EXCEEDED : MORTISE_ABORTED;
    if (is_verl_ && !at_once_) {
      const std::string what = !late      ? "the Python process ended with " + exit + " while it scored the row"
                               : row_late ? "the row took longer than " + seconds(double(work.row_ns) * 1e-9) +
                                                " (row_limit, else a fifth of timeout); its process was killed"
                                          : "the time for the batch was over while the row was scored";
      work.call.fail_row(std::int64_t(work.left.front()), code, what);
      work.left.erase(work.left.begin());
      if (late && !row_late) fail_left(work, code, "not scored: the time for the batch was over");
      return;
    }
    fail_left(work, code,
              late ? "'" + name_ + "' took longer than the time for the batch (timeout); its process was killed"
                   : "the Python process ended with " + exit + " while it scored the batch");
  }

  static void fail_left(Work& work, std::int32_t code, const std::string& text) {
    for (const std::size_t i : work.left) work.call.fail_row(std::int64_t(i), code, text);
    work.left.clear();
  }

  static void take_log(const Work& work, const Json& answer) {
    const auto log = answer.find("log");
    if (log == answer.end()) return;
    for (const Json& line : *log) work.call.log(MORTISE_LOG_WARN, line.get<std::string>());
  }

  // A wrong name would make every answer wrong without a sound.
  void warn_about_truth(const Work& work) {
    if (warned_about_truth_ || !wanted_.has("ground_truth")) return;
    for (const std::size_t i : work.left)
      if (ground_truth(work.rows[i], truth) != "null") return;
    warned_about_truth_ = true;
    work.call.log(MORTISE_LOG_WARN, "no row of this batch has a ground truth (looked for " +
                                        (truth.empty() ? "reward_model.ground_truth, ground_truth, answer" : truth) +
                                        "): '" + name_ + "' gets None; name the column with ground_truth = \"NAME\"");
  }

  std::string file_;
  Json settings_;
  PythonProcess process_;
  bool is_ready_ = false;
  std::string name_, version_;
  bool is_verl_ = false;
  bool at_once_ = false;  // the function is a coroutine: rows have no order
  Wanted wanted_;
  bool warned_about_truth_ = false;
};

}  // namespace
}  // namespace mortise

MORTISE_REWARD("python", mortise::Python)
