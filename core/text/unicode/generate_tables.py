"""Writes tables.inc: general categories of Unicode 16, what changed since Unicode 14, scripts, binary properties, full case
mappings, and the characters that normalization learnt after Unicode 9.

Run it by hand for a new Unicode version (the output is committed):
    python3.11 -m venv v && v/bin/pip install unicodedata2==16.0.0 regex==2024.11.6 tokenizers==0.23.3
    v/bin/python generate_tables.py > tables.inc
The interpreter's own `unicodedata` must be Unicode 14, the version of Debian 12's PCRE2; `unicodedata2` is Unicode 16. The
script asks the tokenizers library which characters its regular expressions match for a script or a property (Unicode 16),
and which ones its normalizers do not change (their tables are of Unicode 9). It asks PCRE2 about properties.
"""
import bisect
import ctypes
import sys
import unicodedata

import regex
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
LIMIT = 0x110000

# Case pairs that Unicode 16 added: (upper, lower). UnicodeData.txt 16.0.
PAIRS_16 = [(0x1C89, 0x1C8A), (0xA7CB, 0x264), (0xA7CC, 0xA7CD), (0xA7DA, 0xA7DB), (0xA7DC, 0x19B)]
PAIRS_16 += [(0x10D50 + i, 0x10D70 + i) for i in range(0x16)]


SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi
Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot
Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Garay Georgian
Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana
Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi
Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar
Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao
Modi Mongolian Mro Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki
Ol_Onal Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya
Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet
Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Vai Vithkuqi Wancho Warang_Citi
Yezidi Yi Zanabazar_Square""".split()


# Binary properties and their short names; those alone that are in both libraries.
PROPERTIES = """Alphabetic:Alpha Lowercase:Lower Uppercase:Upper Cased Case_Ignorable:CI Changes_When_Lowercased:CWL Changes_When_Uppercased:CWU
Changes_When_Titlecased:CWT Changes_When_Casefolded:CWCF Changes_When_Casemapped:CWCM Emoji Emoji_Presentation:EPres Emoji_Modifier:EMod
Emoji_Modifier_Base:EBase Emoji_Component:EComp Extended_Pictographic:ExtPict Ideographic:Ideo Unified_Ideograph:UIdeo Dash Math Diacritic:Dia
Extender:Ext ID_Start:IDS ID_Continue:IDC XID_Start:XIDS XID_Continue:XIDC Default_Ignorable_Code_Point:DI Grapheme_Base:Gr_Base
Grapheme_Extend:Gr_Ext Soft_Dotted:SD Terminal_Punctuation:Term Sentence_Terminal:STerm Quotation_Mark:QMark Radical Hex_Digit:Hex
Variation_Selector:VS Regional_Indicator:RI Logical_Order_Exception:LOE Join_Control:Join_C Bidi_Control:Bidi_C Deprecated:Dep
Pattern_Syntax:Pat_Syn Pattern_White_Space:Pat_WS Noncharacter_Code_Point:NChar""".split()


CODES = [c for c in range(LIMIT) if not 0xD800 <= c < 0xE000]


def taken(pattern):
    """The code points that the tokenizers library's regular expression takes."""
    out = set()
    splitter = pre_tokenizers.Split(Regex(pattern + "+"), "removed", invert=True)
    for _, (begin, end) in splitter.pre_tokenize_str("".join(map(chr, CODES))):
        out.update(CODES[begin:end])
    return out


class Pcre:
    """PCRE2 of Unicode 14."""

    def __init__(self):
        self.pcre2 = library = ctypes.CDLL("libpcre2-8.so.0")
        version = ctypes.create_string_buffer(64)
        library.pcre2_config_8(10, version)
        assert version.value == b"14.0.0", version.value
        library.pcre2_compile_8.restype = library.pcre2_match_data_create_8.restype = ctypes.c_void_p
        library.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
        self.text = "".join(map(chr, CODES)).encode()
        self.starts, place = [], 0
        for code in CODES:
            self.starts.append(place)
            place += 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4

    def taken(self, pattern):
        size, pointer, code, place = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int(), ctypes.c_size_t()
        utf_ucp = 0x00080000 | 0x00020000
        compiled = self.pcre2.pcre2_compile_8(pattern.encode() + b"+", size(len(pattern) + 1), utf_ucp, ctypes.byref(code),
                                                ctypes.byref(place), None)
        assert compiled, pattern
        data = pointer(self.pcre2.pcre2_match_data_create_8(1, None))
        span = self.pcre2.pcre2_get_ovector_pointer_8(data)
        out, at = set(), 0
        while self.pcre2.pcre2_match_8(pointer(compiled), self.text, size(len(self.text)), size(at), 0x40000000, data, None) > 0:
            out.update(CODES[bisect.bisect_left(self.starts, span[0]):bisect.bisect_left(self.starts, span[1])])
            at = span[1]
        return out


def properties():
    """Rows of names (name, index, whole?) and runs (first, last, index): what came since Unicode 14, or, where something went too, all."""
    pcre, names, rows = Pcre(), [], []
    for entry in PROPERTIES:
        pattern = r"\p{%s}" % entry.split(":")[0]
        new, old = taken(pattern), pcre.taken(pattern)
        if new == old:
            continue
        index, whole = len({row[1] for row in names}), not old <= new
        names += [(name, index, whole) for name in entry.split(":")]
        shown = new if whole else new - old
        rows += [(first, last, index) for first, last, _ in runs(lambda c: 0 if c in shown else None)]
    return names, rows


