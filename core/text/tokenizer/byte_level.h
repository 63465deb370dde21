// The byte-level alphabet of GPT-2: each byte has its own printable character (0x20 is U+0120, shown as a dotted G).
// Thread rule: pure functions on constant tables.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mortise {

// The regular expression that GPT-2 splits words with.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Qwen 2's.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The character (UTF-8) of each byte.
const std::array<std::string, 256>& byte_level_alphabet();
// The byte of a character, or nothing where it is not in the alphabet.
std::optional<uint8_t> byte_of_char(char32_t code);
// Bytes -> alphabet.
std::string byte_level_text(std::string_view bytes);
// Alphabet -> bytes; nothing where any character is outside it.
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace mortise
