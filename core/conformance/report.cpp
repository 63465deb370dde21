// Writes the report of a check as text, JSON and JUnit XML.
#include "conformance/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/clock.h"
#include "foundation/base/shown_text.h"
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
    if (count > 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, spoken(status));
  }
  return out;
}

std::string indented(const std::string& text, const std::string& margin) {
  std::string out;
  for (const std::string_view line : split(trim(text), '\n')) out += fmt::format("{}{}\n", margin, line);
  return out;
}

std::string case_text(const Outcome& outcome) {
  std::string head = spoken(outcome.status);
  if (outcome.is_fault()) std::transform(head.begin(), head.end(), head.begin(), ::toupper);
  std::string out = fmt::format("    {}  {} ({})", head, outcome.one->id, outcome.one->rule);
  if (!outcome.text.empty()) out += ": " + outcome.text;
  out += "\n";
  if (!outcome.is_fault()) return out;
  out += fmt::format("        wanted: {}\n", outcome.one->title);
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
  for (const KindInfo& kind : kKinds) {
    if ((one.kinds & kind_bit(kind.id)) != 0) out.emplace_back(kind.name);
  }
  return out;
}

}  // namespace

std::string report_text(const CheckReport& report, bool verbose) {
  std::string out = report.id.empty() ? report.path + "\n"
                                      : fmt::format("{} {}  {} ({})\n", report.id, report.version, report.path,
                                                    report.sha256.substr(0, 12));
  for (const Outcome* first : first_of_each(report)) {
    out += fmt::format("  {}: {}\n",
                       (first->plugin.empty() ? std::string("the pack")
                                              : fmt::format("{} {}", short_kind(first->kind), first->plugin)),
                       counts_text(report, *first));
    for (const Outcome& outcome : report.outcomes) {
      const bool foreign = !outcome.plugin.empty() && (outcome.one->kinds & kind_bit(outcome.kind)) == 0;
      const bool told = outcome.is_fault() || (outcome.status == "passed" && !outcome.text.empty());
      if (same_plugin(outcome, *first) && ((verbose && !foreign) || told)) out += case_text(outcome);
    }
  }
  const size_t faults = report.num_faults();
  out += fmt::format("{}, {} in {}\n", faults == 0 ? "no faults" : counted(static_cast<int64_t>(faults), "fault"),
                     counted(static_cast<int64_t>(report.outcomes.size()), "case"), format_duration(report.seconds));
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
    const std::string suite =
        first->plugin.empty() ? pack : fmt::format("{}.{}.{}", pack, short_kind(first->kind), first->plugin);
    std::string cases;
    size_t tests = 0, failures = 0, errors = 0, skipped = 0;
    for (const Outcome& outcome : report.outcomes) {
      if (!same_plugin(outcome, *first)) continue;
      ++tests;
      cases += fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{}\">", escaped(suite), outcome.one->id,
                           format_f64(outcome.seconds));
      const std::string text = escaped(fmt::format("{}: {}", outcome.one->rule, outcome.text));
      if (outcome.status == "failed") {
        ++failures;
        cases += fmt::format("<failure message=\"{}\">{}</failure>", text, escaped(outcome.output));
      } else if (outcome.is_fault()) {
        ++errors;
        cases += fmt::format("<error message=\"{}\">{}</error>", text, escaped(outcome.output));
      } else if (outcome.status != "passed") {
        ++skipped;
        cases += fmt::format("<skipped message=\"{}\"/>", text);
      } else if (!outcome.text.empty()) {
        cases += fmt::format("<system-out>{}</system-out>", text);
      }
      cases += "</testcase>\n";
    }
    out += fmt::format(
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n{}  "
        "</testsuite>\n",
        escaped(suite), tests, failures, errors, skipped, cases);
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
    out += fmt::format("{} {} {}{}\n", id, rule, one->title,
                       (kinds.size() == kNumKinds ? "" : fmt::format("  [{}]", join(kinds, ", "))));
  }
  return out;
}

}  // namespace mortise::check
