//! A number with its derivative: a loss is written once on `Dual` and its gradient is exact.
//!
//! At a kink the conventions are those of the C++ layer (and torch): at a tie `max` and `min` give the mean of both
//! slopes, `clamp` passes the gradient at its edges, and NaN passes from either side.

use std::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual {
    pub value: f64,
    pub slope: f64,
}

impl Dual {
    /// The variable of the derivative.
    pub fn variable(value: f64) -> Self {
        Dual { value, slope: 1.0 }
    }
    pub fn constant(value: f64) -> Self {
        Dual { value, slope: 0.0 }
    }
    pub fn exp(self) -> Self {
        let e = self.value.exp();
        Dual { value: e, slope: e * self.slope }
    }
    pub fn ln(self) -> Self {
        Dual { value: self.value.ln(), slope: self.slope / self.value }
    }
    /// `e^x - 1`, exact near 0.
    pub fn exp_m1(self) -> Self {
        let value = self.value.exp_m1();
        Dual { value, slope: (value + 1.0) * self.slope }
    }
    /// `ln(1 + x)`, exact near 0.
    pub fn ln_1p(self) -> Self {
        Dual { value: self.value.ln_1p(), slope: self.slope / (1.0 + self.value) }
    }
    pub fn sqrt(self) -> Self {
        let root = self.value.sqrt();
        Dual { value: root, slope: self.slope / (2.0 * root) }
    }
    pub fn tanh(self) -> Self {
        let t = self.value.tanh();
        Dual { value: t, slope: (1.0 - t * t) * self.slope }
    }
    /// `x^exponent`. NaN for a negative number with an exponent that is not whole.
    pub fn powf(self, exponent: f64) -> Self {
        let slope = if exponent == 0.0 { 0.0 } else { exponent * self.value.powf(exponent - 1.0) };
        Dual { value: self.value.powf(exponent), slope: slope * self.slope }
    }
    /// Its slope at 0 is 0.
    pub fn abs(self) -> Self {
        let sign = if self.value == 0.0 { 0.0 } else { self.value.signum() };
        Dual { value: self.value.abs(), slope: sign * self.slope }
    }
    /// `1 / (1 + e^-x)`, without overflow.
    pub fn sigmoid(self) -> Self {
        let e = (-self.value.abs()).exp();
        let (large, small) = (1.0 / (1.0 + e), e / (1.0 + e));
        Dual { value: if self.value < 0.0 { small } else { large }, slope: small * large * self.slope }
    }
    pub fn max(self, other: impl Into<Dual>) -> Self {
        let other = other.into();
        let slope = 0.5 * (self.slope + other.slope);
        if self.value == other.value {
            Dual { value: self.value, slope }
        } else if self.value > other.value || self.value.is_nan() {
            self
        } else {
            other
        }
    }
    pub fn min(self, other: impl Into<Dual>) -> Self {
        -(-self).max(-other.into())
    }
    pub fn clamp(self, low: f64, high: f64) -> Self {
        if self.value < low {
            Dual::constant(low)
        } else if self.value > high {
            Dual::constant(high)
        } else {
            self
        }
    }
    /// Only the value: stop-gradient.
    pub fn detach(self) -> f64 {
        self.value
    }
}

impl From<f64> for Dual {
    fn from(value: f64) -> Self {
        Dual::constant(value)
    }
}

impl PartialOrd for Dual {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl Neg for Dual {
    type Output = Dual;
    fn neg(self) -> Dual {
        Dual { value: -self.value, slope: -self.slope }
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, |$a:ident, $b:ident| $result:expr) => {
        impl $trait for Dual {
            type Output = Dual;
            fn $method(self, other: Dual) -> Dual {
                let ($a, $b) = (self, other);
                $result
            }
        }
        impl $trait<f64> for Dual {
            type Output = Dual;
            fn $method(self, other: f64) -> Dual {
                $trait::$method(self, Dual::constant(other))
            }
        }
        impl $trait<Dual> for f64 {
            type Output = Dual;
            fn $method(self, other: Dual) -> Dual {
                $trait::$method(Dual::constant(self), other)
            }
        }
    };
}
operator!(Add, add, |a, b| Dual { value: a.value + b.value, slope: a.slope + b.slope });
operator!(Sub, sub, |a, b| Dual { value: a.value - b.value, slope: a.slope - b.slope });
operator!(Mul, mul, |a, b| Dual { value: a.value * b.value, slope: a.slope * b.value + a.value * b.slope });
operator!(Div, div, |a, b| Dual {
    value: a.value / b.value,
    slope: (a.slope - a.value / b.value * b.slope) / b.value
});
