//! Derivatives of `Dual` against differences, and its conventions at kinks.
use mortise::Dual;

fn slope_error(f: impl Fn(Dual) -> Dual, x: f64) -> f64 {
    let step = 1e-6;
    let difference = (f(Dual::constant(x + step)).value - f(Dual::constant(x - step)).value) / (2.0 * step);
    (f(Dual::variable(x)).slope - difference).abs() / (1.0 + difference.abs())
}

#[test]
fn derivatives() {
    for x in [-1.3, -0.2, 0.4, 2.5] {
        assert!(slope_error(|d| d * d + 3.0 * d - 1.0, x) < 1e-8);
        assert!(slope_error(|d| 2.0 / (d + 4.0) - d / 3.0, x) < 1e-8);
        assert!(slope_error(|d| (d - 0.5).exp().max(1.0), x) < 1e-8);
        assert!(slope_error(|d| (d * d + 1.0).ln().min(0.5), x) < 1e-8);
        assert!(slope_error(|d| -d.clamp(-1.0, 1.0), x) < 1e-8);
        assert!(slope_error(|d| d.tanh() + d.sigmoid(), x) < 1e-8);
        assert!(slope_error(|d| (d + 2.0).sqrt() - (d + 2.0).ln_1p(), x) < 1e-8);
        assert!(slope_error(|d| (d + 2.0).powf(2.5) + d.powf(3.0) + d.powf(0.0), x) < 1e-7);
        assert!(slope_error(|d| d.exp_m1() * d.abs(), x) < 1e-7);
    }
}

#[test]
fn kinks() {
    let x = Dual::variable(2.0);
    assert_eq!(x.max(2.0), Dual { value: 2.0, slope: 0.5 });
    assert_eq!(x.min(2.0), Dual { value: 2.0, slope: 0.5 });
    assert_eq!(x.clamp(1.0, 2.0).slope, 1.0);
    assert_eq!(Dual::variable(0.0).abs().slope, 0.0);
    assert_eq!(Dual::variable(0.0).powf(0.0), Dual { value: 1.0, slope: 0.0 });
    assert_eq!(Dual::variable(-1e3).sigmoid().slope, 0.0);
    assert_eq!(Dual::variable(1e-20).ln_1p().value, 1e-20);
    assert!(Dual::variable(f64::NAN).max(1.0).value.is_nan());
    assert!(Dual::constant(1.0).max(f64::NAN).value.is_nan());
}
