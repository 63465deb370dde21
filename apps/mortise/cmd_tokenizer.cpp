// mortise tokenizer encode|decode: text to token ids and back, a JSONL row at a time.
#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"
#include "foundation/formats/jsonl.h"
#include "hub/config_names.h"
#include "text/tokenizer/tokenizer.h"
#include "unknown_word.h"

namespace mortise {
namespace {

namespace po = boost::program_options;

constexpr const char* kTokenizerUsage =
    R"(usage: mortise tokenizer encode --model DIR --in F.jsonl --out G.jsonl [--add-special-tokens]
       mortise tokenizer decode --model DIR --in F.jsonl --out G.jsonl [--skip-special-tokens]

encode reads rows {"text": ...} and writes {"ids": [...]}. decode does the reverse. Other columns are not copied.
If a row cannot be read, the command stops and does not change G.
)";

struct TokenizerArguments {
  bool encode = true;
  std::string model, in, out;
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
  bool json = false;
};

po::options_description tokenizer_options(TokenizerArguments& parsed) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("model", po::value(&parsed.model)->required(),
                        "folder with tokenizer.json, or vocab.json and merges.txt, or tokenizer.model")(
      "in", po::value(&parsed.in)->required(), "JSONL rows to read")("out", po::value(&parsed.out)->required(),
                                                                     "JSONL file to write")(
      "add-special-tokens", po::bool_switch(&parsed.add_special_tokens),
      "encode: with the tokens of the post-processor, such as <s>")("skip-special-tokens",
                                                                    po::bool_switch(&parsed.skip_special_tokens),
                                                                    "decode: leave special tokens out of the text")(
      "json", po::bool_switch(&parsed.json), "a summary as one JSON object on standard output")("help,h", "this text");
  return options;
}

Result<TokenizerArguments> parse_tokenizer(Arguments args) {
  const auto bad = [](const std::string& what) {
    return Error{ErrorKind::kConfig, what, "mortise tokenizer", "see mortise tokenizer --help"};
  };
  const std::vector<std::string> commands = {"encode", "decode"};
  if (args.empty() || args[0].starts_with('-')) return missing_command(commands, "mortise tokenizer");
  if (args[0] != "encode" && args[0] != "decode")
    return unknown_word("command", args[0], commands, "mortise tokenizer");
  TokenizerArguments parsed;
  parsed.encode = args[0] == "encode";
  const po::options_description options = tokenizer_options(parsed);
  const auto given = TRY(parse_words(args.subspan(1), options, "mortise tokenizer"));
  if (const auto words = words_of(given); !words.empty()) return bad("unexpected word " + quote(words.front()));
  if (parsed.encode && parsed.skip_special_tokens) return bad("--skip-special-tokens belongs to decode");
  if (!parsed.encode && parsed.add_special_tokens) return bad("--add-special-tokens belongs to encode");
  TRY(check_distinct({"--in", parsed.in}, {"--out", parsed.out}, "mortise tokenizer"));
  return parsed;
}

Result<Json> encode_row(const Tokenizer& tokenizer, const Json& row, bool add_special_tokens,
                        const std::string& where) {
  auto text = json_string(row, "text", where);
  if (!text.ok()) {
    Error error = std::move(text).error();
    if (error.next.empty()) error.next = "give every row a text: {\"text\": \"...\"}";
    return error;
  }
  auto ids = tokenizer.encode(*text, add_special_tokens);
  if (!ids.ok()) {
    Error error = std::move(ids).error();
    if (error.where.empty()) error.where = where;
    return error;
  }
  return Json{{"ids", *ids}};
}

Result<Json> decode_row(const Tokenizer& tokenizer, const Json& row, bool skip_special_tokens,
                        const std::string& where) {
  const Json* ids = json_find(row, "ids");
  if (ids == nullptr || !ids->is_array())
    return Error{ErrorKind::kData, "the key 'ids' must be a list of token ids", where,
                 "give every row ids: {\"ids\": [1, 2]}"};
  std::vector<int64_t> values;
  for (const Json& id : *ids) {
    if (!is_i64(id))
      return Error{ErrorKind::kData, fmt::format("'ids' has {}, which is not a token id", quote(id.dump())), where,
                   "give whole numbers, as in [1, 5, 7]"};
    const auto value = id.get<int64_t>();
    if (value < 0 || value >= tokenizer.vocab_size()) {
      return Error{ErrorKind::kData, fmt::format("the token id {} is not in 0..{}", value, tokenizer.vocab_size() - 1),
                   where, "give the --model whose tokenizer made the ids"};
    }
    values.push_back(value);
  }
  return Json{{"text", tokenizer.decode(values, skip_special_tokens)}};
}

Result<> run_tokenizer(const TokenizerArguments& args) {
  Env& env = default_env();
  const Path folder = TRY(model_folder(env, args.model));
  const Tokenizer tokenizer = TRY(Tokenizer::load(folder, env));
  JsonlReader reader = TRY(JsonlReader::open(env, args.in));
  NewJsonlFile out = TRY(NewJsonlFile::create(env, args.out));
  int64_t num_rows = 0, num_ids = 0;
  while (const std::optional<JsonlRow> row = TRY(reader.next())) {
    const std::string where = fmt::format("{}:{}", args.in, row->line);
    const Json result = args.encode ? TRY(encode_row(tokenizer, row->value, args.add_special_tokens, where))
                                    : TRY(decode_row(tokenizer, row->value, args.skip_special_tokens, where));
    num_ids += static_cast<int64_t>((args.encode ? result : row->value)["ids"].size());
    ++num_rows;
    TRY(out.write(result));
  }
  TRY(out.commit());
  if (args.json) std::cout << dump_json(Json{{"out", args.out}, {"rows", num_rows}, {"ids", num_ids}}) << "\n";
  return {};
}

}  // namespace

int cmd_tokenizer(Arguments args) {
  return run_parsed<TokenizerArguments>(args, kTokenizerUsage, tokenizer_options, parse_tokenizer, run_tokenizer);
}

}  // namespace mortise
