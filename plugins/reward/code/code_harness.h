// The Python code that runs a program in the sandbox. It writes the mark of the start, runs /program as __main__ and
// then its test. Descriptors: 5 the mark of the start, 6 the result, 7 the test.
//
// A program sees its whole process. Therefore a harness has no name that the program could look up or replace: each is
// an expression that fetches its functions before the program's first line. Threading: constants.
#pragma once

namespace mortise {

// The harness uses two levels of Python's recursion limit, so it raises the limit by two.
inline constexpr const char* kHarnessStart = R"(__import__("sys").argv[0] = __file__ = "/program"
__import__("sys").setrecursionlimit(__import__("sys").getrecursionlimit() + 2)
__import__("os").write(5, b"started")
__import__("os").close(5)
)";

inline constexpr const char* kHarnessPrints = R"(__import__("os").close(6)
__import__("os").close(7)
exec(compile(open("/program", "rb").read(), "/program", "exec", 0, True))
)";

// Descriptor 7 holds the name of a function. The expected value is not here.
inline constexpr const char* kHarnessCalls =
    R"(exec(compile(open("/program", "rb").read(), "/program", "exec", 0, True))
import json as _json, os as _os, sys as _sys
_name = _os.read(7, 1 << 20).decode()
_function = globals().get(_name) or getattr(globals().get("Solution", lambda: None)(), _name)
_result = _json.dumps(_function(*_json.load(_sys.stdin)))
with _os.fdopen(6, "w") as _file:
    _file.write(_result)
)";

// Descriptor 7 holds 32 random bytes and the statement. Both are read, and the descriptor is closed, before the
// program's first line. From then on they are operands of an expression that is under way: no variable, no object that
// the garbage collector lists, no file. The bytes are written when the statement has run.
inline constexpr const char* kHarnessStatement =
    R"(__import__("os").write(6, (__import__("os").read(7, 32), exec(__import__("os").read(7, 1 << 24), (globals(), __import__("os").close(7), exec(compile(open("/program", "rb").read(), "/program", "exec", 0, True)))[0]))[0])
)";

// Descriptor 7 has an expression. The harness writes its value in the form that canonical_value() reads; the expected
// value is not here. A value of a subclass counts as one of the builtin class, whatever its own __eq__ returns.
inline constexpr const char* kHarnessExpression =
    R"(exec(compile(open("/program", "rb").read(), "/program", "exec", 0, True))
_value = eval(__import__("os").read(7, 1 << 24))
_space = {"value": _value}
exec('''
import collections, collections.abc, decimal, json, fractions, os, sys, types
if hasattr(sys, "set_int_max_str_digits"): sys.set_int_max_str_digits(0)
def encode(v):
    if v is None: return None
    if isinstance(v, int): return {"i": int.__str__(int.__int__(v))}
    if isinstance(v, float): return {"f": float.__repr__(v)}
    if isinstance(v, str): return {"s": str.encode(v, "utf-8", "surrogatepass").hex()}
    if isinstance(v, (bytes, bytearray)): return {"b": bytes(v).hex()}
    if isinstance(v, tuple): return {"t": [encode(x) for x in tuple.__iter__(v)]}
    if isinstance(v, list): return {"l": [encode(x) for x in list.__iter__(v)]}
    if isinstance(v, (set, frozenset)): return {"e": [encode(x) for x in (set if isinstance(v, set) else frozenset).__iter__(v)]}
    if isinstance(v, (type({}.keys()), type({}.items()))): return {"e": [encode(x) for x in v]}
    if isinstance(v, dict): return {"d": [[encode(k), encode(x)] for k, x in dict.items(v)]}
    if isinstance(v, types.MappingProxyType): return encode(dict(v))
    if isinstance(v, (collections.UserList, collections.UserDict, collections.UserString)): return encode(v.data)
    if isinstance(v, complex): return encode(v.real) if v.imag == 0 else {"o": []}
    if isinstance(v, (decimal.Decimal, fractions.Fraction)):
        if isinstance(v, decimal.Decimal) and not v.is_finite(): return encode(float(v))
        n, d = v.as_integer_ratio() if hasattr(v, "as_integer_ratio") else (v.numerator, v.denominator)
        if d == 1: return encode(n)
        f = n / d
        return encode(f) if f.as_integer_ratio() == (n, d) else {"o": []}
    if type(v).__module__ == "numpy" and getattr(v, "size", 0) == 1: return encode(v.item())
    return {"o": []}
text = json.dumps(encode(value)).encode()
with os.fdopen(6, "wb") as file: file.write(text)
''', _space)
)";

}  // namespace mortise
