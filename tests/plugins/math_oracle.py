# Writes rows {"gold", "answer", "same"}: LaTeX of random expressions and of what sympy makes of them, equal or changed.
#   python math_oracle.py COUNT SEED
import json
import random
import sys

import sympy as sp

count, seed = int(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
x, y = sp.symbols("x y")


def number():
    return sp.Rational(random.randint(-9, 9), random.choice([1, 1, 1, 2, 3, 7]))


def leaf():
    return random.choice([x, y, x, number(), number(), sp.pi, sp.sqrt(random.choice([2, 3, 5])), sp.E, sp.I])


def expression(depth):
    if depth == 0: return leaf()
    a, b = expression(depth - 1), expression(depth - 1)
    kind = random.randrange(9)
    if kind < 3: return a + b
    if kind < 5: return a * b
    if kind == 5: return a ** random.choice([2, 3, -1])
    if kind == 6: return a / (b + random.choice([x, 2]))
    if kind == 7: return random.choice([sp.sin, sp.cos, sp.exp])(random.choice([x, y, 2 * x, x + y, sp.pi / 5]))
    return sp.sqrt(x ** 2 + 1) * a


FORMS = [sp.expand, sp.factor, sp.together, sp.cancel, sp.expand_trig, lambda e: sp.expand_complex(e) if e.is_number else e,
         lambda e: sp.Add(sp.expand(e), sp.pi, evaluate=False) - sp.pi]


def changed(e):
    numbers = sorted(e.atoms(sp.Rational), key=sp.default_sort_key)
    if not numbers: return e + random.choice([1, -1, sp.Rational(1, 1000)])
    old = random.choice(numbers)
    return e.subs(old, old + random.choice([1, -1])) if random.random() < 0.7 else e * sp.Rational(1001, 1000)


def latex(e):
    return sp.latex(e, ln_notation=True)


def value(e, point):
    return complex(e.subs(point).evalf(30))


points = [{x: sp.Rational(3, 7), y: sp.Rational(5, 11)}, {x: sp.Rational(-4, 3), y: sp.Rational(7, 5)}]
made = 0
while made < count:
    e = expression(random.randint(1, 3))
    if e.has(sp.zoo, sp.nan, sp.oo): continue
    try:
        other = changed(e) if random.random() < 0.5 else random.choice(FORMS)(e)
        if other.has(sp.zoo, sp.nan, sp.oo): continue
        apart = [abs(value(e, p) - value(other, p)) / (1 + abs(value(e, p))) for p in points]
    except (ZeroDivisionError, TypeError, sp.PolynomialError, OverflowError):
        continue
    if any(d != d for d in apart) or (1e-12 < max(apart) < 1e-9): continue
    print(json.dumps({"gold": latex(e), "answer": latex(other), "same": max(apart) <= 1e-12}))
    made += 1
