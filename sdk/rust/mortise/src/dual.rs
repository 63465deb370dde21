//! A number with its derivative: a loss is written once on `Dual` and its gradient is exact.
//!
//! Where a function has a kink the conventions are those of the C++ layer (and torch): at a tie `max` and `min` give the
//! mean of both slopes, `clamp` lets the gradient through at its edges, and NaN comes through from either side.

use std::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual {
    pub value: f64,
    pub slope: f64,
}

impl Dual {
    /// The number that is differentiated by.
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
    /// The value alone: stop-gradient.
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
