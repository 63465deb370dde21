// Tokenizer::load: puts the parts together from tokenizer.json, or from vocab.json + merges.txt and a class name, or
// from tokenizer.model (sentencepiece.cpp).
#include "foundation/base/lfs_pointer.h"

#include <fmt/core.h>
#include "foundation/base/text.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace mortise {
namespace {

const Json kNull;

const Json& member(const Json& spec, std::string_view key) {
  const Json* value = json_find(spec, key);
  return value == nullptr ? kNull : *value;
}

// The id that a file gives to an added token is not looked at, as in the tokenizers library: one that the model's
// vocabulary has keeps that id, the others are numbered behind the vocabulary in the order they come.
int64_t next_id(const TokenizerParts& parts) {
  const int64_t vocab_size = parts.model->size();
  const int64_t limit = parts.added.id_limit();
  return limit > vocab_size ? limit : vocab_size;
}

Result<> add_token(AddedToken token, const std::string& file, TokenizerParts& parts) {
  const int32_t known = parts.token_id(token.content);
  return parts.added.add(std::move(token), known != kNoToken ? known : next_id(parts), file);
}

Result<> load_added(const Json& spec, const std::string& file, TokenizerParts& parts) {
  const ComponentPlace place{"added_tokens", file};
  if (member(spec, "added_tokens").is_null()) return {};
  for (const Json& entry : *TRY(component_list(spec, "added_tokens", place))) {
    AddedToken token = TRY(read_added_token(entry, file));
    TRY(add_token(std::move(token), file, parts));
  }
  return {};
}

Result<> load_json(const Path& file, Env& env, TokenizerParts& parts) {
  const std::string name = file.string();
  const Json spec = TRY(read_json_file(env, file));
  if (!spec.is_object())
    return Error{ErrorKind::kData, "the file must hold one JSON object", name, "save the tokenizer again"};
  parts.normalizer = TRY(make_normalizer(member(spec, "normalizer"), {"normalizer", name}));
  parts.pre_tokenizer = TRY(make_pre_tokenizer(member(spec, "pre_tokenizer"), {"pre-tokenizer", name}));
  parts.model = TRY(make_model(member(spec, "model"), {"model", name}));
  parts.post_processor = TRY(make_post_processor(member(spec, "post_processor"), {"post-processor", name}));
  parts.decoder = TRY(DecoderChain::make(member(spec, "decoder"), {"decoder", name}));
  return load_added(spec, name, parts);
}

// --- vocab.json + merges.txt ---

Result<std::vector<std::pair<std::string, std::string>>> read_merges_file(const Path& file, Env& env) {
  const std::string text = TRY(env.read_file(file));
  if (const auto bad = find_invalid_utf8(text))
    return Error{ErrorKind::kData, "the file is not UTF-8 at byte " + std::to_string(*bad), file.string(),
                 "save the tokenizer again"};
  std::vector<std::pair<std::string, std::string>> merges;
  int64_t line_number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return Error{ErrorKind::kData, "a merge must be two tokens with a space between",
                   fmt::format("{}:{}", file.string(), line_number), "save the tokenizer again"};
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

// Parts of the two classes whose folders have vocab.json and merges.txt, written as in tokenizer.json.
Result<> load_legacy(const Path& folder, Env& env, FolderConfig& config, TokenizerParts& parts) {
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const std::string kind = without_fast(config.tokenizer_class);
  const bool qwen = kind == "Qwen2Tokenizer";
  if (!qwen && kind != "GPT2Tokenizer") {
    return Error{ErrorKind::kData,
                 fmt::format("the tokenizer class {} with vocab.json and merges.txt is not supported",
                             quote(config.tokenizer_class)),
                 config_name, "save the folder with transformers' fast tokenizer, which writes tokenizer.json"};
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", config.add_prefix_space.value_or(false)}, {"use_regex", !qwen}};
  Json pre = byte_level;
  if (qwen) {
    const Json splitter = {{"type", "Split"},
                           {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
    pre = {{"type", "Sequence"}, {"pretokenizers", Json::array({splitter, byte_level})}};
    parts.normalizer = make_nfc_normalizer();
  }
  parts.pre_tokenizer = TRY(make_pre_tokenizer(pre, {"pre-tokenizer", config_name}));
  parts.decoder = TRY(DecoderChain::make(byte_level, {"decoder", config_name}));
  const std::string vocab_name = (folder / "vocab.json").string();
  const ComponentPlace place{"model", vocab_name};
  const Json vocab_json = TRY(read_json_file(env, folder / "vocab.json"));
  Vocab vocab = TRY(read_vocab(Json{{"vocab", vocab_json}}, place));
  const auto merges = TRY(read_merges_file(folder / "merges.txt", env));
  parts.model = TRY(BpeModel::make(std::move(vocab), merges, BpeOptions{}, place));
  set_default_token(config, "eos_token", "<|endoftext|>");
  set_default_token(config, "unk_token", "<|endoftext|>");
  set_default_token(config, qwen ? "pad_token" : "bos_token", "<|endoftext|>");
  return {};
}

// --- what tokenizer_config.json adds ---

Result<> apply_config(const FolderConfig& config, const std::string& file, TokenizerParts& parts) {
  for (const auto& [id, token] : config.added_tokens) TRY(add_token(token, file, parts));
  for (const AddedToken& token : config.named_tokens) {
    if (parts.added.find(token.content) == kNoToken) TRY(add_token(token, file, parts));
  }
  if (config.add_bos_token || config.add_eos_token) {
    PostProcessor wrap;
    const auto id_of = [&](const std::string& name) {
      const auto it = config.special_tokens.find(name);
      return it == config.special_tokens.end() ? kNoToken : parts.token_id(it->second);
    };
    if (config.add_bos_token.value_or(false) && id_of("bos_token") != kNoToken)
      wrap.before.push_back(id_of("bos_token"));
    if (config.add_eos_token.value_or(false) && id_of("eos_token") != kNoToken)
      wrap.after.push_back(id_of("eos_token"));
    parts.post_processor = std::move(wrap);
  }
  parts.split_special_tokens = config.split_special_tokens;
  parts.special_tokens = config.special_tokens;
  parts.chat_templates = config.chat_templates;
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const Path& folder, Env& env) {
  auto parts = std::make_shared<TokenizerParts>();
  parts->folder = folder;
  FolderConfig config = TRY(read_folder_config(folder, env));
  const Path json = folder / "tokenizer.json";
  const Path sentencepiece = folder / "tokenizer.model";
  bool normalizes_added = true;
  if (env.exists(json)) {
    TRY(refuse_lfs_pointer(env, json));
    TRY(load_json(json, env, *parts));
  } else if (env.exists(folder / "vocab.json") && env.exists(folder / "merges.txt")) {
    TRY(load_legacy(folder, env, config, *parts));
  } else if (env.exists(sentencepiece)) {
    TRY(refuse_lfs_pointer(env, sentencepiece));
    TRY(load_sentencepiece(sentencepiece, env, config, *parts));
    normalizes_added = false;  // its user-defined pieces are written as normalised text has them
  } else {
    return Error{ErrorKind::kData, "there is no tokenizer.json, no vocab.json with merges.txt, and no tokenizer.model",
                 folder.string(), "name a folder that holds a tokenizer"};
  }
  TRY(apply_config(config, (folder / "tokenizer_config.json").string(), *parts));
  TRY(parts->added.build(normalizes_added ? parts->normalizer.get() : nullptr));
  if (parts->pre_tokenizer != nullptr && parts->pre_tokenizer->ends_in_byte_level() && parts->model->take_bytes()) {
    parts->pre_tokenizer->leave_out_byte_level();
  }
  return Tokenizer(std::move(parts));
}

}  // namespace mortise
