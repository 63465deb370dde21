// Chat templates: a conversation to the text a model was trained on, as transformers' apply_chat_template renders it.
//
// The language is Jinja 3.1 in transformers' sandbox (trim_blocks, lstrip_blocks, loop controls, {% generation %}).
// Not supported: include, import, extends, block, autoescape; the filters urlize, xmlattr, random, wordwrap, pprint.
// Cost: parsing once, then one walk; a rendering is bounded in steps, nesting, and size.
// Thread rule: a ChatTemplate is constant and cheap to copy; render may run on any number of threads at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

namespace jinja {
struct Template;
}

struct RenderInput {
  Json messages = Json::array();
  Json tools;      // null: none
  Json documents;  // null: none
  bool add_generation_prompt = false;
  Json kwargs = Json::object();  // further variables: bos_token, eos_token, enable_thinking, ...
  std::optional<int64_t> now_s;  // for strftime_now, seconds since the epoch; none: the clock
  double work_share = 1;         // share of the work that a rendering may do; less for a caller that cannot wait
};

struct TextRange {
  size_t begin;
  size_t end;
};

struct Rendered {
  std::string text;
  // What the {% generation %} blocks wrote: [begin, end) in code points.
  std::vector<TextRange> assistant_spans;
};

class ChatTemplate {
 public:
  // `name` (a file, say) is named in errors, with line and column.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name);
  Result<Rendered> render(const RenderInput& input) const;
  // Whether it marks what the assistant says with {% generation %}.
  [[nodiscard]] bool has_generation_blocks() const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const jinja::Template> tree_;
};

}  // namespace mortise
