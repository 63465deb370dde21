// How the records of fields.h are written down, in keys/<section>.h:
//
//   keys.compared("lr", &OptimConfig::lr, "Learning rate.").at_least(0).trl("learning_rate", "5e-05");
//   keys.free("save_freq", &TrainerConfig::save_freq, "Steps between checkpoints.").at_least(-1);
//
// The verb says what a resume does with the key (OnResume), so no key is without a rule. Private to this room; runs
// once, at the first look at the list.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/fields.h"
#include "config/load.h"
#include "foundation/base/choice.h"

namespace mortise {

// The choice types of a member and how it holds them; the primary template is for all other types.
template <class T>
struct ChoiceMember {
  static constexpr bool kIs = false;
};
template <NamedChoice E>
struct ChoiceMember<E> {
  static constexpr bool kIs = true;
  using Enum = E;
  static constexpr ChoiceRef::Shape kShape = ChoiceRef::Shape::kOne;
  static constexpr bool kAuto = false;
  static std::vector<size_t> read(const E& value) { return {static_cast<size_t>(value)}; }
  static void write(E& value, const std::vector<size_t>& at) { value = static_cast<E>(at[0]); }
};
template <NamedChoice E>
struct ChoiceMember<OrAuto<E>> {
  static constexpr bool kIs = true;
  using Enum = E;
  static constexpr ChoiceRef::Shape kShape = ChoiceRef::Shape::kOne;
  static constexpr bool kAuto = true;  // its name is the last
  static constexpr size_t kSize = choice_names(E{}).size();
  static std::vector<size_t> read(const OrAuto<E>& value) {
    return {value.value ? static_cast<size_t>(*value.value) : kSize};
  }
  static void write(OrAuto<E>& value, const std::vector<size_t>& at) {
    value = at[0] == kSize ? OrAuto<E>() : OrAuto<E>(static_cast<E>(at[0]));
  }
};
template <NamedChoice E>
struct ChoiceMember<std::optional<E>> {
  static constexpr bool kIs = true;
  using Enum = E;
  static constexpr ChoiceRef::Shape kShape = ChoiceRef::Shape::kNullable;
  static constexpr bool kAuto = false;
  static std::vector<size_t> read(const std::optional<E>& value) {
    return value ? std::vector<size_t>{static_cast<size_t>(*value)} : std::vector<size_t>{};
  }
  static void write(std::optional<E>& value, const std::vector<size_t>& at) {
    value = at.empty() ? std::optional<E>() : static_cast<E>(at[0]);
  }
};
template <NamedChoice E>
struct ChoiceMember<std::vector<E>> {
  static constexpr bool kIs = true;
  using Enum = E;
  static constexpr ChoiceRef::Shape kShape = ChoiceRef::Shape::kList;
  static constexpr bool kAuto = false;
  static std::vector<size_t> read(const std::vector<E>& values) {
    std::vector<size_t> at;
    for (const E value : values) at.push_back(static_cast<size_t>(value));
    return at;
  }
  static void write(std::vector<E>& values, const std::vector<size_t>& at) {
    values.clear();
    for (const size_t i : at) values.push_back(static_cast<E>(i));
  }
};

template <class T>
std::vector<std::string_view> names_of_choices() {
  constexpr auto kNames = choice_names(typename ChoiceMember<T>::Enum{});
  std::vector<std::string_view> names(kNames.begin(), kNames.end());
  if (ChoiceMember<T>::kAuto) names.push_back("auto");
  return names;
}

template <class T>
FieldRef ref_of(T& member) {
  if constexpr (ChoiceMember<T>::kIs) {
    using Choices = ChoiceMember<T>;
    return ChoiceRef{Choices::kShape, &member, [&member] { return Choices::read(member); },
                     [&member](const std::vector<size_t>& at) { Choices::write(member, at); }, names_of_choices<T>()};
  } else {
    return &member;
  }
}

// Where a key's value lies in its table's struct, and what refers to it there. It is of one type for all members, and so
// are conditions and reasons below: with a type for each, the compiler takes half more time.
struct KeyPlace {
  size_t offset = 0;
  FieldRef (*ref)(void* member) = nullptr;
  std::vector<std::string_view> choices;
};
template <class T>
FieldRef ref_at(void* member) {
  return ref_of(*static_cast<T*>(member));
}
template <class Section>
Section& any_section() {
  static Section section;
  return section;
}
template <class Section, class T>
KeyPlace place_of(T Section::*member) {
  Section& section = any_section<Section>();
  KeyPlace place;
  place.offset = static_cast<size_t>(reinterpret_cast<char*>(&(section.*member)) - reinterpret_cast<char*>(&section));
  place.ref = ref_at<T>;
  if constexpr (ChoiceMember<T>::kIs) place.choices = names_of_choices<T>();
  return place;
}

// A lambda without captures becomes a pointer, so that all of them share one type of std::function.
template <class Answer, class Function>
std::function<Answer(const KeyUse&)> asked_of_use(Function function) {
  using Pointer = std::invoke_result_t<Function, const KeyUse&> (*)(const KeyUse&);
  if constexpr (std::is_convertible_v<Function, Pointer>) {
    return static_cast<Pointer>(function);
  } else {
    return function;
  }
}
struct UseCondition {
  template <class Function>
  UseCondition(Function function) : holds(asked_of_use<bool>(std::move(function))) {}
  std::function<bool(const KeyUse&)> holds;
};
// A text, or what makes one from the config.
struct UseReason {
  template <class Reason>
  UseReason(Reason reason) {
    if constexpr (std::is_convertible_v<Reason, std::string_view>) {
      set_text(reason);
    } else {
      text = asked_of_use<std::optional<std::string>>(std::move(reason));
    }
  }
  void set_text(std::string_view always);
  std::function<std::optional<std::string>(const KeyUse&)> text;
};
NoEffectRule no_effect_rule(Uses when, UseCondition condition, UseReason reason, bool asks_plugins = false);

// One record being written. Valid until the next one is begun.
class KeyRecord {
 public:
  explicit KeyRecord(Field& field) : field_(field) {}
  KeyRecord& at_least(double min) { return field_.min = min, *this; }
  KeyRecord& above(double min) { return field_.min = min, field_.min_is_open = true, *this; }
  KeyRecord& at_most(double max) { return field_.max = max, *this; }
  KeyRecord& below(double max) { return field_.max = max, field_.max_is_open = true, *this; }
  KeyRecord& items(size_t count) { return field_.num_items = count, *this; }
  KeyRecord& plugin(std::string_view kind) { return field_.plugin_kind = kind, *this; }
  KeyRecord& place() { return field_.is_place = true, *this; }
  KeyRecord& or_number() { return field_.takes_number = true, *this; }
  KeyRecord& inline_table() { return field_.inline_params = true, *this; }
  // Plugins of this kind get the value if they have a parameter of the key's name. The parameter itself, in the table
  // `table` of a config (`params` gives it), wins.
  template <class Params>
  KeyRecord& given_to(std::string_view kind, Params params, std::string_view table) {
    field_.given_to = kind;
    const std::string leaf = field_.key.substr(field_.key.rfind('.') + 1);
    const auto lacks = [kind = field_.given_to, leaf](const KeyUse& k) { return !k.plugins->has(kind, leaf); };
    const auto why_lacking = [is_loss = field_.given_to == "policy_loss"](const KeyUse& k) {
      return (is_loss ? k.plugins->loss : k.plugins->estimator) + " has no parameter of this name";
    };
    no_effect(
        kInTrain | kInObjective, [params, leaf](const KeyUse& k) { return params(k).contains(leaf); },
        std::string(table) + "." + leaf + " wins");
    return no_effect_by_plugins(kInTrain, lacks, why_lacking);
  }
  KeyRecord& unread_by(Uses commands) { return field_.unread |= commands, *this; }
  KeyRecord& read_by(Uses commands) { return field_.read_by |= commands, *this; }

