//! Gamma-distributed numbers: Filebench draws the sizes of files, and the widths and depths of its
//! trees from this distribution, with the shape 1.5 by default.
//!
//! A number of shape 1.5 is the sum of one of shape 1 and of one of shape 1/2. The first is
//! exponential, the second half the square of a normal one. So it takes three uniform numbers.

use env::sim::SimRng;

/// The shape of every distribution in Filebench's personalities.
pub const SHAPE: f64 = 1.5;

/// A number above 0 and up to 1.
fn uniform(rng: &mut SimRng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A gamma-distributed number of [`SHAPE`] with this mean.
pub fn draw(rng: &mut SimRng, mean: f64) -> f64 {
    let exponential = -uniform(rng).ln();
    let (radius, angle) = (-uniform(rng).ln(), std::f64::consts::TAU * uniform(rng));
    let half = radius * angle.cos().powi(2);
    (exponential + half) * mean / SHAPE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_variance_and_skew_are_those_of_the_distribution() {
        let (mut rng, count, mean) = (SimRng::new(1), 200_000, 16384.0);
        let drawn: Vec<f64> = (0..count).map(|_| draw(&mut rng, mean) / mean).collect();
        assert!(drawn.iter().all(|&x| x > 0.0));
        let moment = |power: i32, around: f64| {
            drawn.iter().map(|x| (x - around).powi(power)).sum::<f64>() / f64::from(count)
        };
        let (average, variance) = (moment(1, 0.0), moment(2, 1.0));
        assert!((average - 1.0).abs() < 0.01, "{average}");
        // Of shape k and mean 1: variance 1/k, skewness 2/sqrt(k).
        assert!((variance * SHAPE - 1.0).abs() < 0.02, "{variance}");
        let skew = moment(3, 1.0) / variance.powf(1.5);
        assert!((skew - 2.0 / SHAPE.sqrt()).abs() < 0.1, "{skew}");
    }
}