def scripts():
    """[(first, last, index of the script)], in order."""
    script_of = {}
    for index, name in enumerate(SCRIPTS):
        for code in taken(r"\p{%s}" % name):
            assert code not in script_of, (name, hex(code))
            script_of[code] = index
    return runs(script_of.get)


def normalized_since_9():
    """[(first, last)] of what has a mapping, a combining class or a composition that the library does not know."""
    nfc, nfkd = normalizers.NFC().normalize_str, normalizers.NFKD().normalize_str
    found = set()
    for code in range(0x80, LIMIT):
        char = chr(code)
        if 0xD800 <= code < 0xE000:
            continue
        if nfkd(char) == char != unicodedata2.normalize("NFKD", char):
            found.add(code)
        probes = ["a" + char + "\u0334", "a\u0315" + char + "\u0301", "a\u0301" + char] if unicodedata2.combining(char) else []
        if any(nfc(probe) != unicodedata2.normalize("NFC", probe) for probe in probes):
            found.add(code)
        pair = unicodedata2.normalize("NFD", char)
        if len(pair) == 2 and unicodedata2.normalize("NFC", pair) == char != nfc(pair):
            found.update((code, ord(pair[0]), ord(pair[1])))  # its parts are as new, or marks of old (U+0307)
    found = {code for code in found if unicodedata.ucd_3_2_0.category(chr(code)) == "Cn"}
    return [(first, last) for first, last, _ in runs(lambda c: 0 if c in found else None)]


def runs(value_of):
    """[(first, last, value)] of equal neighbours, None left out."""
    out = []
    for code in range(LIMIT):
        value = value_of(code)
        if value is None:
            continue
        if out and out[-1][1] == code - 1 and out[-1][2] == value:
            out[-1] = (out[-1][0], code, value)
        else:
            out.append((code, code, value))
    return out


def emit(kind, name, rows, per_line):
    print(f"inline constexpr {kind} {name}[] = {{")
    for i in range(0, len(rows), per_line):
        print("    " + " ".join(row + "," for row in rows[i : i + per_line]))
    print("};")


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
    new = [unicodedata2.category(chr(c)) for c in range(LIMIT)]
    old = [unicodedata.category(chr(c)) for c in range(LIMIT)]
    print("// Made by generate_tables.py from Unicode 16.0 (and 14.0 for the differences). Do not edit.")
    print("// clang-format off")
    rows = [f"0x{first << 5 | CATEGORIES.index(cat):X}" for first, _, cat in runs(lambda c: new[c])]
    print("// first code point of a run << 5 | category")
    emit("uint32_t", "kCategoryRuns", rows, 16)
    print("// runs whose category in Unicode 14 was another one: first, last, that category")
    changed = runs(lambda c: old[c] if old[c] != new[c] else None)
    emit("ChangedRun", "kChangedSince14", [f"{{0x{a:X}, 0x{b:X}, {CATEGORIES.index(v)}}}" for a, b, v in changed], 7)
    word = regex.compile(r"\p{Alphabetic}")
    plain = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc", "Cs"}
    extra = runs(lambda c: 0 if new[c] not in plain and word.match(chr(c)) else None)
    print("// alphabetic, yet no letter, mark, digit, letter number or connector")
    emit("CodeRange", "kOtherWord", [f"{{0x{a:X}, 0x{b:X}}}" for a, b, _ in extra], 8)
    print("// scripts by name, in the order of their index")
    emit("std::string_view", "kScriptNames", [f'"{name}"' for name in SCRIPTS], 8)
    print("// runs of a script: first, last, index")
    emit("NamedRun", "kScriptRuns", [f"{{0x{a:X}, 0x{b:X}, {v}}}" for a, b, v in scripts()], 8)
    names, rows = properties()
    print("// binary properties that changed since Unicode 14: name, index, are all runs of Unicode 16 listed")
    emit("PropertyName", "kPropertyNames", [f'{{"{name}", {index}, {str(whole).lower()}}}' for name, index, whole in names], 4)
    print("// their runs: first, last, index")
    emit("NamedRun", "kPropertyRuns", [f"{{0x{a:X}, 0x{b:X}, {v}}}" for a, b, v in rows], 8)
    print("// what normalization learnt after Unicode 9")
    emit("CodeRange", "kNormalizedSince9", [f"{{0x{a:X}, 0x{b:X}}}" for a, b in normalized_since_9()], 8)
    rows = []
    lower_of = {u: l for u, l in PAIRS_16}
    upper_of = {l: u for u, l in PAIRS_16}
    for c in range(LIMIT):
        if 0xD800 <= c < 0xE000:
            continue
        char = chr(c)
        lower, upper, title = char.lower(), char.upper(), char.title()
        if c in lower_of:
            rows.append((c, [lower_of[c]], [c], [c]))
        elif c in upper_of:
            rows.append((c, [c], [upper_of[c]], [upper_of[c]]))
        elif max(len(lower), len(upper), len(title)) > 1:
            rows.append((c, [ord(x) for x in lower], [ord(x) for x in upper], [ord(x) for x in title]))
    print("// case mappings that are longer than a code point, or newer than Unicode 15: code, lower, upper, title (0: none)")

    def three(codes):
        return "{" + ", ".join(f"0x{c:X}" for c in codes + [0] * (3 - len(codes))) + "}"

    emit("CaseRow", "kSpecialCase", [f"{{0x{c:X}, {three(l)}, {three(u)}, {three(t)}}}" for c, l, u, t in rows], 2)
    print("// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