  // Another framework's name for it. With `fallback`, its default as JSON or "": the meaning is the same, and the
  // import copies the value. Without: the import computes the key, or no import reads it.
  KeyRecord& verl(std::string_view name) { return add(Peer::kVerl, name); }
  KeyRecord& as_in_verl(std::string_view fallback) { return add(Peer::kVerl, field_.key, fallback); }
  KeyRecord& trl(std::string_view name) { return add(Peer::kTrl, name); }
  KeyRecord& trl(std::string_view name, std::string_view fallback) { return add(Peer::kTrl, name, fallback); }
  KeyRecord& swift(std::string_view name, std::string_view fallback) { return add(Peer::kSwift, name, fallback); }
  KeyRecord& transformers(std::string_view name, std::string_view fallback) {
    return add(Peer::kTransformers, name, fallback);
  }

  // In the commands `when`, a key that was set has no effect if the condition holds: a warning with the reason.
  KeyRecord& no_effect(Uses when, UseCondition condition, UseReason reason) {
    return field_.no_effect.push_back(no_effect_rule(when, std::move(condition), std::move(reason))), *this;
  }
  // In `mortise sft` it never has an effect.
  KeyRecord& not_in_sft(std::string_view reason = "sft does not sample completions to learn from") {
    return no_effect(
        kInSft, [](const auto&) { return true; }, reason);
  }
  // `mortise sft` reads the key `own` instead. A file that sets both serves both commands, so nothing is told of it.
  KeyRecord& own_key_in_sft(std::string_view own) {
    return no_effect(
        kInSft, [own = std::string(own)](const KeyUse& k) { return !k.loaded.is_set(own); },
        "sft has its own key, " + std::string(own));
  }
  // The same for a condition or reason that asks the plugins in use (k.plugins). Not told of a key that a preset set:
  // presets name settings for their own plugins, which the file may have replaced.
  KeyRecord& no_effect_by_plugins(Uses when, UseCondition condition, UseReason reason) {
    return field_.no_effect.push_back(no_effect_rule(when, std::move(condition), std::move(reason), true)), *this;
  }

