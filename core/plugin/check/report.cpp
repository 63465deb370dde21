#include "plugin/check/report.h"

#include <algorithm>

#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "plugin/host/registry.h"

namespace mortise::check {
namespace {

constexpr std::string_view kStatuses[] = {"passed", "failed",         "crashed", "timed_out",
                                          "exited", "not_applicable", "skipped"};

std::string spoken(std::string_view status) {
  std::string out(status);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

// The plugins of a report in order, "" (the pack) first.
std::vector<const Outcome*> first_of_each(const CheckReport& report) {
  std::vector<const Outcome*> out;
  for (const Outcome& outcome : report.outcomes) {
    const bool seen = std::any_of(out.begin(), out.end(), [&](const Outcome* one) {
      return one->plugin == outcome.plugin && one->kind == outcome.kind;
    });
    if (!seen) out.push_back(&outcome);
  }
  return out;
}

bool same_plugin(const Outcome& a, const Outcome& b) { return a.plugin == b.plugin && a.kind == b.kind; }

std::string counts_text(const CheckReport& report, const Outcome& of) {
  std::string out;
  for (const std::string_view status : kStatuses) {
    const auto count = std::count_if(report.outcomes.begin(), report.outcomes.end(), [&](const Outcome& outcome) {
      return outcome.status == status && same_plugin(outcome, of);
    });
    if (count > 0) out += (out.empty() ? "" : ", ") + std::to_string(count) + " " + spoken(status);
  }
  return out;
}

std::string indented(const std::string& text, const std::string& margin) {
  std::string out;
  for (const std::string_view line : split(trim(text), '\n')) out += margin + std::string(line) + "\n";
  return out;
}

std::string case_text(const Outcome& outcome) {
  std::string head = spoken(outcome.status);
  if (outcome.is_fault()) std::transform(head.begin(), head.end(), head.begin(), ::toupper);
  std::string out = "    " + head + "  " + outcome.one->id + " (" + outcome.one->rule + ")";
  if (!outcome.text.empty()) out += ": " + outcome.text;
  out += "\n";
  if (!outcome.is_fault()) return out;
  out += "        wanted: " + std::string(outcome.one->title) + "\n";
  if (!trim(outcome.output).empty()) out += "        it printed:\n" + indented(outcome.output, "          ");
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      out += '?';  // not allowed in XML
    else
      out += c;
  }
  if (find_invalid_utf8(out)) return escaped(quote(text, 4096));
  return out;
}

std::vector<std::string> kinds_of(const Case& one) {
  if (one.kinds == kPack) return {"pack"};
  std::vector<std::string> out;
  const std::pair<uint32_t, const char*> names[] = {{kPolicyLoss, "policy_loss"},
                                                    {kKlEstimator, "kl_estimator"},
                                                    {kAdvantage, "advantage_estimator"},
                                                    {kReward, "reward"},
                                                    {kRollout, "rollout_backend"}};
  for (const auto& [bit, name] : names) {
    if ((one.kinds & bit) != 0) out.emplace_back(name);
  }
  return out;
}

}  // namespace

std::string report_text(const CheckReport& report, bool verbose) {
  std::string out = report.id.empty() ? report.path + "\n"
                                      : report.id + " " + report.version + "  " + report.path + " (" +
                                            report.sha256.substr(0, 12) + ")\n";
  for (const Outcome* first : first_of_each(report)) {
    out += "  " + (first->plugin.empty() ? std::string("the pack") : short_kind(first->kind) + " " + first->plugin) +
           ": " + counts_text(report, *first) + "\n";
    for (const Outcome& outcome : report.outcomes) {
      const bool foreign = !outcome.plugin.empty() && (outcome.one->kinds & kind_bit(outcome.kind)) == 0;
      const bool told = outcome.is_fault() || (outcome.status == "passed" && !outcome.text.empty());
      if (same_plugin(outcome, *first) && ((verbose && !foreign) || told)) out += case_text(outcome);
    }
  }
  const size_t faults = report.num_faults();
  out += faults == 0 ? "no faults" : std::to_string(faults) + (faults == 1 ? " fault" : " faults");
  out += ", " + std::to_string(report.outcomes.size()) + " cases in " + format_duration(report.seconds) + "\n";
  if (faults > 0) out += "The rules are in RULES.md of the SDK.\n";
  return out;
}

Json report_json(const CheckReport& report) {
  Json out = {{"pack", report.id},        {"version", report.version},      {"path", report.path},
              {"sha256", report.sha256},  {"ok", report.num_faults() == 0}, {"seconds", report.seconds},
              {"counts", Json::object()}, {"cases", Json::array()}};
  for (const std::string_view status : kStatuses) {
    out["counts"][std::string(status)] =
        std::count_if(report.outcomes.begin(), report.outcomes.end(),
                      [&](const Outcome& outcome) { return outcome.status == status; });
  }
  for (const Outcome& outcome : report.outcomes) {
    Json one = {{"case", outcome.one->id},
                {"rule", outcome.one->rule},
                {"title", outcome.one->title},
                {"plugin", outcome.plugin.empty() ? Json() : Json(outcome.plugin)},
                {"kind", outcome.kind.empty() ? Json() : Json(short_kind(outcome.kind))},
                {"status", outcome.status},
                {"text", outcome.text},
                {"seconds", outcome.seconds}};
    if (!outcome.output.empty()) one["output"] = outcome.output;
    out["cases"].push_back(std::move(one));
  }
  return out;
}

std::string report_junit(const CheckReport& report) {
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  const std::string pack = report.id.empty() ? report.path : report.id;
  for (const Outcome* first : first_of_each(report)) {
    const std::string suite = first->plugin.empty() ? pack : pack + "." + short_kind(first->kind) + "." + first->plugin;
    std::string cases;
    size_t tests = 0, failures = 0, errors = 0, skipped = 0;
    for (const Outcome& outcome : report.outcomes) {
      if (!same_plugin(outcome, *first)) continue;
      ++tests;
      cases += "    <testcase classname=\"" + escaped(suite) + "\" name=\"" + outcome.one->id + "\" time=\"" +
               format_f64(outcome.seconds) + "\">";
      const std::string text = escaped(std::string(outcome.one->rule) + ": " + outcome.text);
      if (outcome.status == "failed") {
        ++failures;
        cases += "<failure message=\"" + text + "\">" + escaped(outcome.output) + "</failure>";
      } else if (outcome.is_fault()) {
        ++errors;
        cases += "<error message=\"" + text + "\">" + escaped(outcome.output) + "</error>";
      } else if (outcome.status != "passed") {
        ++skipped;
        cases += "<skipped message=\"" + text + "\"/>";
      } else if (!outcome.text.empty()) {
        cases += "<system-out>" + text + "</system-out>";
      }
      cases += "</testcase>\n";
    }
    out += "  <testsuite name=\"" + escaped(suite) + "\" tests=\"" + std::to_string(tests) + "\" failures=\"" +
           std::to_string(failures) + "\" errors=\"" + std::to_string(errors) + "\" skipped=\"" +
           std::to_string(skipped) + "\">\n" + cases + "  </testsuite>\n";
  }
  return out + "</testsuites>\n";
}

Json list_json() {
  Json out = Json::array();
  for (const Case* one : all_cases())
    out.push_back({{"case", one->id}, {"rule", one->rule}, {"kinds", kinds_of(*one)}, {"title", one->title}});
  return out;
}

std::string list_text() {
  std::string out;
  for (const Case* one : all_cases()) {
    std::string id = one->id;
    id.resize(std::max<size_t>(id.size(), 34), ' ');
    std::string rule = one->rule;
    rule.resize(std::max<size_t>(rule.size(), 4), ' ');
    const auto kinds = kinds_of(*one);
    out += id + " " + rule + " " + one->title + (kinds.size() == 5 ? "" : "  [" + join(kinds, ", ") + "]") + "\n";
  }
  return out;
}

}  // namespace mortise::check
