// See post_processor.h.
#include "text/tokenizer/post_processor.h"

#include <fmt/core.h>

#include "foundation/base/text.h"
#include "text/tokenizer/bounds.h"

namespace mortise {
namespace {

Error too_many_ids(const ComponentPlace& place) {
  return place.fail(fmt::format("more than {} ids before or behind the text", kMaxAddedIds));
}

Result<> append_special_ids(const Json& spec, const std::string& name, const ComponentPlace& place,
                            std::vector<int64_t>& out) {
  const Json* table = json_find(spec, "special_tokens");
  const Json* entry = table == nullptr ? nullptr : json_find(*table, name);
  const Json* ids = entry == nullptr ? nullptr : json_find(*entry, "ids");
  if (ids == nullptr || !ids->is_array()) return place.fail("'special_tokens' has no ids for " + quote(name));
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) return place.fail(fmt::format("the ids of {} must be whole numbers", quote(name)));
    out.push_back(id.get<int64_t>());
    if (out.size() > kMaxAddedIds) return too_many_ids(place);
  }
  return {};
}

Result<PostProcessor> make_template(const Json& spec, const ComponentPlace& place) {
  PostProcessor made;
  bool seen_text = false;
  for (const Json& part : *TRY(component_list(spec, "single", place))) {
    if (const Json* special = json_find(part, "SpecialToken")) {
      const std::string name = TRY(component_string(*special, "id", place));
      TRY(append_special_ids(spec, name, place, seen_text ? made.after : made.before));
    } else if (json_find(part, "Sequence") != nullptr && !seen_text) {
      seen_text = true;
    } else {
      return place.fail("a part of 'single' is neither a SpecialToken nor the one Sequence");
    }
  }
  if (!seen_text) return place.fail("'single' leaves the text out");
  return made;
}

// ["</s>", 2]
Result<int64_t> token_with_id(const Json& spec, std::string_view key, const ComponentPlace& place) {
  const Json* pair = json_find(spec, key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2 || !(*pair)[1].is_number_integer()) {
    return place.fail(fmt::format("'{}' has to be [text, id]", key));
  }
  return (*pair)[1].get<int64_t>();
}

}  // namespace

Result<PostProcessor> make_post_processor(const Json& spec, const ComponentPlace& place) {
  if (spec.is_null()) return PostProcessor{};
  const std::string type = TRY(component_type(spec, place));
  if (type == "ByteLevel") return PostProcessor{};  // moves offsets only
  if (type == "TemplateProcessing") return make_template(spec, place);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    PostProcessor made;
    made.before.push_back(TRY(token_with_id(spec, "cls", place)));
    made.after.push_back(TRY(token_with_id(spec, "sep", place)));
    return made;
  }
  if (type == "Sequence") {
    TRY(check_num_stages(spec, "processors", place));
    PostProcessor made;
    for (const Json& part : *TRY(component_list(spec, "processors", place))) {
      const PostProcessor one = TRY(make_post_processor(part, place));
      made.before.insert(made.before.begin(), one.before.begin(), one.before.end());
      made.after.insert(made.after.end(), one.after.begin(), one.after.end());
      if (made.before.size() > kMaxAddedIds || made.after.size() > kMaxAddedIds) return too_many_ids(place);
    }
    return made;
  }
  return place.unsupported(type);
}

}  // namespace mortise