 private:
  KeyRecord& add(Peer peer, std::string_view name, std::optional<std::string_view> fallback = std::nullopt);

  Field& field_;
};

struct FieldCatalog {
  std::vector<Field> fields;
  std::vector<TableInfo> tables;

  template <class Section>
  auto table(std::string_view name, std::string_view doc, Section section);
  auto reward_table(std::string_view doc);
};

// What the keys of a table share, whatever its struct is.
class KeyTableBase {
 protected:
  // `section` gives the table's struct; null for the table of a reward, whose struct is the reward itself.
  KeyTableBase(FieldCatalog& catalog, std::string_view name, std::string_view doc,
               std::function<void*(RunConfig&)> section);
  KeyRecord add(OnResume on_resume, std::string_view leaf, KeyPlace place, std::string_view doc);

  FieldCatalog& catalog_;
  std::string name_;
  std::function<void*(RunConfig&)> section_;
  Uses unread_ = 0, read_by_ = 0;
  std::function<bool(const RunConfig&)> read_if_;
  std::vector<NoEffectRule> rules_;
};

// The keys of one table; Section is its struct.
template <class Section>
class KeyTable : KeyTableBase {
 public:
  KeyTable(FieldCatalog& catalog, std::string_view name, std::string_view doc, std::function<void*(RunConfig&)> section)
      : KeyTableBase(catalog, name, doc, std::move(section)) {}

  template <class T>
  KeyRecord compared(std::string_view leaf, T Section::*member, std::string_view doc) {
    return add(OnResume::kCompared, leaf, place_of<Section>(member), doc);
  }
  template <class T>
  KeyRecord free(std::string_view leaf, T Section::*member, std::string_view doc) {
    return add(OnResume::kFree, leaf, place_of<Section>(member), doc);
  }
  template <class T>
  KeyRecord length(std::string_view leaf, T Section::*member, std::string_view doc) {
    return add(OnResume::kLength, leaf, place_of<Section>(member), doc);
  }

  // All keys that follow.
  KeyTable& unread_by(Uses commands) { return unread_ |= commands, *this; }
  KeyTable& read_by(Uses commands) { return read_by_ |= commands, *this; }
  // For keys of this table that say how supervised rows are read: `mortise sft` reads them, and training only for the
  // rows of [sft_mix]. A file with settings of `mortise sft` alone serves both commands, so nothing is told of it.
  [[nodiscard]] KeyTable of_supervised_rows() const {
    KeyTable keys = *this;
    keys.unread_by(kInTrain);
    keys.read_if_ = [](const RunConfig& run) { return run.sft_mix.is_on(); };
    const auto serves_sft = [](const LoadedConfig& loaded) {
      return std::ranges::any_of(all_fields(), [&](const Field& field) {
        return field.key.starts_with("sft.") && !field.read_if && loaded.is_set(field.key);
      });
    };
    keys.none_has_effect(
        kInTrain, [=](const KeyUse& k) { return !k.config.sft_mix.is_on() && !serves_sft(k.loaded); },
        "only `mortise sft` and sft_mix.files read it");
    return keys;
  }
  // The whole table, if it was set; call it before the keys of the next table.
  KeyTable& no_effect(Uses when, UseCondition condition, UseReason reason) {
    catalog_.tables.back().no_effect.push_back(no_effect_rule(when, std::move(condition), std::move(reason)));
    return *this;
  }
  KeyTable& no_effect_by_plugins(Uses when, UseCondition condition, UseReason reason) {
    catalog_.tables.back().no_effect.push_back(
        no_effect_rule(when, std::move(condition), std::move(reason), /*asks_plugins=*/true));
    return *this;
  }
  // Each key that follows.
  KeyTable& none_has_effect(Uses when, UseCondition condition, UseReason reason) {
    return rules_.push_back(no_effect_rule(when, std::move(condition), std::move(reason))), *this;
  }
};

template <class Section>
auto FieldCatalog::table(std::string_view name, std::string_view doc, Section section) {
  using Struct = std::remove_reference_t<decltype(section(std::declval<RunConfig&>()))>;
  return KeyTable<Struct>(*this, name, doc, [section](RunConfig& run) -> void* { return &section(run); });
}

inline auto FieldCatalog::reward_table(std::string_view doc) {
  return KeyTable<RewardConfig>(*this, "reward.*", doc, nullptr);
}

}  // namespace mortise
