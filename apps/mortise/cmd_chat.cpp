// mortise chat render: conversations to the text a model sees, a JSONL row at a time.
#include <fmt/core.h>

#include <boost/program_options.hpp>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "hub/config_names.h"
#include "text/tokenizer/chat_templates.h"
#include "unknown_word.h"

namespace mortise {
namespace {

namespace po = boost::program_options;

constexpr const char* kChatUsage =
    R"(usage: mortise chat render --model DIR --in F.jsonl --out G.jsonl
       mortise chat render --template FILE --in F.jsonl --out G.jsonl

Renders chats to text. An input row has "messages", and may have "tools", "documents", "add_generation_prompt" and
"kwargs" (further variables). An output row is {"text": ...}, or {"error": ...} if the template fails on the row. If the
template has {% generation %} blocks, "assistant_spans" gives their [start, end) in characters.

--model uses the folder's template, or the one named tool_use for rows with tools. The folder's special tokens are
variables, unless "kwargs" has the same names. If a row cannot be read, the command stops and does not change G.
)";

struct ChatArguments {
  std::string model, template_file, in, out;
  bool json = false;
};

po::options_description chat_options(ChatArguments& parsed) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("model", po::value(&parsed.model), "model folder")("template", po::value(&parsed.template_file),
                                                                           "template file")(
      "in", po::value(&parsed.in)->required(), "JSONL rows to read")("out", po::value(&parsed.out)->required(),
                                                                     "JSONL file to write")(
      "json", po::bool_switch(&parsed.json), "a summary as one JSON object on standard output")("help,h", "this text");
  return options;
}

Result<ChatArguments> parse_chat(Arguments args) {
  const auto bad = [](const std::string& what) {
    return Error{ErrorKind::kConfig, what, "mortise chat", "see mortise chat --help"};
  };
  const std::vector<std::string> commands = {"render"};
  if (args.empty() || args[0].starts_with('-')) return missing_command(commands, "mortise chat");
  if (args[0] != "render") return unknown_word("command", args[0], commands, "mortise chat");
  ChatArguments parsed;
  const po::options_description options = chat_options(parsed);
  const auto given = TRY(parse_words(args.subspan(1), options, "mortise chat"));
  if (const auto words = words_of(given); !words.empty()) return bad("unexpected word " + quote(words.front()));
  if (parsed.model.empty() == parsed.template_file.empty()) return bad("give either --model or --template");
  TRY(check_distinct({"--in", parsed.in}, {"--out", parsed.out}, "mortise chat"));
  TRY(check_distinct({"--template", parsed.template_file}, {"--out", parsed.out}, "mortise chat"));
  return parsed;
}

Result<ChatTemplates> load_templates(const ChatArguments& args) {
  if (!args.template_file.empty()) {
    const std::string source = TRY(default_env().read_file(args.template_file));
    return ChatTemplates::single(source, args.template_file);
  }
  const Path folder = TRY(model_folder(default_env(), args.model));
  const Tokenizer tokenizer = TRY(Tokenizer::load(folder));
  ChatTemplates templates = TRY(ChatTemplates::of_folder(tokenizer));
  if (templates.empty())
    return Error{ErrorKind::kData, "the folder has no chat template", args.model,
                 "give a template file with --template"};
  return templates;
}

Result<RenderInput> read_row(const Json& row, const Json& special_tokens, const std::string& where) {
  const auto bad = [&](const std::string& what) { return Error{ErrorKind::kData, what, where, ""}; };
  RenderInput input;
  const Json* messages = json_find(row, "messages");
  if (messages == nullptr || !messages->is_array()) return bad("the key 'messages' must be a list");
  input.messages = *messages;
  if (const Json* tools = json_find(row, "tools")) input.tools = *tools;
  if (const Json* documents = json_find(row, "documents")) input.documents = *documents;
  if (const Json* prompt = json_find(row, "add_generation_prompt")) {
    if (!prompt->is_boolean()) return bad("the key 'add_generation_prompt' must be true or false");
    input.add_generation_prompt = prompt->get<bool>();
  }
  input.kwargs = special_tokens;
  if (const Json* kwargs = json_find(row, "kwargs"); kwargs != nullptr && !kwargs->is_null()) {
    if (!kwargs->is_object()) return bad("the key 'kwargs' must be an object");
    for (const auto& [name, value] : kwargs->items()) input.kwargs[name] = value;
  }
  return input;
}

Json render_row(const ChatTemplate& chat, const RenderInput& input) {
  const auto rendered = chat.render(input);
  if (!rendered.ok()) return Json{{"error", rendered.error().to_string()}};
  Json result{{"text", rendered->text}};
  if (chat.has_generation_blocks()) {
    Json spans = Json::array();
    for (const TextRange& span : rendered->assistant_spans) spans.push_back(Json::array({span.begin, span.end}));
    result["assistant_spans"] = std::move(spans);
  }
  return result;
}

Result<> run_chat(const ChatArguments& args) {
  Env& env = default_env();
  const ChatTemplates templates = TRY(load_templates(args));
  JsonlReader reader = TRY(JsonlReader::open(env, args.in));
  NewJsonlFile out = TRY(NewJsonlFile::create(env, args.out));
  int64_t num_rows = 0, num_errors = 0;
  while (const std::optional<JsonlRow> row = TRY(reader.next())) {
    const std::string where = fmt::format("{}:{}", args.in, row->line);
    const RenderInput input = TRY(read_row(row->value, templates.special_tokens(), where));
    const ChatTemplate* chat = templates.choose(!input.tools.is_null());
    if (chat == nullptr)
      return Error{ErrorKind::kData, "the folder has no template for conversations without tools", where, ""};
    const Json rendered = render_row(*chat, input);
    num_errors += rendered.contains("error") ? 1 : 0;
    ++num_rows;
    TRY(out.write(rendered));
  }
  TRY(out.commit());
  if (args.json) std::cout << dump_json(Json{{"out", args.out}, {"rows", num_rows}, {"errors", num_errors}}) << "\n";
  return {};
}

}  // namespace

int cmd_chat(Arguments args) { return run_parsed<ChatArguments>(args, kChatUsage, chat_options, parse_chat, run_chat); }

}  // namespace mortise
