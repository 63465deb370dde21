// Starts mortise-fetch with a request in a private folder.
#include "hub/transfer.h"

#include <fmt/core.h>

#include "foundation/base/private_folder.h"
#include "foundation/base/text.h"
#include "plugin/worker/child.h"

namespace mortise {
namespace {

constexpr std::chrono::hours kAtMost{72};                // for the largest file
constexpr uint64_t kMaxAnswerBytes = uint64_t{1} << 20;  // status and headers

// The lines that apps/fetch/main.cpp reads.
std::string request_text(const HubOptions& options, const HubRequest& request, const Path& file, const Path& answer) {
  const std::chrono::milliseconds slow_after =
      request.file.empty() ? options.facts_slow_after : options.download_slow_after;
  std::string text = fmt::format("url {}\nfile {}\nanswer {}\nhead {}\nfollow {}\noffset {}\nmost {}\nslow_ms {}\n",
                                 request.url, file.string(), answer.string(), request.head ? 1 : 0,
                                 request.follow ? 1 : 0, request.offset, request.most, slow_after.count());
  if (!options.token.empty() && request.url.starts_with(options.endpoint + "/"))
    text += fmt::format("header Authorization: Bearer {}\n", options.token);
  return text;
}

Result<HubAnswer> parse_answer(const std::string& text) {
  HubAnswer answer;
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with("status ")) {
      answer.status = static_cast<int>(parse_i64(line.substr(7)).value_or(0));
    } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
      answer.headers[std::string(line.substr(0, colon))] = trim(line.substr(colon + 1));
    }
  }
  if (answer.status == 0) return Error{ErrorKind::kInternal, "mortise-fetch gave no status", "", "please report it"};
  return answer;
}

Result<HubAnswer> run(Env& env, const HubOptions& options, const HubRequest& request, const Path& folder) {
  const Path file = request.file.empty() ? folder / "body" : request.file;
  const Path words = folder / "request", answer = folder / "answer", log = folder / "log";
  TRY(write_file(env, words, request_text(options, request, file, answer)));
  const ChildOutcome child =
      TRY(run_child({options.program.string(), "--request", words.string()}, folder, log,
                    std::chrono::duration_cast<std::chrono::milliseconds>(kAtMost), request.while_it_runs));
  if (child.code != 0) {
    const auto said = env.read_file(log, 4096);
    const std::string why = said.ok() ? std::string(trim(*said)) : "";
    return Error{ErrorKind::kData, why.empty() ? fmt::format("mortise-fetch ended with code {}", child.code) : why,
                 request.url, "check the connection and HF_ENDPOINT"};
  }
  const std::string said = TRY(env.read_file(answer, kMaxAnswerBytes));
  HubAnswer out = TRY(parse_answer(said));
  if (request.file.empty() && !request.head) out.body = TRY(env.read_file(file, request.most));
  return out;
}

}  // namespace

std::string HubAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Result<HubAnswer> send_request(Env& env, const HubOptions& options, const HubRequest& request) {
  // A line of the request ends with the text: no value may hold another one.
  for (const char c : request.url + request.file.string()) {
    if (c == '\n' || c == '\r')
      return Error{ErrorKind::kData, "a name of the hub has a line break", "", "name another repository"};
  }
  const Path folder = TRY(make_private_folder("mortise_hub_"));
  auto answer = run(env, options, request, folder);
  (void)remove_tree(env, folder);
  return answer;
}

}  // namespace mortise
