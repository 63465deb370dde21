// `plugin check` finds every fault that it looks for in plugins that have it, and none in plugins that keep the rules.
//
// This program also serves the cases of its own tests: with --serve-cases it does what `mortise` would do.
#include "conformance/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "conformance/report.h"
#include "conformance/server.h"
#include "conformance/server_pool.h"
#include "foundation/base/env.h"
#include "foundation/base/text.h"
#include "plugin/pack/pack_file.h"
#include "support/temp_dir.h"

namespace mortise::check {
namespace {

using ::testing::HasSubstr;

Path packs(const std::string& name) { return Path(MORTISE_BINARY_DIR) / "tests" / "packs" / name; }

CheckReport check(const Path& pack, std::vector<std::string> only = {}, CheckOptions options = {}) {
  options.pack = pack.string();
  options.only = std::move(only);
  options.server = {"/proc/self/exe", "--serve-cases"};
  auto report = check_pack(options);
  if (!report.ok()) ADD_FAILURE() << report.error().to_string();
  return report.ok() ? *std::move(report) : CheckReport();
}

std::string all_faults(const CheckReport& report) {
  std::string out;
  for (const Outcome& outcome : report.outcomes) {
    if (outcome.is_fault() || outcome.status == "skipped")
      out += outcome.plugin + ":" + outcome.one->id + " " + outcome.status + ": " + outcome.text + "\n";
  }
  return out;
}

// What the fault's report must say.
struct Expected {
  const char* case_id;
  const char* text;
};
constexpr Expected kPluginFaults[] = {
    {"load.slots", "mandatory slot 'compute'"},
    {"negotiation.older_host", "read behind the end of 'the host's table'"},
    {"negotiation.newer_host", "not the host that I was built for"},
    {"negotiation.older_structs", "read behind the end of 'the inputs' struct'"},
    {"negotiation.newer_structs", "wrong struct_size"},
    {"negotiation.optional_services", "SIGSEGV"},
    {"negotiation.no_extensions", "SIGSEGV"},
    {"negotiation.no_scratch", "SIGSEGV"},
    {"negotiation.unknown_extension", "gives a table"},
    {"negotiation.declared_params", "param_f64 'temperature': NOT_FOUND"},
    {"negotiation.no_params", "SIGSEGV"},
    {"negotiation.text_params", "read behind the end of 'text of a parameter'"},
    {"negotiation.optional_outputs", "SIGSEGV"},
    {"negotiation.required_inputs", "SIGSEGV"},
    {"negotiation.all_inputs", "I did not ask for entropy"},
    {"contract.create_destroy", "there can be only one"},
    {"contract.independent", "the results differ if another instance exists"},
    {"contract.repeatable", "the same inputs give other results"},
    {"contract.outputs_written", "does not write loss at token 22 of row 7"},
    {"contract.inputs_untouched", "wrote to 'response_mask'"},
    {"contract.stays_inside", "behind the end of 'loss'"},
    {"contract.empty_batch", "the batch is empty"},
    {"contract.one_token", "nan"},
    {"contract.empty_rows", "next to rows without tokens"},
    {"contract.mask_holes", "with masked tokens left out"},
    {"contract.byte_offset", "with a byte_offset of 64"},
    {"contract.large_ids", "SIGSEGV"},
    {"contract.failures_explained", "returned 99, which is not a status code"},
    {"contract.metrics", "unknown reduction 9"},
    {"contract.stops", "returns INTERNAL; return MORTISE_CANCELLED"},
    {"contract.any_thread", "on another thread"},
    {"contract.concurrent", "at the same time the results differ"},
    {"contract.state_round_trip", "saving the loaded state gives other bytes"},
    {"contract.state_damaged", "that are not a saved state"},
    {"numerics.finite", "loss is nan at token 17 of row 0"},
    {"numerics.extreme_ratios", "inf"},
    {"numerics.gradient", "differences of the loss give"},
    {"numerics.entropy_gradient", "grad_entropy is"},
    {"numerics.weight_linear", "with four times the weights"},
    {"numerics.zero_weight", "the weight is 0 and the gradient"},
    {"numerics.masked_inert", "at masked tokens"},
    {"numerics.permutation", "with the rows in another order"},
    {"numerics.split", "cut into pieces"},
    {"numerics.metrics_split", "'test/log_prob' is"},
    {"numerics.thread_order", "pieces of parallel_for in another order"},
    {"advantage.equal_rewards", "where all rewards of a group are equal"},
    {"advantage.single_row_groups", "where a group has one row"},
    {"advantage.invalid_rows", "in rows that have no reward"},
    {"reward.permutation", "with the rows in another order"},
    {"reward.split", "when it comes alone"},
    {"reward.invalid_utf8", "no UTF-8"},
    {"reward.zero_bytes", "zero byte"},
    {"reward.empty_text", "nothing to score"},
    {"reward.long_text", "no answer within"},
    {"reward.odd_numbers", "infinite reward"},
    {"reward.missing_columns", "without it; give NaN"},
    {"reward.null_values", "marked as absent"},
    {"reward.column_types", "SIGSEGV"},
    {"reward.deadline", "ask host->cancelled between rows"},
    {"reward.row_numbers", "called fail_row for row 5 of a batch of 3"},
    {"reward.token_rewards", "token reward nan"},
    {"reward.tokens_of_no_row", "gave token rewards, and no reward of the row"},
    {"rollout.delivers", "sample 0 of request 501 was not handed over"},
    {"rollout.lengths", "gave 6 tokens"},
    {"rollout.weight_version", "a sequence says version 0"},
    {"rollout.back_pressure", "twice"},
    {"rollout.abort", "never comes"},
    {"rollout.repeatable", "give other ids"},
    {"rollout.sleep_wake", "never comes"},
    {"rollout.requests_copied", "SIGSEGV"},
    {"rollout.nothing_asked", "ask for something"},
    {"rollout.weights", "half of the weights are missing"},
    {"environment.episodes", "has no observation; give one, or call fail_row"},
    {"environment.messages", "messages that are not a JSON list: 'well done'"},
    {"environment.reset_reward", "give NaN, because nothing was done yet"},
    {"environment.failed_reward", "failed and has an observation with the reward 0"},
    {"environment.description", "does not say \"rewards\": true"},
    {"environment.replay", "played again in a new instance"},
    {"environment.apart", "next to other episodes and alone"},
    {"environment.any_instance", "another instance answers otherwise"},
    {"environment.unknown_episode", "the reward 0 to episode 4711, which was never reset"},
    {"environment.episode_ids", "SIGSEGV"},
    {"environment.closed", "after close, with the same number"},
    {"environment.no_episodes", "there is nothing to reset"},
    {"environment.hostile_text", "this turn is too much for me"},
    {"environment.hostile_calls", "this turn is too much for me"},
    {"environment.hostile_starts", "the row has no answer"},
    {"environment.stops", "step returns INTERNAL; return MORTISE_CANCELLED"},
    {"hygiene.signals", "User defined signal 1"},
    {"hygiene.locale", "C.UTF-8"},
    {"hygiene.directory", "working directory to '/'"},
    {"hygiene.environment", "'BROKEN_PLUGIN'"},
    {"hygiene.umask", "umask"},
    {"hygiene.floating_point", "floating-point mode"},
    {"hygiene.descriptors", "/dev/null stays open"},
    {"hygiene.threads", "1 of its threads"},
    {"hygiene.children", "child process"},
    {"hygiene.output", "prints"},
    {"hygiene.exit", "ended the process with code 0"},
    {"hygiene.exceptions", "compute threw an exception: no such device"},
    {"hygiene.out_of_memory", "SIGABRT"},
    {"hygiene.create_growth", "create and destroy leave"},
    {"hygiene.call_growth", "the same call leave"},
};

// Faults of files: the case, the pack, the message. The packs of `rude` are in tests/host/packs.
struct FileFault {
  const char* case_id;
  const char* pack;
  const char* text;
};
constexpr FileFault kFileFaults[] = {
    {"static.note", "no_note/no_note.so", "note"},
    {"static.one_export", "extra_export/extra_export.so", "'leaked_helper'"},
    {"static.needs", "needs_openmp/needs_openmp.so", "OpenMP"},
    {"static.run_path", "run_path/run_path.so", "'/tmp/somewhere'"},
    {"static.nodelete", "deletable/deletable.so", "-z nodelete"},
    {"static.stack", "exec_stack/exec_stack.so", "executable stack"},
    {"static.text_relocations", "broken/text_relocations.so", "-fPIC"},
    {"static.host_version", "newer_host/newer_host.so", "needs a host of ABI 1.99"},
    {"static.described", "broken/described.so", "'one' has no summary"},
    {"static.roles", "secret_default/secret_default.so", "a default, which anyone can read"},
    {"static.known_names", "broken/known_names.so", "did you mean 'ref_log_prob'"},
    {"load.opens", "open_refuses/open_refuses.so", "FAILED_PRECONDITION"},
    {"load.harmless", "broken/harmless.so", "the working directory (/)"},
    {"load.quick", "broken/quick.so", "do the work in create"},
    {"load.note_equals_table", "note_differs/note_differs.so", "differ"},
    {"load.sizes", "broken/sizes.so", "struct_size of the vtable of 'one' is 4096"},
    {"load.reads", "no_reads/no_reads.so", "announce mortise.reads/1"},
    {"reward.column_role", "minor_2/minor_2.so", "the same whichever column it names"},
    {"load.devices", "cuda_twice/cuda_twice.so", "lists the device type 2 twice"},
    {"load.devices", "cuda_alone/cuda_alone.so", "does not list the CPU"},
    {"load.beside_itself", "broken/beside_itself.so", "a second copy"},
};

std::string plugin_of(std::string case_id) {
  std::replace(case_id.begin(), case_id.end(), '.', '_');
  return case_id;
}

// The rules whose last column in sdk/RULES.md contains `who`.
std::set<std::string> rules_checked_by(std::string_view who) {
  const std::string text = *default_env().read_file(Path(MORTISE_SOURCE_DIR) / "sdk" / "RULES.md");
  std::set<std::string> out;
  for (const std::string_view line : split(text, '\n')) {
    const auto cells = split(line, '|');  // "", rule, text, if broken, checked by, ""
    if (cells.size() == 6 && cells[4].find(who) != std::string_view::npos) out.emplace(trim(cells[1]));
  }
  return out;
}

TEST(PluginCheck, HasAFaultForEveryCaseAndARuleForEachOfThem) {
  std::set<std::string> covered = {"static.readable"};
  for (const Expected& one : kPluginFaults) covered.insert(one.case_id);
  for (const FileFault& one : kFileFaults) covered.insert(one.case_id);
  EXPECT_GE(all_cases().size(), 50U);
  std::set<std::string> ids, rules;
  for (const Case* one : all_cases()) {
    EXPECT_TRUE(covered.count(one->id) == 1) << one->id << ": no broken plugin";
    EXPECT_TRUE(ids.insert(one->id).second) << one->id << " twice";
    rules.insert(one->rule);
    covered.erase(one->id);
  }
  EXPECT_TRUE(covered.empty()) << *covered.begin() << " is no case";
  EXPECT_EQ(rules, rules_checked_by("`mortise plugin check`")) << "cases and RULES.md name other rules";
}

TEST(PluginCheck, EveryBrokenPluginIsNamedAfterItsCase) {
  const auto pack = inspect_pack(packs("broken/test.broken.so"), "");
  ASSERT_TRUE(pack.ok()) << pack.error().to_string();
  std::set<std::string> cases;
  for (const Case* one : all_cases()) cases.insert(plugin_of(one->id));
  for (const PluginInfo& plugin : pack->plugins)
    EXPECT_TRUE(plugin.name.starts_with("fine_") || cases.count(plugin.name) == 1) << plugin.name;
}

TEST(PluginCheck, FindsTheFaultOfEveryBrokenPlugin) {
  std::vector<std::string> only;
  for (const Expected& one : kPluginFaults) only.push_back(plugin_of(one.case_id) + ":" + one.case_id);
  const std::string slow = "reward_long_text:reward.long_text";  // hangs: with a shorter limit
  only.erase(std::find(only.begin(), only.end(), slow));
  CheckReport report = check(packs("broken/test.broken.so"), only);
  CheckOptions short_limit;
  short_limit.timeout_ms = 1500;
  const CheckReport hung = check(packs("broken/test.broken.so"), {slow}, short_limit);
  report.outcomes.insert(report.outcomes.end(), hung.outcomes.begin(), hung.outcomes.end());
  std::map<std::string, const Outcome*> by_case;
  for (const Outcome& outcome : report.outcomes) by_case[outcome.one->id] = &outcome;
  for (const Expected& expected : kPluginFaults) {
    ASSERT_EQ(by_case.count(expected.case_id), 1U) << expected.case_id;
    const Outcome& outcome = *by_case[expected.case_id];
    EXPECT_TRUE(outcome.is_fault()) << expected.case_id << " is " << outcome.status << ": " << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(expected.text)) << expected.case_id << " is " << outcome.status;
  }
}

TEST(PluginCheck, FindsTheFaultOfEveryBrokenFile) {
  for (const FileFault& expected : kFileFaults) {
    const CheckReport report = check(packs(expected.pack), {expected.case_id});
    bool found = false;
    for (const Outcome& outcome : report.outcomes) {
      if (std::string_view(outcome.one->id) != expected.case_id) continue;
      found = true;
      EXPECT_TRUE(outcome.is_fault()) << expected.case_id << " is " << outcome.status << ": " << outcome.text;
      EXPECT_THAT(outcome.text, HasSubstr(expected.text)) << expected.case_id;
    }
    EXPECT_TRUE(found) << expected.case_id;
  }
}

// Threads of libtorch remain after its first use. What a pack bound to it adds with every instance is the pack's own.
TEST(PluginCheck, TellsAPoolOfLibtorchFromThreadsOfThePack) {
  CheckOptions options;
  options.host_torch = "1.0.0";
  const CheckReport pool = check(packs("broken/thread_pool.so"), {"hygiene.threads"}, options);
  EXPECT_EQ(all_faults(pool), "");
  EXPECT_EQ(pool.count("passed", "one"), 1U);
  const CheckReport leak = check(packs("broken/thread_leak.so"), {"hygiene.threads"}, options);
  EXPECT_THAT(all_faults(leak), HasSubstr("2 of its threads live on after destroy"));
  const CheckReport own = check(packs("broken/own_thread.so"), {"hygiene.threads"}, options);
  EXPECT_THAT(all_faults(own), HasSubstr("1 of its threads live on after destroy"));
}

// All cases test the file that the check began with. A build may replace it meanwhile. Then a process that has read the old
// file continues, and a process that reads the new one reports an error.
TEST(PluginCheck, TestsOneFileInAllItsCases) {
  const test::TempDir dir;
  const Path path = dir.path() / "pack.so";
  const std::string whole = *default_env().read_file(packs("minimal/minimal.so"), 1 << 24);
  ASSERT_TRUE(write_file(default_env(), path, whole).ok());
  auto pool = ServerPool::start({"/proc/self/exe", "--serve-cases"}, 1);
  auto later_pool = ServerPool::start({"/proc/self/exe", "--serve-cases"}, 1);
  ASSERT_TRUE(pool.ok() && later_pool.ok());
  Request request;
  request.case_id = "load.opens";
  request.pack = path.string();
  request.sha256 = PackFile::open(path)->sha256();
  const auto outcome_in = [&](ServerPool& servers) {
    std::vector<Outcome> outcomes(1);
    servers.run(std::span(&request, 1), {0}, outcomes);
    return outcomes.front();
  };
  EXPECT_EQ(outcome_in(*pool).status, "passed");
  ASSERT_TRUE(write_file(default_env(), path, *default_env().read_file(packs("faulty/test.faulty.so"), 1 << 24)).ok());
  const Outcome later = outcome_in(*pool);
  EXPECT_EQ(later.status, "passed") << later.text;
  const Outcome other = outcome_in(*later_pool);
  EXPECT_EQ(other.status, "failed");
  EXPECT_THAT(other.text, HasSubstr("the file has changed since the check began"));
}

TEST(PluginCheck, TakesAnyBytesForAFile) {
  const test::TempDir dir;
  const std::string whole = *default_env().read_file(packs("minimal/minimal.so"), 1 << 24);
  for (const std::string& bytes : {std::string(), std::string("no ELF at all"), whole.substr(0, whole.size() / 2)}) {
    const Path path = dir.path() / "pack.so";
    ASSERT_TRUE(write_file(default_env(), path, bytes).ok());
    const CheckReport report = check(path);
    EXPECT_GT(report.num_faults(), 0U);
    EXPECT_EQ(report.outcomes.front().one->id, std::string("static.readable"));
    EXPECT_TRUE(report.outcomes.front().is_fault());
    EXPECT_EQ(report.count("crashed", ""), 0U) << all_faults(report);
    if (bytes.size() < 100) {
      EXPECT_EQ(report.outcomes.size(), 1U) << "no other case can say more about it";
    }
  }
}

// Not only does the engine refuse such a file: checking it must not run the other library's constructor either.
TEST(PluginCheck, RunsNoLibraryThatARefusedFileBringsAlong) {
  const test::TempDir dir;
  const Path mark = dir.path() / "mark";
  ::setenv("MORTISE_TEST_MARK", mark.c_str(), 1);
  check(packs("constructor/constructor.so"), {"load.*"});
  EXPECT_TRUE(default_env().exists(mark)) << "code of a good pack runs, so this test would see the mark";
  ASSERT_TRUE(default_env().unlink(mark).ok());
  for (const std::string name : {"auxiliary", "filter", "depaudit", "audit", "run_path"}) {
    EXPECT_GT(check(packs(name + "/" + name + ".so")).num_faults(), 0U) << name;
    EXPECT_FALSE(default_env().exists(mark)) << name;
  }
  ::unsetenv("MORTISE_TEST_MARK");
}

// In plugins without a fault no case finds one, and each plugin passes most cases for its kind.
void expect_clean(const Path& pack, std::vector<std::string> only = {}, CheckOptions options = {}) {
  const CheckReport report = check(pack, std::move(only), std::move(options));
  EXPECT_EQ(all_faults(report), "") << pack;
  std::map<std::string, std::pair<int, int>> counts;  // passed, not applicable though about the kind
  for (const Outcome& outcome : report.outcomes) {
    auto& count = counts[outcome.plugin];
    count.first += outcome.status == "passed" ? 1 : 0;
    const bool mine = outcome.plugin.empty() || (outcome.one->kinds & kind_bit(outcome.kind)) != 0;
    count.second += outcome.status == "not_applicable" && mine ? 1 : 0;
  }
  EXPECT_FALSE(counts.empty());
  for (const auto& [plugin, count] : counts) EXPECT_GT(count.first, count.second) << pack << " " << plugin;
}

TEST(PluginCheck, FindsNothingInPluginsWithoutFault) { expect_clean(packs("broken/test.broken.so"), {"fine_*:*.*"}); }

TEST(PluginCheck, FindsNothingInTheSamplePackInC) {
  expect_clean(Path(MORTISE_BINARY_DIR) / "tests" / "sdk_packs" / "test.c.so");
}

TEST(PluginCheck, FindsNothingInTheBuiltInPacks) {
  const Path dir = Path(MORTISE_BINARY_DIR) / "lib" / "mortise" / "packs";
  for (const char* name : {"kl_estimator", "advantage_estimator"})
    expect_clean(dir / (std::string("mortise.") + name + ".so"));
  CheckOptions losses;
  losses.params = *parse_given_params("dro:dro_beta=0.3");
  expect_clean(dir / "mortise.policy_loss.so", {}, losses);
  CheckOptions rewards;
  rewards.params = *parse_given_params("regex:pattern=4[0-9]+");
  const std::vector<GivenParam> buffer = *parse_given_params("soft_overlong:buffer=4");
  rewards.params.insert(rewards.params.end(), buffer.begin(), buffer.end());
  // All of this pack's plugins would take minutes: here one that reads text, one token ids, and one with a table of its
  // own.
  const bool all = std::getenv("MORTISE_LONG") != nullptr;
  const std::vector<std::string> some = {"regex:*", "soft_overlong:*", "gsm8k:*"};
  expect_clean(dir / "mortise.reward.so", all ? std::vector<std::string>{} : some, rewards);
  expect_clean(dir / "mortise.environment.so", {"guess_number:*"});  // the other one plays the user's code
  CheckOptions model;                                                // the host of the cases plays the reward model
  model.params = *parse_given_params("model=folder");
  expect_clean(dir / "mortise.reward_model.so", {}, model);
}

TEST(PluginCheck, FindsNothingInTheBuiltInRolloutBackends) {
  const test::TempDir dir;
  const std::string path = (dir.path() / "replay.jsonl").string();
  std::ofstream file(path);
  for (int i = 0; i < 3; ++i)
    file << R"({"prompt_token_ids":[1,2,)" << i << R"(],"completions":[[5,6],[7]],"finish_reasons":["stop","length"]})"
         << "\n";
  file.close();
  CheckOptions options;
  options.params = *parse_given_params("replay:path=" + path);
  options.prompts = {{1, 2, 0}, {1, 2, 1}, {1, 2, 2}};
  expect_clean(Path(MORTISE_BINARY_DIR) / "lib" / "mortise" / "packs" / "mortise.rollout.so", {}, options);
}

TEST(PluginCheck, AsksForParametersWithoutADefault) {
  CheckOptions options;
  options.pack = (Path(MORTISE_BINARY_DIR) / "lib" / "mortise" / "packs" / "mortise.reward.so").string();
  options.server = {"/proc/self/exe", "--serve-cases"};
  options.only = {"soft_overlong:*"};
  const auto refused = check_pack(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kConfig);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("'soft_overlong' needs the parameter 'buffer'"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--params 'soft_overlong:KEY=VALUE'"));
  options.only = {"exact_match:*"};
  EXPECT_TRUE(check_pack(options).ok());
  options.params = *parse_given_params("exact_match:hitt=2");
  EXPECT_THAT(check_pack(options).error().to_string(), HasSubstr("did you mean 'hit'"));
  options.params = *parse_given_params("nobody:hit=2");
  EXPECT_THAT(check_pack(options).error().to_string(), HasSubstr("no plugin 'nobody'"));
}

TEST(PluginCheck, ParsesParameters) {
  const auto given = *parse_given_params("regex:pattern=a\\,b:c,full=true");
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].plugin, "regex");
  EXPECT_EQ(given[0].text, "a,b:c");
  EXPECT_EQ(given[1].key, "full");
  EXPECT_EQ((*parse_given_params("pattern=x:y"))[0].plugin, "");
  EXPECT_FALSE(parse_given_params("regex:pattern").ok());
}

TEST(PluginCheck, ReportsAsJsonAndJunit) {
  const CheckReport report = check(packs("broken/test.broken.so"), {"hygiene_output:hygiene.*", "static.note"});
  const Json json = report_json(report);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["counts"]["failed"], 1);
  bool found = false;
  for (const Json& one : json["cases"]) {
    if (one["case"] != "hygiene.output") continue;
    found = true;
    EXPECT_EQ(one["rule"], "R38");
    EXPECT_EQ(one["status"], "failed");
    EXPECT_THAT(one["output"].get<std::string>(), HasSubstr("hello from a plugin"));
  }
  EXPECT_TRUE(found);
  const std::string junit = report_junit(report);
  EXPECT_THAT(junit, HasSubstr("<testsuite name=\"test.broken.policy_loss.hygiene_output\""));
  EXPECT_THAT(junit, HasSubstr("<failure message=\"R38: prints"));
  EXPECT_THAT(report_text(report, false), HasSubstr("FAILED  hygiene.output (R38): prints"));
  EXPECT_THAT(report_text(report, false), HasSubstr("1 fault"));
}

}  // namespace
}  // namespace mortise::check

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--serve-cases") return mortise::check::serve_cases();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
